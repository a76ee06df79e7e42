"""Checkpoints made of links, pipes and devices; and one to go on from whose own start is gone."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nlpkit.checkpoints import files, integrity
from tests import _tiny
from tests._faults import Ended, Server

_SETS = (
    *("train.steps=3", "train.save_every=2", "data.valid=[]", "train.tokens_per_step=256"),
    *("train.eval_every=null", "train.warmup_steps=1"),
)
_FILES = ("config.json", "model.safetensors", "vocab.txt")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tiny.yaml`, its run of 3 steps in `run`, and the text of a recipe that begins
    at START in `start.yaml`."""
    folder = tmp_path_factory.mktemp("base")
    path = _tiny.write(folder, documents=60)
    _tiny.pretrain(path, folder / "run", *_SETS)
    text = path.read_text(encoding="utf-8")
    head, _, tail = text.partition("model: {")
    text = head + "init_from: START\n" + tail[tail.index("}\n") + 2 :]
    (folder / "start.yaml").write_text(text, encoding="utf-8")
    return folder


def _begin_at(base: Path, start: Path, place: Path, tokenizer: str = "") -> Path:
    """Write the recipe that begins at `start`; with its tokenizer, or one grown as is said."""
    text = (base / "start.yaml").read_text(encoding="utf-8").replace("START", str(start))
    lines = [line for line in text.splitlines() if not line.startswith("tokenizer:")]
    place.write_text("\n".join([*lines, tokenizer]) + "\n", encoding="utf-8")
    return place


def _run(server: Server, *arguments: object) -> Ended:
    words = [word for each in _SETS for word in ("--set", each)]
    # what waits for the end of a pipe is killed, and its code says so
    return server.run("pretrain", *arguments, *words, signals={20: signal.SIGKILL})


def _linked(plain: Path, folder: Path) -> Path:
    """Return a copy of a checkpoint as Hugging Face's cache keeps one."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(plain.iterdir()):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    return snapshot


def _weights(run: Path) -> bytes:
    place = files.read_pointer(run, "latest")
    assert place is not None
    return (place / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_checkpoint_of_links_to_files_is_as_good_as_one_of_files(
    server, base: Path, tmp_path: Path
) -> None:
    plain = files.checkpoint_path(base / "run", 2)
    linked = _linked(plain, tmp_path / "cache")
    for name, start in (("plain", plain), ("linked", linked)):
        recipe = _begin_at(base, start, tmp_path / f"{name}.yaml")
        ended = _run(server, recipe, "--out", tmp_path / name)
        assert ended.code == 0, ended.stderr
    assert _weights(tmp_path / "plain") == _weights(tmp_path / "linked")
    ended = _run(server, base / "tiny.yaml", "--out", tmp_path / "on", "--resume", linked)
    assert ended.code == 0, ended.stderr
    assert _weights(tmp_path / "on") == _weights(base / "run")


_ODD: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a directory": lambda path: path.symlink_to("/etc"),
}


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("odd", _ODD)
@pytest.mark.parametrize("name", _FILES)
def test_start_with_something_that_is_no_file_is_exit_4_and_named(
    server, base: Path, tmp_path: Path, name: str, odd: str
) -> None:
    start = tmp_path / "start"
    shutil.copytree(files.checkpoint_path(base / "run", 2), start)
    (start / "manifest.json").unlink()  # it would tell
    (start / name).unlink()
    _ODD[odd](start / name)
    recipe = _begin_at(base, start, tmp_path / "r.yaml")
    ended = _run(server, recipe, "-q", "--out", tmp_path / "out")
    assert ended.code == 4, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert str(start) in line
    assert "no tokenizer here" in line or f"{name}: not a regular file" in line


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", [*_FILES, "manifest.json", "training.json"])
def test_pipe_in_a_checkpoint_to_resume_is_exit_4_and_named(
    server, base: Path, tmp_path: Path, name: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(files.checkpoint_path(base / "run", 2), broken)
    (broken / name).unlink()
    os.mkfifo(broken / name)
    ended = _run(server, base / "tiny.yaml", "-q", "--out", tmp_path / "out", "--resume", broken)
    assert ended.code == 4, ended.stderr
    assert ended.stderr == f"nlpkit: {broken}: not a valid checkpoint: {name} is missing\n"


def test_checkpoint_moved_away_and_linked_is_not_pruned_through_the_link(
    server, base: Path, tmp_path: Path
) -> None:
    run, kept = tmp_path / "run", tmp_path / "archive"
    sets = ("--set", "train.keep=1", "--set", "train.save_every=1")
    words = [base / "tiny.yaml", "--out", run]
    for each in (*_SETS, "train.steps=1"):
        words += ["--set", each]
    assert server.run("pretrain", *words, *sets).code == 0
    place = files.checkpoint_path(run, 1)
    place.rename(kept)
    place.symlink_to(kept)
    ended = _run(server, base / "tiny.yaml", "--out", run, "--allow-change", *sets)
    assert ended.code == 0, ended.stderr
    assert [found.step for found in files.list_checkpoints(run)] == [3]
    assert not place.is_symlink()
    assert integrity.find_corruption(kept) is None


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param("", marks=pytest.mark.slow),
        "tokenizer: {kind: cpm_ant, vocab_size: 210}",
    ],
)
def test_resume_of_a_named_checkpoint_needs_no_init_from(
    server, base: Path, tmp_path: Path, tokenizer: str
) -> None:
    start = tmp_path / "start"
    shutil.copytree(files.checkpoint_path(base / "run", 2), start)
    recipe = _begin_at(base, start, tmp_path / "r.yaml", tokenizer)
    ended = _run(server, recipe, "--out", tmp_path / "whole")
    assert ended.code == 0, ended.stderr
    shutil.rmtree(start)
    ended = _run(
        *(server, recipe, "--out", tmp_path / "new"),
        *("--resume", files.checkpoint_path(tmp_path / "whole", 2)),
    )
    assert ended.code == 0, ended.stderr
    assert _weights(tmp_path / "new") == _weights(tmp_path / "whole")
    # a run that begins there does
    ended = _run(server, recipe, "--out", tmp_path / "other")
    assert ended.code == 4
    assert str(start) in ended.stderr
