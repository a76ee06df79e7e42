"""A disk that fails at any operation: said in one line, nothing lost, the same command goes on.

In the manner of SQLite's tests (sqlite.org/testing.html, 3.2 and 3.3): the N-th operation fails,
for N = 1, 2, ... until none is left to fail.
"""

import itertools
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nlpkit.checkpoints import files, integrity
from nlpkit.errors import FileError
from tests import _tiny
from tests._faults import EIO, ENOSPC, Disk

# A save because it is time, one because it is the best so far, and an old one to remove.
_SHORT = (
    *("train.steps=3", "train.save_every=2", "train.eval_every=3", "train.keep=1"),
    *("train.warmup_steps=1", "train.tokens_per_step=256"),
)
_LONG = (*_SHORT, "train.steps=8")
_WORDS = {ENOSPC: "no space left on", EIO: "input/output error"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe and the directory of its run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    path = _tiny.write(folder, documents=60)
    _tiny.pretrain(path, folder / "run", *_SHORT)
    return path, folder / "run"


def _must_go_on(path: Path, run: Path, undisturbed: Path, sets: tuple[str, ...] = _SHORT) -> None:
    """Check that what is there is sound, and that the same command ends as if undisturbed."""
    for found in files.list_checkpoints(run):
        assert integrity.find_corruption(found.path) is None
        assert re.fullmatch(r"step-\d{8}", found.path.name)
    with Disk(run).armed():
        _tiny.pretrain(path, run, *sets)
    assert _tiny.metrics(run) == _tiny.metrics(undisturbed)
    for name in ("latest", "best"):
        ours, theirs = files.read_pointer(run, name), files.read_pointer(undisturbed, name)
        assert ours is not None
        assert theirs is not None
        assert ours.name == theirs.name
        assert (ours / "model.safetensors").read_bytes() == (
            theirs / "model.safetensors"
        ).read_bytes()
    kept = {p.name for p in (undisturbed / "checkpoints").iterdir()}
    assert {p.name for p in (run / "checkpoints").iterdir()} == kept


def _fail_at(number: int, how: str, path: Path, run: Path, sets: tuple[str, ...]) -> Disk:
    """Run with operation `number` failing; check that it is said in one line that names the run."""
    disk = Disk(run, number, how)
    said = ""
    try:
        with disk.armed():
            _tiny.pretrain(path, run, *sets)
    except FileError as error:
        said = str(error)
    if len(disk.seen) >= number:
        where = f"operation {number}, {disk.seen[number - 1]}, was answered by: {said!r}"
        assert _WORDS[how] in said.lower(), where
        assert str(run) in said, where
        assert "\n" not in said, where
    return disk


def _fail_at_every_operation(
    path: Path,
    undisturbed: Path,
    folder: Path,
    how: list[str],
    sets: tuple[str, ...] = _SHORT,
    first: int = 1,
    step: int = 1,
) -> int:
    """Let operations fail in turn, each in the next way of `how`; return how many there are."""
    for number in itertools.count(first, step):
        run = folder / f"run{number}"
        disk = _fail_at(number, how[number // step % len(how)], path, run, sets)
        if len(disk.seen) < number:
            return number - 1
        _must_go_on(path, run, undisturbed, sets)
        shutil.rmtree(run)
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    "first", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 17))]
)
def test_save_whatever_operation_fails_nothing_is_lost(whole, tmp_path: Path, first: int) -> None:
    """Every sixteenth operation, from the `first` on."""
    path, undisturbed = whole
    # mkdir, opens, fsyncs, renames of two saves, of the run's own files, pointers and removals
    ways = [ENOSPC, EIO]
    count = _fail_at_every_operation(path, undisturbed, tmp_path, ways, first=first, step=16)
    assert count > 60


@pytest.mark.slow
@pytest.mark.parametrize("how", [ENOSPC, EIO])
def test_save_of_a_longer_run_whatever_fails_nothing_is_lost(
    whole, tmp_path: Path, how: str
) -> None:
    path, _ = whole
    _tiny.pretrain(path, tmp_path / "undisturbed", *_LONG)
    assert _fail_at_every_operation(path, tmp_path / "undisturbed", tmp_path, [how], _LONG) > 120


# The first operation that fails, and then every third one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "first"),
    [
        (ENOSPC, 1),
        *(pytest.param(ENOSPC, first, marks=pytest.mark.slow) for first in (2, 3)),
        *(pytest.param(EIO, first, marks=pytest.mark.slow) for first in (1, 2, 3)),
    ],
)
def test_cache_whatever_operation_fails_is_said_or_done_without(
    whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, first: int
) -> None:
    path, undisturbed = whole
    for number in itertools.count(first, 3):
        cache, run = tmp_path / f"cache{number}", tmp_path / f"run{number}"
        cache.mkdir()
        monkeypatch.setenv("NLPKIT_CACHE", str(cache))
        disk = Disk(cache, number, how)
        said = ""
        try:
            with disk.armed():
                _tiny.pretrain(path, run, *_SHORT)
        except FileError as error:
            said = str(error)
        where = f"operation {number}, {disk.seen[number - 1 :][:1]}, was answered by: {said!r}"
        if said:
            assert _WORDS[how] in said.lower(), where
            assert str(cache) in said, where
        _must_go_on(path, run, undisturbed)
        rubbish = [p for p in cache.rglob(".*") if p.is_dir()]
        assert rubbish == [], where
        if len(disk.seen) < number:
            break
    assert number > 10


def test_save_on_a_full_disk_says_so_and_goes_on_when_there_is_space(whole, tmp_path: Path) -> None:
    path, undisturbed = whole
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(disk)]
    mounted = subprocess.run(options, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    run = disk / "run"
    sets = [word for each in _SHORT for word in ("--set", each)]
    try:
        # room for the first checkpoint (340 kB), not for the second
        full = _tiny.command("pretrain", path, "--out", run, *sets)
        assert full.returncode == 4, full.stderr
        last = full.stderr.splitlines()[-1]
        assert last.startswith(f"nlpkit: {run}/checkpoints/step-00000003")
        assert "no space left on" in last.lower()
        assert "Traceback" not in full.stderr
        assert [found.step for found in files.list_checkpoints(run)] == [2]
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        _must_go_on(path, run, undisturbed)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextmanager
def _small_files() -> Iterator[None]:
    # model.safetensors is larger, everything before it smaller
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    yield


def test_save_beyond_the_largest_file_allowed_is_an_error_not_a_silent_death(
    whole, tmp_path: Path
) -> None:
    path, undisturbed = whole
    run = tmp_path / "run"
    sets = [word for each in _SHORT for word in ("--set", each)]

    result = _tiny.command("pretrain", path, "--out", run, *sets, around=_small_files)
    assert result.returncode == 4, (result.returncode, result.stderr)
    assert "File too large" in result.stderr.splitlines()[-1]
    assert str(run) in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert files.list_checkpoints(run) == []
    _must_go_on(path, run, undisturbed)
