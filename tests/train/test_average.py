"""Averages of the weights: by torch's own, and through saving, stopping and judging."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nlpkit import cli, recipe
from nlpkit.checkpoints import any_layout, files, integrity
from nlpkit.data.store import Callbacks
from nlpkit.disk import file_sha256
from nlpkit.errors import NlpkitError, UsageError
from nlpkit.evaluate import held_out
from nlpkit.evaluate import source as data_of
from nlpkit.generate.settings import Settings
from nlpkit.report import same_run
from nlpkit.runs import frozen, init_from
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.train.average import Average
from nlpkit.train.average_settings import AverageConfig
from nlpkit.train.log import QUIET, Log
from nlpkit.train.signals import StopFlag
from nlpkit.train.state import State
from tests import _tiny
from tests._schema import validator

EMA = ("train.average={name: ema, decay: 0.8}", "train.patience=null")
LAST = ("train.average={name: last, checkpoints: 3, every: 2}",)


def _steps(number: int) -> tuple[nn.Module, list[Tensor]]:
    """A layer, and its weights after each step."""
    draw = torch.Generator().manual_seed(5)
    return nn.Linear(3, 2), [torch.randn(2, 3, generator=draw) for _ in range(number)]


def _set(layer: nn.Module, weight: Tensor) -> None:
    with torch.no_grad():
        layer.weight.copy_(weight)


def test_ema_is_that_of_torch_once_its_warm_up_is_over() -> None:
    layer, steps = _steps(40)
    average = Average(layer, AverageConfig(name="ema", decay=0.5), steps=40)
    expected = steps[0]
    theirs: AveragedModel | None = None
    for number, weight in enumerate(steps, 1):
        _set(layer, weight)
        average.update(State(step=number))
        # min(0.5, (1 + n) / (10 + n)) is 0.5 from n = 8 on.
        share = 1 - min(0.5, (1 + number) / (10 + number))
        expected = expected + share * (weight - expected)
        if theirs is not None:
            theirs.update_parameters(layer)
        elif number == 8:
            _set(layer, expected)
            theirs = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.5))
            theirs.update_parameters(layer)
            _set(layer, weight)
        torch.testing.assert_close(average.mean[0], expected)
    assert theirs is not None
    torch.testing.assert_close(average.mean[0], theirs.module.weight.detach())


def test_last_is_the_mean_of_the_last_checkpoints() -> None:
    layer, steps = _steps(12)
    average = Average(layer, AverageConfig(name="last", checkpoints=3, every=2), steps=12)
    for number, weight in enumerate(steps, 1):
        _set(layer, weight)
        average.update(State(step=number))
        with average.applied():
            counted = [steps[n - 1] for n in (8, 10, 12) if n <= number] or [weight]
            torch.testing.assert_close(layer.weight.detach(), torch.stack(counted).mean(0))
        assert torch.equal(layer.weight.detach(), weight)


@pytest.mark.parametrize(("steps", "counted"), [(5, [1, 3, 5]), (4, [2, 4]), (2, [2]), (1, [1])])
def test_last_of_a_short_run_is_the_mean_of_what_there_is(steps: int, counted: list[int]) -> None:
    layer, weights = _steps(steps)
    average = Average(layer, AverageConfig(name="last", checkpoints=5, every=2), steps=steps)
    for number, weight in enumerate(weights, 1):
        _set(layer, weight)
        average.update(State(step=number))
    expected = torch.stack([weights[number - 1] for number in counted]).mean(0)
    torch.testing.assert_close(average.mean[0], expected)


def test_short_form_and_wrong_names() -> None:
    assert AverageConfig.model_validate("ema") == AverageConfig(name="ema", decay=0.999)
    with pytest.raises(ValidationError):
        AverageConfig.model_validate("mean")
    assert {*AverageConfig(name="ema").without_effect()} == {"checkpoints", "every"}
    assert {*AverageConfig(name="last").without_effect()} == {"decay"}


@pytest.mark.parametrize(
    ("average", "is_right"),
    [
        ("ema", True), ({"name": "last", "every": 3}, True), (None, True),
        ("mean", False), ({"decay": 0.9}, False), ({"name": "ema", "dcay": 0.9}, False),
    ],
)  # fmt: skip
def test_schema_of_recipes_has_both_forms(average: object, is_right: bool) -> None:
    data = recipe.load("gpt1").dump()
    data["train"]["average"] = average
    assert validator().is_valid(data) is is_right


@pytest.fixture(
    scope="module", params=[EMA, pytest.param(LAST, marks=pytest.mark.slow)], ids=["ema", "last"]
)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("average")
    path = _tiny.write(folder)
    _tiny.pretrain(path, folder / "run", *request.param)
    (folder / "sets.json").write_text(json.dumps(request.param))
    return folder


@pytest.mark.slow
def test_stopped_run_goes_on_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    sets = json.loads((whole / "sets.json").read_text())
    _tiny.pretrain_with_stops(whole / "tiny.yaml", tmp_path / "run", [30, 45], *sets)
    assert _tiny.metrics(tmp_path / "run") == _tiny.metrics(whole / "run")
    for name in ("model.safetensors", files.TRAINED, files.OPTIMIZER_STATE):
        a, b = (each / "run/checkpoints/latest" / name for each in (whole, tmp_path))
        assert a.read_bytes() == b.read_bytes()


def test_longer_run_has_the_mean_of_its_own_last_steps(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, documents=30)
    sets = ("train.average={name: last, checkpoints: 2, every: 1}", "train.save_every=2")
    whole, run = tmp_path / "whole", tmp_path / "run"
    _tiny.pretrain(path, whole, *sets, "train.steps=6", "train.keep=9")
    _tiny.pretrain(path, run, *sets, "train.steps=2", "train.keep=9")
    before = files.checkpoint_path(run, 2)
    assert (before / files.TRAINED).is_file()
    with pytest.raises(UsageError, match=r"begins at step 2, and .*step-00000002 has another one"):
        _tiny.pretrain(path, run, *sets, "train.steps=3", allow_change=True)
    assert json.loads((run / "run.json").read_text())["finished"] is True
    _tiny.pretrain(path, run, *sets, "train.steps=6", "train.keep=9", allow_change=True)
    assert not (files.checkpoint_path(run, 4) / files.TRAINED).is_file()
    for step in (4, 6):
        one, two = (files.checkpoint_path(each, step) for each in (whole, run))
        assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    after = [[m for m in _tiny.metrics(each) if m["step"] > 2] for each in (whole, run)]
    assert after[0] == after[1]


def test_training_is_that_without_an_average_and_the_saved_model_is_not(whole: Path) -> None:
    plain = whole / "plain"
    _tiny.pretrain(whole / "tiny.yaml", plain)
    saved, without = (
        load_file(each / "checkpoints/latest/model.safetensors") for each in (whole / "run", plain)
    )
    assert any(not torch.equal(saved[name], without[name]) for name in saved)
    averaged, alone = (
        [each for each in _tiny.metrics(run) if "loss" in each] for run in (whole / "run", plain)
    )
    assert averaged == alone


def test_files_that_only_a_resumed_run_reads_may_be_deleted(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole / "run", tmp_path / "run", symlinks=True)
    saved = (run / "checkpoints/latest").resolve()
    integrity.amend(saved, files.EVALUATED, (saved / files.TRAINING).read_text("utf-8"))

    def hashes() -> list[object]:
        teacher = frozen._describe((0,), "teacher", saved)
        return [any_layout.hash_base(saved), init_from.describe_source(saved), teacher.sha256]

    before, teacher = hashes(), frozen._describe((0,), "teacher", saved)
    weights = [saved / "model.safetensors", saved / files.TRAINED]
    assert any_layout.is_base(saved, file_sha256(*weights))  # as adapters of earlier versions say
    assert teacher.has_hash(file_sha256(saved / "config.json", *weights))
    assert init_from.is_source(saved, file_sha256(*sorted(saved.glob("*.safetensors"))))
    for name in integrity.RESUME_ONLY:
        (saved / name).unlink()
    assert hashes() == before
    assert not any_layout.is_base(saved, file_sha256(saved / "config.json"))
    integrity.verify(saved)
    assert cli.run(["convert", str(run), str(tmp_path / "out"), "-q"]) == 0
    assert same_run.compare(whole / "run", run).differences == []
    assert integrity.find_corruption(saved) is not None  # of a run that is to go on


def test_held_out_loss_is_that_of_the_saved_model(whole: Path) -> None:
    opened = open_checkpoint(whole / "run/checkpoints/latest", device="cpu", precision="fp32")
    source = data_of.find_data(opened, (), None, Log(QUIET), Callbacks())
    found, _ = held_out.Evaluation(opened, source, 256, Callbacks()).evaluate(
        None, Settings(), Log(QUIET), StopFlag()
    )
    logged = [m["held_out"] for m in _tiny.metrics(whole / "run") if "held_out" in m][-1]
    assert found["loss"] == pytest.approx(logged["loss"], abs=1e-6)


def test_what_is_not_trained_is_not_saved_beside_an_average(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, documents=30)
    base = _tiny.pretrain(path, tmp_path / "base", "train.steps=1", "train.warmup_steps=1")
    sets = (f"init_from={base}", "lora={rank: 2}", "train.average.name=ema", "train.save_every=2")
    length = ("train.steps=4", "train.warmup_steps=1")
    whole = _tiny.pretrain(path, tmp_path / "whole", *sets, *length)
    assert all("lora" in name for name in load_file(whole / files.TRAINED))
    stop = _tiny.StopAtStep(tmp_path / "run", 2)
    with pytest.raises(NlpkitError, match="saved at step"):
        _tiny.pretrain(path, tmp_path / "run", *sets, *length, stop=stop)
    again = _tiny.pretrain(path, tmp_path / "run", *sets, *length)
    for name in ("adapter_model.safetensors", files.TRAINED, files.OPTIMIZER_STATE):
        assert (again / name).read_bytes() == (whole / name).read_bytes()
