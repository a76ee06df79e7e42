"""kill -9 at random moments and aimed into saves, in real processes: no run is ever lost.

After each kill the same command goes on from a good checkpoint, repeats at most `save_every` steps,
and ends with the metrics of an undisturbed run.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from nlpkit.checkpoints import files, integrity
from nlpkit.checkpoints.run_directory import RunDirectory
from tests import _tiny
from tests._faults import KILL, Disk, Ended, Server

_EVERY = 2
_SETS = (
    *("train.steps=8", f"train.save_every={_EVERY}", "train.eval_every=3", "train.keep=1"),
    *("train.warmup_steps=1", "train.tokens_per_step=256"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """A recipe, the directory of its undisturbed run, and how many disk operations that took."""
    folder = tmp_path_factory.mktemp("whole")
    path = _tiny.write(folder, documents=60)
    disk = Disk(folder / "run", how=KILL)
    with disk.armed():
        _tiny.pretrain(path, folder / "run", *_SETS)
    return path, folder / "run", len(disk.seen)


def _start(server: Server, path: Path, run: Path, **faults: object) -> Ended:
    sets = [word for each in _SETS for word in ("--set", each)]
    return server.run("pretrain", path, "--out", run, *sets, **faults)  # type: ignore[arg-type]


def _steps(run: Path) -> int:
    """Return the last step whose record is whole in `metrics.jsonl`."""
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def _check_kill(run: Path, ended: Ended) -> None:
    """Check what a kill left: the newest checkpoint is good and at most `save_every` steps old."""
    assert ended.code == -signal.SIGKILL, ended
    found = files.list_checkpoints(run)
    for each in found:
        assert integrity.find_corruption(each.path) is None
    newest = found[0].step if found else 0
    # one more where the kill came into the save itself
    assert 0 <= _steps(run) - newest <= _EVERY, (newest, _steps(run))


def _check_end(ended: Ended, run: Path, undisturbed: Path) -> None:
    """Check that the run ended as if nothing had happened."""
    assert ended.code == 0, ended.stderr
    assert _tiny.metrics(run) == _tiny.metrics(undisturbed)
    for name in ("latest", "best"):
        ours, theirs = files.read_pointer(run, name), files.read_pointer(undisturbed, name)
        assert ours is not None
        assert theirs is not None
        assert ours.name == theirs.name
        weights = "model.safetensors"
        assert (ours / weights).read_bytes() == (theirs / weights).read_bytes()
    assert ended.stdout == f"{run}/checkpoints/step-00000008\n"


def _kill_inside(server: Server, path: Path, run: Path, undisturbed: Path, at: list[int]) -> int:
    """Kill run after run of one directory at these operations, then let it end; return kills."""
    kills = 0
    for number in at:
        ended = _start(server, path, run, disk=(run, number, KILL))
        if ended.code == 0:
            break
        _check_kill(run, ended)
        kills += 1
    _check_end(_start(server, path, run), run, undisturbed)
    shutil.rmtree(run)
    return kills


def _kill_at_random(server: Server, whole: tuple[Path, Path, int], folder: Path, count: int) -> int:
    """Kill at `count` random moments of a run's life; return how many came before its end."""
    path, undisturbed, _ = whole
    draw = random.Random(count)
    whole_time = _start(server, path, folder / "timed").seconds
    kills = 0
    while kills < count:
        run = folder / f"run{kills}"
        for _ in range(2):  # and the run that goes on is killed, too
            ended = _start(server, path, run, signals={draw.uniform(0, whole_time): 9})
            if ended.code == 0:
                whole_time = min(whole_time, ended.seconds)  # the first one was slower
                break
            _check_kill(run, ended)
            kills += 1
        _check_end(_start(server, path, run), run, undisturbed)
    return kills


@pytest.mark.slow
def test_kill_inside_a_save_loses_nothing(server, whole, tmp_path: Path) -> None:
    path, undisturbed, operations = whole
    draw = random.Random(1)
    aims = [draw.randrange(1, operations) for _ in range(3)]
    kills = sum(
        _kill_inside(server, path, tmp_path / f"run{n}", undisturbed, [aim])
        for n, aim in enumerate(aims)
    )
    assert kills == 3


def test_kill_at_any_moment_loses_nothing(server, whole, tmp_path: Path) -> None:
    assert _kill_at_random(server, whole, tmp_path, 4) >= 4


@pytest.mark.slow
def test_killed_run_with_workers_leaves_neither_lock_nor_workers(server, tmp_path: Path) -> None:
    path, run = _tiny.write(tmp_path, documents=60), tmp_path / "run"
    # A step of 4096 tokens is more than a pipe holds: a worker waits until somebody reads it.
    words = [path, "--out", run]
    sizes = ("train.tokens_per_step=4096", "train.tokens_per_batch=4096", "train.steps=5")
    for each in ("train.workers=2", *sizes):
        words += ["--set", each]
    begun = (run / "metrics.jsonl", '"step": 2')
    ended = server.run("pretrain", *words, when=begun, signals={0: signal.SIGKILL})
    assert ended.code == -signal.SIGKILL, ended
    killed = int((run / "lock").read_text().split()[1])
    # The process was the leader of a group that only its workers share.
    until = time.monotonic() + 30
    while _is_group(killed) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _is_group(killed)
    ended = server.run("pretrain", *words)
    assert ended.code == 0, ended.stderr


def test_lock_is_free_while_a_worker_of_the_killed_run_still_lives(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with RunDirectory(tmp_path).locked():
        worker = context.Process(target=lambda: (theirs.send("started"), time.sleep(60)))
        worker.start()
        assert ours.recv() == "started"
    try:
        with RunDirectory(tmp_path).locked():
            pass
    finally:
        worker.kill()
        worker.join()


def _is_group(number: int) -> bool:
    """Return whether a process of this group is alive."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_kill_inside_a_save_at_every_operation_loses_nothing(server, whole, tmp_path: Path) -> None:
    path, undisturbed, operations = whole
    draw = random.Random(2)
    # every operation of the first life of a run, and a random one of its second
    kills = [
        _kill_inside(
            server, path, tmp_path / "run", undisturbed, [aim, draw.randrange(1, operations)]
        )
        for aim in range(1, operations + 1)
    ]
    assert sum(kills) >= operations > 100
    print(f"{sum(kills)} kills inside saves, 0 runs lost")


@pytest.mark.slow
def test_kill_at_a_hundred_random_moments_loses_nothing(server, whole, tmp_path: Path) -> None:
    print(f"{_kill_at_random(server, whole, tmp_path, 100)} kills at random moments, 0 runs lost")
