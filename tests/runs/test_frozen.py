"""An objective from outside with a frozen model: a teacher (tests/parts/distilled.py)."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from nlpkit import cli, recipe
from nlpkit import plan as planning
from nlpkit.checkpoints import files
from nlpkit.errors import FileError, UsageError
from nlpkit.train.log import QUIET, Log
from tests import _dotted, _tiny

SETS = ("train.steps=4", "train.eval_every=2", "train.save_every=2")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a trained model."""
    folder = tmp_path_factory.mktemp("teacher")
    path = _tiny.write(folder, text=_dotted.recipe("gpt"))
    _tiny.pretrain(path, folder / "run", "train.steps=2")
    found = files.read_pointer(folder / "run", "latest")
    assert found is not None
    return found


def _student(folder: Path, teacher: Path) -> Path:
    objective = f"{{name: tests.parts.distilled, max_length: 64, teacher: {teacher}}}"
    text = _dotted.recipe("gpt").replace("{name: clm, max_length: 64}", objective)
    return _tiny.write(folder, text=text)


def test_teacher_is_read_and_announced_but_not_trained_and_not_saved(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (teacher / "model.safetensors").read_bytes()
    student = _student(tmp_path, teacher)
    _tiny.pretrain(student, tmp_path / "run", *SETS)
    assert (teacher / "model.safetensors").read_bytes() == before
    latest = files.read_pointer(tmp_path / "run", "latest")
    assert latest is not None
    saved, theirs = (
        load_file(latest / "model.safetensors"),
        load_file(teacher / "model.safetensors"),
    )
    assert saved.keys() == theirs.keys()
    assert all(saved[name].shape == theirs[name].shape for name in saved)
    capsys.readouterr()
    assert cli.run(["eval", str(tmp_path / "run"), "--json", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    held_out = [r["held_out"]["loss"] for r in _tiny.metrics(tmp_path / "run") if "held_out" in r]
    assert json.loads(shown.out)["loss"] == pytest.approx(min(held_out), rel=1e-5)
    assert "frozen model teacher: gpt, " in shown.err


@pytest.mark.slow
def test_stopped_run_goes_on_bit_for_bit(teacher: Path, tmp_path: Path) -> None:
    student = _student(tmp_path, teacher)
    _tiny.pretrain(student, tmp_path / "whole", *SETS)
    _tiny.pretrain_with_stops(student, tmp_path / "stopped", [5], *SETS)
    assert _tiny.metrics(tmp_path / "stopped") == _tiny.metrics(tmp_path / "whole")


def test_another_teacher_on_resume_is_refused(teacher: Path, tmp_path: Path) -> None:
    copy = tmp_path / "teacher"
    copy.mkdir()
    for file in teacher.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    student = _student(tmp_path, copy)
    _tiny.pretrain(student, tmp_path / "run", *SETS, "train.steps=2")
    weights = {name: tensor + 1 for name, tensor in load_file(copy / "model.safetensors").items()}
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    (copy / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"was trained with another teacher than .*teacher"):
        _tiny.pretrain(student, tmp_path / "run", *SETS, allow_change=True)


def test_missing_teacher_is_found_before_the_text_is_read(tmp_path: Path) -> None:
    student = _student(tmp_path, tmp_path / "none")
    (tmp_path / "zh.train.jsonl").unlink(missing_ok=True)
    with pytest.raises(
        FileError, match=r"objective.teacher: frozen model teacher: .*none: no such"
    ):
        _tiny.pretrain(student, tmp_path / "run", *SETS)
    assert not (tmp_path / "run").exists()


def test_plan_counts_the_teacher(teacher: Path, tmp_path: Path) -> None:
    def make(path: Path) -> dict[str, Any]:
        plan = planning.make(recipe.load(str(path)), tmp_path / "run", "cpu", Log(QUIET))
        found: dict[str, Any] = planning.describe(plan)["model"]
        return found

    alone, taught = make(teacher.parents[2] / "tiny.yaml"), make(_student(tmp_path, teacher))
    theirs = alone["parameters"]
    assert (alone["frozen_parameters"], taught["frozen_parameters"]) == (0, theirs)
    assert taught["state_bytes"] == alone["state_bytes"] + 4 * theirs
    assert taught["trained_parameters"] == alone["trained_parameters"]
    # The teacher has the size of the student, and no backward pass.
    assert taught["flops_per_step"] == pytest.approx(4 / 3 * alone["flops_per_step"])


@pytest.mark.slow
def test_selftest_passes_and_says_why_the_noise_floor_is_not_reached(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.run(["selftest", str(_student(tmp_path, teacher)), "--device", "cpu"])
    shown = capsys.readouterr()
    assert code == 0, shown.out
    assert "frozen model teacher: gpt, " in shown.err
    (floor,) = [line for line in shown.out.splitlines() if "noise floor" in line]
    assert floor.startswith("ok ")
    assert floor.endswith("not below; a loss that reads a frozen model need not fall to it")
