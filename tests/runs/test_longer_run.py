"""A run that goes on from the end of the stable part of another one."""

import shutil
from pathlib import Path

import pytest

from nlpkit import recipe
from nlpkit.checkpoints import files, integrity
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.errors import NlpkitError, UsageError
from nlpkit.runs import resume
from nlpkit.runs.run import Run
from nlpkit.train.state import State
from tests import _tiny

WSD = ("train.schedule=wsd", "train.decay_ratio=0.25", "train.keep=1", "train.save_every=3")
LONGER = (*WSD, "train.steps=16")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps, whose decay begins after step 9, and one of 16 steps."""
    folder = tmp_path_factory.mktemp("wsd")
    path = _tiny.write(folder)
    _tiny.pretrain(path, folder / "short", *WSD)
    _tiny.pretrain(path, folder / "long", *LONGER)
    return folder


def _weights(run: Path) -> bytes:
    return (run / "checkpoints/latest/model.safetensors").read_bytes()


@pytest.mark.slow
def test_checkpoint_before_the_decay_is_kept(runs: Path) -> None:
    # Of 12 steps a quarter is decay; `keep: 1` alone would leave step 12 and the best one.
    assert files.read_pointer(runs / "short", files.STABLE) == files.checkpoint_path(
        (runs / "short").resolve(), 9
    )
    assert not integrity.find_corruption(files.checkpoint_path(runs / "short", 9))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_run_from_the_stable_part_equals_the_longer_run(
    runs: Path, tmp_path: Path, stopped: bool
) -> None:
    start = str(runs / "short/checkpoints" / files.STABLE)
    out = tmp_path / "on"
    if stopped:  # stopped on the way, and the same command again
        stop = _tiny.StopAtStep(out, 12)
        with pytest.raises(NlpkitError, match="saved at step 1"):
            _tiny.pretrain(runs / "tiny.yaml", out, *LONGER, resume=start, stop=stop)
    _tiny.pretrain(runs / "tiny.yaml", out, *LONGER, resume=start)
    assert _weights(out) == _weights(runs / "long")
    assert _tiny.metrics(out) == [m for m in _tiny.metrics(runs / "long") if m["step"] > 9]
    # It is a run like others: with its recipe, and where it came from.
    assert recipe.load(str(out / "recipe.yaml")).recipe.train.steps == 16
    assert RunDirectory(out).status()["resumed_from"].endswith("step-00000009")
    assert _weights(runs / "short") != _weights(out)


@pytest.mark.slow
def test_other_checkpoint_of_another_run_does_not_replace_newer_ones(
    runs: Path, tmp_path: Path
) -> None:
    path, out = runs / "tiny.yaml", tmp_path / "on"
    start = runs / "short/checkpoints" / files.STABLE
    _tiny.pretrain(path, out, *LONGER, resume=str(start))
    with pytest.raises(UsageError, match="checkpoints of its own"):
        _tiny.pretrain(path, out, *LONGER, resume=str(files.checkpoint_path(runs / "short", 12)))


def test_changed_length_names_the_way_to_a_longer_run(runs: Path) -> None:
    with pytest.raises(UsageError, match=r"before its decay: --resume .*checkpoints/stable --out"):
        _tiny.pretrain(runs / "tiny.yaml", runs / "short", *LONGER)


def test_run_from_a_checkpoint_of_another_run_has_a_best_checkpoint_of_its_own(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, out = str(runs / "short/checkpoints" / files.STABLE), tmp_path / "on"
    worse = (*LONGER, "train.lr=3.0")  # never as good as the run before
    known: list[float | None] = []
    write = resume.write

    def watched(run: Run, checkpoint: files.Checkpoint, state: State) -> None:
        known.append(state.best_value)
        write(run, checkpoint, state)

    monkeypatch.setattr(resume, "write", watched)  # the first process calls it alone
    _tiny.pretrain(runs / "tiny.yaml", out, *worse, resume=start)
    assert known == [None]
    best = files.read_pointer(out, "best")
    assert best is not None
    assert best.parent == (out / "checkpoints").resolve()


def test_run_from_a_link_that_has_moved_goes_on_with_its_own_steps(
    runs: Path, tmp_path: Path
) -> None:
    other, out = shutil.copytree(runs / "short", tmp_path / "other", symlinks=True), tmp_path / "on"
    link = other / "checkpoints" / files.STABLE
    stop = _tiny.StopAtStep(out, 12)
    with pytest.raises(NlpkitError, match="saved at step 1"):
        _tiny.pretrain(runs / "tiny.yaml", out, *LONGER, resume=str(link), stop=stop)
    files.set_pointer(other, files.STABLE, files.checkpoint_path(other, 12))
    named = str(files.checkpoint_path(other, 12))
    with pytest.raises(UsageError, match=r"has checkpoints of its own \(step 12\); give --out"):
        _tiny.pretrain(runs / "tiny.yaml", out, *LONGER, resume=named)
    _tiny.pretrain(runs / "tiny.yaml", out, *LONGER, resume=str(link))
    assert _tiny.metrics(out)[0]["step"] == 10
    assert _weights(out) == _weights(runs / "long")
