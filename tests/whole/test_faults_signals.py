"""Signals in every phase of a real process: one line, the right code, what is kept; it goes on."""

import random
import re
import signal
from pathlib import Path

import pytest

from nlpkit.checkpoints import files, integrity
from tests import _tiny
from tests._faults import TERM, TWICE, Disk, Server

_SETS = (
    *("train.steps=8", "train.save_every=2", "train.eval_every=3", "train.keep=1"),
    *("train.warmup_steps=1", "train.tokens_per_step=256"),
)
_WORDS = [word for each in _SETS for word in ("--set", each)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """A recipe, the directory of its undisturbed run, and the disk operations of it."""
    folder = tmp_path_factory.mktemp("whole")
    path = _tiny.write(folder, documents=60)
    disk = Disk(folder / "run", how=TERM)
    with disk.armed():
        _tiny.pretrain(path, folder / "run", *_SETS)
    return path, folder / "run", disk.seen


@pytest.mark.slow
def test_signal_inside_a_save_lets_it_finish_and_leaves(server, whole, tmp_path: Path) -> None:
    path, undisturbed, operations = whole
    inside = [
        number
        for number, operation in enumerate(operations, 1)
        if re.match(r"(save_file|rename) checkpoints/.step-00000004", operation)
    ]
    assert len(inside) == 3
    for number in inside:
        run = tmp_path / f"run{number}"
        ended = server.run("pretrain", path, "--out", run, *_WORDS, disk=(run, number, TERM))
        assert ended.code == 143, ended.stderr
        assert ended.stderr.splitlines()[-1] == (
            "nlpkit: stopped by SIGTERM; saved at step 4; the same command resumes the run"
        )
        latest = files.read_pointer(run, "latest")
        assert latest is not None
        assert latest.name == "step-00000004"
        assert integrity.find_corruption(latest) is None
    ended = server.run("pretrain", path, "--out", run, *_WORDS)
    assert ended.code == 0, ended.stderr
    assert _tiny.metrics(run) == _tiny.metrics(undisturbed)


@pytest.mark.slow
def test_signal_again_leaves_at_once_even_inside_a_save(server, whole, tmp_path: Path) -> None:
    path, undisturbed, operations = whole
    found = [re.match(r"save_file checkpoints/.step-00000004", o) for o in operations]
    number = [bool(each) for each in found].index(True) + 1
    ended = server.run("pretrain", path, "--out", tmp_path, *_WORDS, disk=(tmp_path, number, TWICE))
    assert ended.code == 130
    assert "saved at" not in ended.stderr
    assert "Traceback" not in ended.stderr
    assert files.list_checkpoints(tmp_path)[0].step < 4
    ended = server.run("pretrain", path, "--out", tmp_path, *_WORDS)
    assert ended.code == 0, ended.stderr
    assert _tiny.metrics(tmp_path) == _tiny.metrics(undisturbed)


def _signal_at(server: Server, path: Path, run: Path, seconds: float, number: int) -> str:
    """Send a signal so long after the run directory is locked; return what the last line says."""
    ended = server.run(
        *("pretrain", path, "--out", run, "--set", "train.steps=100000"),
        signals={seconds: number},
        when=(run / "lock", ""),
    )
    assert ended.code == 128 + number, ended
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    said = [line for line in ended.stderr.splitlines() if line.startswith("nlpkit: ")]
    assert len(said) == 1
    name = signal.Signals(number).name
    kept = re.fullmatch(
        rf"nlpkit: stopped by {name}; (nothing was trained yet|saved at step (\d+); .*)", said[0]
    )
    assert kept, said
    if kept[2]:
        assert integrity.find_corruption(files.checkpoint_path(run, int(kept[2]))) is None
    else:
        assert files.list_checkpoints(run) == []
    return kept[1]


@pytest.mark.slow
@pytest.mark.parametrize("trials", [4, 12])
def test_signal_in_any_phase_says_what_is_kept(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    # a text that takes half a second or so to read, so that signals come into that, too
    path = _tiny.write(tmp_path / "text", documents=8_000)
    draw = random.Random(3)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    said = []
    for trial in range(trials):
        monkeypatch.setenv("NLPKIT_CACHE", str(tmp_path / f"cache{trial}"))
        seconds = draw.uniform(0, 0.3) if trial < 2 else draw.uniform(0.3, 1.4)
        run = tmp_path / f"run{trial}"
        said.append(_signal_at(server, path, run, seconds, numbers[trial % 3]))
        assert not list((tmp_path / f"cache{trial}").rglob(".building-*"))
    assert "nothing was trained yet" in said
