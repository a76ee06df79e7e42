"""An index kept in a directory: used, noticed to be old or damaged, never lost."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nlpkit.errors import FileError, UsageError
from nlpkit.score.metrics import bm25, tfidf
from nlpkit.score.search import inverted_index, kept_index
from tests._search_files import call, write_jsonl, write_tsv

SMALL = ["cat dog cat", "dog", "bird cat", ""]
Capture = pytest.CaptureFixture[str]


def _outputs(capsys: Capture, tool: object, *arguments: object) -> tuple[str, str]:
    call(tool, *arguments)  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    return out, err


def test_kept_index_gives_the_same_output_and_is_used(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat dog", "bird"])
    plain, _ = _outputs(capsys, bm25, docs, queries)
    first, err = _outputs(capsys, bm25, docs, queries, "--index", tmp_path / "kept")
    assert "kept, written" in err
    assert first == plain
    monkeypatch.setattr(inverted_index, "build", None)
    again, err = _outputs(capsys, bm25, docs, queries, "--index", tmp_path / "kept")
    assert again == plain
    assert "kept, kept" in err
    # Parameters and formulas need no other index; the documents need not be there any more.
    for arguments in (["--k1", "2"], ["--variant", "bm25+"]):
        _outputs(capsys, bm25, docs, queries, "--index", tmp_path / "kept", *arguments)
    _outputs(capsys, tfidf, docs, queries, "--index", tmp_path / "kept")
    docs.unlink()
    assert _outputs(capsys, bm25, tmp_path / "kept", queries)[0] == plain


def test_kept_index_of_other_documents_or_words_is_made_anew(
    tmp_path: Path, capsys: Capture
) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["Cat eel"])
    kept = ("--index", tmp_path / "kept")
    _outputs(capsys, bm25, docs, queries, *kept)
    write_jsonl(docs, [*SMALL, "eel eel"])
    out, err = _outputs(capsys, bm25, docs, queries, *kept)
    assert "written again, because these changed: documents" in err
    assert out == _outputs(capsys, bm25, docs, queries)[0]
    assert out.split()[2] == "d4"
    out, err = _outputs(capsys, bm25, docs, queries, *kept, "--no-lowercase")
    assert "written again, because these changed: lowercase" in err
    assert [line.split()[2] for line in out.splitlines()] == ["d4"]
    # What a query does with the index is that of the index.
    assert _outputs(capsys, bm25, tmp_path / "kept", queries)[0] == out
    with pytest.raises(UsageError, match=r"made with tokenize word, not char"):
        call(bm25, tmp_path / "kept", queries, "--tokenize", "char")
    assert len(list((tmp_path / "kept").iterdir())) == 2


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-4 if path.suffix == ".npy" else 3] ^= 1  # a count, or a letter of an identifier
    path.write_bytes(raw)


def _swap(path: Path) -> None:
    array = np.load(path)
    np.save(path, array + 1000)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("documents.npy", _cut),
        ("documents.npy", _swap),
        ("starts.npy", _swap),
        ("counts.npy", Path.unlink),
        ("terms.json", _cut),
        ("ids.json", Path.unlink),
        ("counts.npy", _flip),  # consistent with the other arrays
        ("ids.json", _flip),
    ],
)
def test_kept_index_damaged_is_an_error_that_names_it(
    tmp_path: Path, file: str, damage: Callable[[Path], None], capsys: Capture
) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat"])
    call(bm25, docs, queries, "--index", tmp_path / "kept")
    (folder,) = (tmp_path / "kept").glob("data-*")
    damage(folder / file)
    capsys.readouterr()
    with pytest.raises(FileError, match=r"kept: a damaged index .*; remove it"):
        call(bm25, docs, queries, "--index", tmp_path / "kept")
    assert "kept, kept" not in capsys.readouterr().err
    with pytest.raises(FileError, match=r"kept: a damaged index .*; remove it"):
        call(bm25, tmp_path / "kept", queries)


def test_kept_index_of_an_earlier_version_without_hashes_is_used(
    tmp_path: Path, capsys: Capture
) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat"])
    first, _ = _outputs(capsys, bm25, docs, queries, "--index", tmp_path / "kept")
    head = json.loads((tmp_path / "kept" / "index.json").read_text())
    assert head.pop("hashes")
    (tmp_path / "kept" / "index.json").write_text(json.dumps(head))
    again, err = _outputs(capsys, bm25, docs, queries, "--index", tmp_path / "kept")
    assert (again, "kept, kept" in err) == (first, True)


def test_kept_index_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("x")
    with pytest.raises(UsageError, match="mine is no index, and not empty"):
        call(bm25, docs, queries, "--index", tmp_path / "mine")
    with pytest.raises(UsageError, match="is no directory"):
        call(bm25, docs, queries, "--index", docs)
    with pytest.raises(FileError, match="mine: holds no index"):
        call(bm25, tmp_path / "mine", queries)


def test_kept_index_save_that_fails_keeps_the_old_one(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat"])
    old, _ = _outputs(capsys, bm25, docs, queries, "--index", tmp_path / "kept")
    write_jsonl(docs, ["other"])

    def full(number: int) -> None:
        raise OSError(28, os.strerror(28))

    # Four arrays, two lists, and what names their folder.
    for nth in range(7):
        calls = iter(range(100))
        monkeypatch.setattr(
            os, "fsync", lambda number, c=calls, n=nth: full(number) if next(c) == n else None
        )
        with pytest.raises(FileError, match="kept: cannot be written: No space left"):
            call(bm25, docs, queries, "--index", tmp_path / "kept")
    monkeypatch.undo()
    assert len(list((tmp_path / "kept").iterdir())) == 2
    capsys.readouterr()
    assert _outputs(capsys, bm25, tmp_path / "kept", queries)[0] == old


def test_kept_index_fingerprint_is_of_the_bytes(tmp_path: Path) -> None:
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).write_text(text)
    a, b, c = (kept_index.fingerprint(str(tmp_path / name)) for name in "abc")
    assert a == b != c
    with pytest.raises(FileError, match="missing: no such file"):
        kept_index.fingerprint(str(tmp_path / "missing"))


def test_kept_index_left_by_a_killed_writer_is_cleared_by_the_next(tmp_path: Path) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat"])
    call(bm25, docs, queries, "--index", tmp_path / "kept")
    (tmp_path / "kept" / "data-0123").mkdir()
    (tmp_path / "kept" / "data-0123" / "starts.npy").write_bytes(b"half")
    write_jsonl(docs, ["cat"])
    call(bm25, docs, queries, "--index", tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert kept_index.load(tmp_path / "kept")[0].ids == ["d0"]


def test_kept_index_replaced_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat"])
    call(bm25, docs, queries, "--index", tmp_path / "kept")
    load = np.load

    def replaced_first(*arguments: object, **options: object) -> np.ndarray:
        monkeypatch.undo()
        write_jsonl(docs, ["cat", "new"])
        call(bm25, docs, queries, "--index", tmp_path / "kept")
        return load(*arguments, **options)

    monkeypatch.setattr(np, "load", replaced_first)
    assert kept_index.load(tmp_path / "kept")[0].ids == ["d0", "d1"]


def test_kept_index_of_another_unicode_is_said(tmp_path: Path, capsys: Capture) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat"])
    call(bm25, docs, queries, "--index", tmp_path / "kept")
    head = tmp_path / "kept" / "index.json"
    text = head.read_text()
    found = json.loads(text)
    found["settings"]["unicode"] = "3.0"
    head.write_text(json.dumps(found))
    assert "made with unicode 3.0, here is" in _outputs(capsys, bm25, tmp_path / "kept", queries)[1]
    head.write_text(text.replace('"word"', '"other"'))
    with pytest.raises(FileError, match="a damaged index"):
        call(bm25, tmp_path / "kept", queries)
    head.write_text(text.replace('"layout": 1', '"layout": 0'))
    with pytest.raises(FileError, match="an index of another version; give its documents again"):
        call(bm25, tmp_path / "kept", queries)
    _, err = _outputs(capsys, bm25, docs, queries, "--index", tmp_path / "kept")
    assert "kept, written" in err


def test_kept_index_of_documents_from_stdin_is_written_each_time(
    tmp_path: Path, capsys: Capture
) -> None:
    queries = write_tsv(tmp_path / "q.tsv", ["cat"])
    program = (
        "import argparse, sys\n"
        "from nlpkit.score.metrics import bm25\n"
        "parser = argparse.ArgumentParser()\n"
        "bm25.add_arguments(parser)\n"
        "bm25.run(parser.parse_args(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, "-", str(queries), "--index", str(tmp_path / "kept")]
    for text, hit in (("cat\n", "1"), ("dog\ncat\n", "2")):
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[2] == hit
    call(bm25, tmp_path / "kept", queries)
    assert capsys.readouterr().out.split()[2] == "2"
