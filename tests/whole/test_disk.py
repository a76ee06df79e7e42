"""Errors of the disk are one line that names the path and the cause."""

import json
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from nlpkit.disk import name_path_in_errors, whole_file, write_json
from nlpkit.errors import FileError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, os.strerror(28)), "no space left on the disk"),
        (FileExistsError(17, os.strerror(17)), "a file is where a directory has to be"),
        (NotADirectoryError(20, os.strerror(20)), "a file is where a directory has to be"),
        (SafetensorError("I/O error: No space left (os error 28)"), "no space left on the disk"),
        (SafetensorError("I/O error: File too large (os error 27)"), "File too large"),
        (SafetensorError("header too large"), "header too large"),
    ],
)
def test_error_of_the_disk_names_path_and_cause(error: Exception, said: str) -> None:
    with pytest.raises(FileError) as caught, name_path_in_errors(Path("d/f")):
        raise error
    assert str(caught.value) == f"d/f: cannot be written: {said}"


def test_json_with_a_path_that_is_not_utf8_reads_back(tmp_path: Path) -> None:
    names = [os.fsdecode(b"ordner \xff"), "中文"]
    write_json(tmp_path / "a.json", names)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == names
    assert "中文" in text


def _write_until_the_disk_is_full(path: Path) -> None:
    with whole_file(path) as file:
        file.write("half of a r")
        file.flush()
        raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("before", [None, "earlier\n"])
def test_file_is_whole_or_as_it_was_when_the_disk_is_full(
    tmp_path: Path, before: str | None
) -> None:
    path = tmp_path / "rows.jsonl"
    if before is not None:
        path.write_text(before)
    with pytest.raises(FileError, match="no space left on the disk"):
        _write_until_the_disk_is_full(path)
    assert (path.read_text() if path.exists() else None) == before
    assert list(tmp_path.iterdir()) == ([] if before is None else [path])

    with whole_file(path) as file:
        file.write("one row\n")
    assert path.read_text() == "one row\n"


def test_whole_file_writes_through_a_link_and_to_a_device(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    with whole_file(link) as file:
        file.write("text")
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "text"
    full = Path("/dev/full")
    with pytest.raises(FileError, match="full: cannot be written: no space"), whole_file(full) as f:
        f.write("text")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_whole_file_writes_into_a_pipe_that_is_open(folder: str) -> None:
    reading, writing = os.pipe()
    with whole_file(Path(folder, str(writing))) as file:
        file.write("text")
    os.close(writing)
    with open(reading, encoding="utf-8") as stream:
        assert stream.read() == "text"


def test_whole_file_writes_an_open_file_at_its_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "red.txt"
    number = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(number, b"before\n")
    with whole_file(Path(f"/dev/fd/{number}")) as file:
        file.write("text\n")
    os.write(number, b"after\n")
    os.close(number)
    assert path.read_text() == "before\ntext\nafter\n"
    assert list(tmp_path.iterdir()) == [path]

    with whole_file(Path("/dev/stdout")) as file:
        file.write("rows\n")
    os.write(1, b"table\n")
    assert capfd.readouterr().out == "rows\ntable\n"
