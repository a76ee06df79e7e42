"""An index kept in a directory: used, noticed to be old or damaged, never lost."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nlpkit.errors import FileError, UsageError
from nlpkit.score import _kept_index, _search_index, bm25, tfidf
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
    monkeypatch.setattr(_search_index, "build", None)
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
    assert "written anew, for these changed: documents" in err
    assert out == _outputs(capsys, bm25, docs, queries)[0]
    assert out.split()[2] == "d4"
    out, err = _outputs(capsys, bm25, docs, queries, *kept, "--no-lowercase")
    assert "written anew, for these changed: lowercase" in err
    assert [line.split()[2] for line in out.splitlines()] == ["d4"]
    # What a query does with the index is that of the index.
    assert _outputs(capsys, bm25, tmp_path / "kept", queries)[0] == out
    with pytest.raises(UsageError, match=r"made with tokenize word, not char"):
        call(bm25, tmp_path / "kept", queries, "--tokenize", "char")
    assert len(list((tmp_path / "kept").iterdir())) == 2


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


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
    ],
)
def test_kept_index_damaged_is_an_error_that_names_it(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    docs, queries = write_jsonl(tmp_path / "d.jsonl", SMALL), tmp_path / "q.tsv"
    write_tsv(queries, ["cat"])
    call(bm25, docs, queries, "--index", tmp_path / "kept")
    (folder,) = (tmp_path / "kept").glob("data-*")
    damage(folder / file)
    with pytest.raises(FileError, match=r"kept: a damaged index .*; remove it"):
        call(bm25, docs, queries, "--index", tmp_path / "kept")


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
    a, b, c = (_kept_index.fingerprint(str(tmp_path / name)) for name in "abc")
    assert a == b != c
    with pytest.raises(FileError, match="missing: no such file"):
        _kept_index.fingerprint(str(tmp_path / "missing"))
