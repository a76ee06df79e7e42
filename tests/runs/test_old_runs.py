"""Runs begun at the commit f0ab896 go on as if nothing had changed since, and open.

They were killed after the save at step 3. `tests/make_old_runs.py` made them, and what they give
when nothing stops them.
"""

import contextlib
import io
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from nlpkit import cli, recipe
from nlpkit.attention.backends import cpu_flash
from nlpkit.checkpoints import changes
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.errors import UsageError
from nlpkit.models.layers import packs, vocabulary_head
from nlpkit.objectives.examples import text
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests.make_old_runs import dropout_sha256, machine, outcome

OLD = Path(__file__).parents[1] / "old_runs"
EXPECTED: dict[str, Any] = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
RUNS = pytest.mark.parametrize("name", EXPECTED["runs"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The old runs, their recipes and their data, in another place."""
    return Path(shutil.copytree(OLD, tmp_path_factory.mktemp("moved") / "runs", symlinks=True))


@pytest.fixture(scope="module", autouse=True)
def as_it_was():
    """Let the last layer compute all states, torch draw dropout's masks, in the attention, too, and
    compute the norms, and the loss compute exp twice, as it was then."""
    refuses = cpu_flash.refuses

    def softmax(logits: Tensor) -> Tensor:
        normalizer = logits.logsumexp(1, keepdim=True)
        logits.sub_(normalizer).exp_()
        return normalizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary_head, "_softmax", softmax)
        patch.setattr(text, "_find_rows", lambda *given: None)
        patch.setattr(packs._Dropout, "apply", F.dropout)
        patch.setattr(packs.RMSNorm, "forward", nn.RMSNorm.forward)
        patch.setattr(
            cpu_flash, "refuses", lambda request: "dropout" if request.dropout else refuses(request)
        )
        yield patch


def _nlpkit(folder: Path, *arguments: str) -> str:
    """Return the stdout of a command, which must end well; in this process, imports are slow."""
    AcceleratorState._reset_state(reset_partial_state=True)
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        code = cli.run([*arguments, "--device", "cpu"])
    assert code == 0, stderr.getvalue()
    return stdout.getvalue()


@cache
def _resumed(folder: Path, name: str) -> dict[str, Any]:
    """Return the records of a run that went on to its end, and what its last checkpoint holds."""
    stdout = _nlpkit(folder, EXPECTED["runs"][name]["verb"], f"{name}.yaml")
    assert stdout.endswith(f"{name}/checkpoints/step-00000006\n")
    return outcome(folder / name)


def _skip_where_dropout_differs() -> None:
    if dropout_sha256() != EXPECTED["dropout_sha256"]:
        pytest.skip("torch draws other dropout masks here than where the runs were made")


def _flat(data: Any, path: str = "") -> dict[str, Any]:
    """Return every value in plain data by its path."""
    if not isinstance(data, dict | list):
        return {path: data}
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    return {k: v for key, value in pairs for k, v in _flat(value, f"{path}/{key}").items()}


def _close(ours: Any, theirs: Any) -> bool:
    return ours == theirs or (
        None not in (ours, theirs) and ours == pytest.approx(theirs, rel=1e-5, abs=1e-9)
    )


def _same_but_for_rounding(ours: Any, theirs: Any) -> None:
    ours, theirs = _flat(ours), _flat(theirs)
    assert ours.keys() == theirs.keys()
    differing = [
        f"{path}: {ours[path]}, not {value}"
        for path, value in theirs.items()
        if not _close(ours[path], value)
    ]
    assert not differing


def _same_sums_but_for_rounding(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for file in theirs:
        found, wanted = ours[file]["sums"], theirs[file]["sums"]
        assert found.keys() == wanted.keys()
        for name, sums in wanted.items():
            close = pytest.approx(sums, rel=0, abs=1e-4 * sums[1] + 1e-8)
            assert found[name] == close, f"{file}: {name}"


@RUNS
def test_an_old_run_goes_on(folder: Path, name: str) -> None:
    begun = (OLD / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:4]
    found, wanted = _resumed(folder, name), EXPECTED["runs"][name]
    # With the seconds that the steps took then: these were not taken again.
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[:4] == begun
    assert [_flat(r).keys() for r in found["metrics"]] == [
        _flat(r).keys() for r in wanted["metrics"]
    ]
    _skip_where_dropout_differs()
    _same_but_for_rounding(found["metrics"], wanted["metrics"])
    _same_sums_but_for_rounding(found["files"], wanted["files"])


def test_an_old_run_goes_on_as_runs_do_today(tmp_path: Path, as_it_was: pytest.MonkeyPatch) -> None:
    moved = Path(shutil.copytree(OLD, tmp_path / "runs", symlinks=True))
    places = (
        *((text, "_find_rows"), (packs._Dropout, "apply"), (packs.RMSNorm, "forward")),
        (vocabulary_head, "_softmax"),
    )
    then = [getattr(*place) for place in places]
    as_it_was.undo()
    try:
        metrics = _resumed(moved, "cpm_ant")["metrics"]
    finally:
        for place, each in zip(places, then, strict=True):
            as_it_was.setattr(*place, each)
    wanted = EXPECTED["runs"]["cpm_ant"]["metrics"]
    assert [each["targets"] for each in metrics if "targets" in each] == [
        each["targets"] for each in wanted if "targets" in each
    ]


@RUNS
def test_an_old_run_ends_with_the_same_bits(folder: Path, name: str) -> None:
    ours, theirs = machine(), EXPECTED["machine"]
    differing = [
        f"{key} {ours[key]}, not {theirs[key]}" for key in theirs if ours[key] != theirs[key]
    ]
    if differing:
        pytest.skip(f"made on another machine: {'; '.join(differing)}")
    found = _resumed(folder, name)
    assert found["metrics"] == EXPECTED["runs"][name]["metrics"]
    assert found["files"] == EXPECTED["runs"][name]["files"]


@RUNS
def test_an_old_checkpoint_opens(folder: Path, name: str) -> None:
    figures = json.loads(_nlpkit(folder, "eval", f"{name}/checkpoints/step-00000003", "--json"))
    del figures["checkpoint"]
    for newer in ("signatures", "confusion", "precision"):
        figures.pop(newer, None)
    _same_but_for_rounding(figures, EXPECTED["runs"][name]["opened"])


@RUNS
def test_an_old_run_that_went_on_opens(folder: Path, name: str) -> None:
    _resumed(folder, name)
    figures = json.loads(_nlpkit(folder, "eval", name, "--json"))
    _skip_where_dropout_differs()
    held_out = [r["held_out"] for r in EXPECTED["runs"][name]["metrics"] if "held_out" in r]
    best = min(held_out, key=lambda each: each["loss"])
    wanted = {"targets": best["targets"], "loss": best["loss"]}
    _same_but_for_rounding({key: figures[key] for key in wanted}, wanted)


def test_run_older_than_a_setting_goes_on_as_it_was_begun(folder: Path) -> None:
    directory = RunDirectory(folder / "cpm_ant_nlg")
    with contextlib.chdir(folder):
        old = changes.as_begun(directory, recipe.load("cpm_ant_nlg.yaml"))
        new = changes.as_begun(RunDirectory(folder / "new"), recipe.load("cpm_ant_nlg.yaml"))
        set_now = recipe.load("cpm_ant_nlg.yaml", ["objective.learn_unknown=false"])
        assert old.recipe.objective[0].config.learn_unknown
        assert not new.recipe.objective[0].config.learn_unknown
        assert changes.check_changes(directory, old, False) == []
        with pytest.raises(UsageError, match=r"objective\.learn_unknown: true then, false now"):
            changes.check_changes(directory, changes.as_begun(directory, set_now), False)
        assert open_checkpoint("cpm_ant_nlg", device="cpu").objective.config.learn_unknown


def test_null_that_runs_have_from_before_a_setting_went_is_read(folder: Path) -> None:
    recipe_file = folder / "cpm_ant_nlg/recipe.yaml"
    text = recipe_file.read_text()
    recipe_file.write_text(text.replace("\ntrain:\n", "\ntrain:\n  replay: null\n"))
    directory = RunDirectory(folder / "cpm_ant_nlg")
    with contextlib.chdir(folder):
        old = changes.as_begun(directory, recipe.load("cpm_ant_nlg.yaml"))
        assert changes.check_changes(directory, old, False) == []
        recipe_file.write_text(text)
