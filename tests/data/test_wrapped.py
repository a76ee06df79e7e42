"""Text whose lines a program has wrapped is told from text with a document a line."""

import gzip
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from nlpkit.contracts.reader import TextFile
from nlpkit.data import wrapped
from tests import _processes
from tests.conftest import REAL_DATA

DATA = Path(__file__).parents[2] / "data"


def _documents(folder: str) -> list[str]:
    files = sorted((DATA / folder / "train").glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()[:100]]
    return [json.loads(line)["text"].replace("\n", " ") for line in lines]


def _divided(documents: list[list[str]]) -> list[str]:
    """The lines of documents, with an empty line after each."""
    return [line for document in documents for line in (*document, "")]


@pytest.mark.parametrize("width", [45, 72, 100])
def test_wrapped_english_is_found_with_its_width(width: int) -> None:
    found = wrapped.find_width(_divided([textwrap.wrap(text, width) for text in _documents("en")]))
    assert found is not None
    assert width - 2 <= found <= width


def test_wrapped_chinese_is_found_with_two_columns_a_character() -> None:
    lines = _divided(
        [[text[at : at + 30] for at in range(0, len(text), 30)] for text in _documents("zh")]
    )
    assert wrapped.find_width(lines) == 60


def test_a_poor_wrap_is_found() -> None:
    # Every third line ends a word or two early, as people wrap.
    texts = (" ".join(_documents("en")[at : at + 10]) for at in range(0, 100, 10))
    lines = [textwrap.wrap(text, 70) for text in texts]
    uneven = [
        [line.rsplit(" ", 3)[0] if not number % 3 else line for number, line in enumerate(text)]
        for text in lines
    ]
    assert wrapped.find_width(_divided(uneven)) is not None


@pytest.mark.parametrize("folder", ["en", "zh"])
def test_a_document_a_line_is_not_wrapped(folder: str) -> None:
    documents = _documents(folder)
    assert wrapped.find_width(documents) is None
    assert wrapped.find_width(_divided([[text] for text in documents])) is None
    # Sentences, each a line, with an empty line between two texts.
    sentences = [text.replace(". ", ".\n").replace("。", "。\n").splitlines() for text in documents]
    assert wrapped.find_width(_divided([list(filter(None, each)) for each in sentences])) is None


def test_lists_verses_and_talk_are_not_wrapped() -> None:
    words = [["apple", "banana", "cherry", "durian"] * 10] * 10
    assert wrapped.find_width(_divided(words)) is None
    poems = [["床前明月光，疑是地上霜。", "举头望明月，低头思故乡。"] * 4] * 20
    assert wrapped.find_width(_divided(poems)) is None
    sonnet = [
        "Shall I compare thee to a summer's day?",
        "Thou art more lovely and more temperate:",
        "Rough winds do shake the darling buds of May,",
        "And summer's lease hath all too short a date;",
    ]
    assert wrapped.find_width(_divided([sonnet * 3] * 10)) is None
    assert wrapped.find_width([]) is None
    assert wrapped.find_width(["one line"]) is None


def test_wrapped_lines_without_an_empty_one_are_left_alone() -> None:
    # `format: paragraphs` would make a single document of them.
    lines = textwrap.wrap(" ".join(_documents("en")), 72)
    assert wrapped.find_width(lines) is None


def test_warning_counts_the_lines_and_the_paragraphs(tmp_path: Path) -> None:
    text = "\n\n\n".join(textwrap.fill(text, 60) for text in _documents("en"))
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress(text.replace("\n", "\r\n").encode()))
    (warning,) = wrapped.describe(TextFile(str(path), "book.txt.gz", "text", gzip=True))
    documents = sum(bool(line) for line in text.split("\n"))
    paragraphs = len(_documents("en"))
    assert warning == (
        f"book.txt.gz: its text is wrapped at 60 columns, and each of its {documents:,} lines is a "
        f"document; data.format: paragraphs makes the {paragraphs:,} texts between empty lines the "
        "documents"
    )


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        ((), 1),
        (("data.on_error=skip",), 1),
        (("data.format=paragraphs",), 0),
        (("data.line_break=<br>",), 0),
    ],
)
def test_commands_warn_of_it(tmp_path: Path, change: tuple[str, ...], warned: int) -> None:
    text = "\n\n".join(textwrap.fill(text, 60) for text in _documents("en"))
    (tmp_path / "book.txt").write_text(text, "utf-8")
    sets = ["data.train=[book.txt]", "data.valid=[data/en/valid/*.jsonl]", *change]
    options = [word for each in sets for word in ("--set", each)]
    ended = _processes.command("plan", "gpt2", "--no-probe", *options, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("data.format: paragraphs makes the") == warned


def _corpora() -> Iterator[Path]:
    return (path for folder in ("en_10m", "zh_20m") for path in (REAL_DATA / folder).glob("*.gz"))


@pytest.mark.real_data
def test_real_corpora_with_a_document_a_line_are_not_wrapped() -> None:
    seen = 0
    for path in _corpora():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts = [json.loads(line)["text"] for _, line in zip(range(400), file, strict=False)]
        lines = [line for text in texts for line in (*text.split("\n"), "")]
        assert wrapped.find_width(lines[:5000]) is None, path
        seen += 1
    assert seen > 20
