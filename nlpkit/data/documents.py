"""Files -> documents, counted; tokenising them is `store`'s work.

Formats: `text` (a document a line), `paragraphs` (documents between blank lines), `sentences`
(the same, each line a sentence); `document_rows` has `jsonl`, `tsv`, `parallel` (a document is a
pair of lines) and the rows of readers.
Everything is UTF-8, only `\\n` ends a line, and every document knows the line it starts at.
Nothing is dropped without being counted in `Counts`.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nlpkit.contracts.reader import Bad, Counts, RowError, TextFile
from nlpkit.data import formats
from nlpkit.data.files import Input
from nlpkit.data.lines import decode, lines, wrong_character
from nlpkit.data.settings import Config, Part
from nlpkit.errors import DataError, UsageError
from nlpkit.plural import all_of, number_of

_BETWEEN_BLANK_LINES = ("paragraphs", "sentences")  # formats whose documents have several lines


@dataclass(frozen=True)
class Rows:
    """How to find the text in a row; a field that the format does not need is None.

    `key` is a key, a column, a path or a template; `names` are those of the columns of a tsv file
    with a header, where several are read.
    """

    format: str
    key: str | None = None
    column: int | None = None
    columns: int | None = None
    line_break: str | None = None
    names: tuple[str, ...] | None = None

    def identity(self) -> dict[str, Any]:
        """Return what decides the texts, as JSON; of a plain key the same as in old caches."""
        found = asdict(self)
        return found if self.names is not None else {k: found[k] for k in found if k != "names"}

    @property
    def has_header(self) -> bool:
        return self.columns is not None


def rows_of(file: TextFile, text_key: str | list[str], line_break: str | None) -> Rows:
    """Return how the rows of `file` are read; reads the header of a tsv file.

    A `text_key` made of digits is a column, counted from 1, of a tsv file without a header; the
    texts of several keys are joined with a line break.
    """
    if isinstance(text_key, list):
        from nlpkit.data import template

        text_key = template.as_template(text_key) if len(text_key) > 1 else text_key[0]
    if file.format == "jsonl":
        return Rows("jsonl", key=text_key)
    if file.format in _BETWEEN_BLANK_LINES:
        return Rows(file.format)
    if file.format == "text":
        return Rows("text", line_break=line_break)
    if file.format == "parallel":
        return Rows("parallel", line_break=line_break)
    if formats.documents(file.format) == "rows":
        return Rows(file.format, key=text_key)
    if file.format != "tsv":
        raise UsageError(
            f"{file.name}: {file.format} is read for the rows of a task (a classification, say); "
            "for running text make it jsonl or tsv"
        )
    from nlpkit.data import document_rows

    return document_rows.tsv_rows(file, text_key, line_break)


def records(raw_lines: Iterator[bytes], rows: Rows, counts: Counts) -> Iterator[tuple[int, bytes]]:
    """Yield each row and the number of the line it starts at, counting lines and blank ones."""
    return (_paragraphs if rows.format in _BETWEEN_BLANK_LINES else _single_lines)(
        raw_lines, counts
    )


def _single_lines(raw_lines: Iterator[bytes], counts: Counts) -> Iterator[tuple[int, bytes]]:
    for raw in raw_lines:
        counts.lines += 1
        if raw and not raw.isspace():
            yield counts.lines, raw
        else:
            counts.blank += 1


def _paragraphs(raw_lines: Iterator[bytes], counts: Counts) -> Iterator[tuple[int, bytes]]:
    held: list[bytes] = []
    for raw in raw_lines:
        counts.lines += 1
        if raw and not raw.isspace():
            held.append(raw)
            continue
        counts.blank += 1
        if held:
            yield counts.lines - len(held), b"\n".join(held)
            held = []
    if held:
        yield counts.lines + 1 - len(held), b"\n".join(held)


def text_of(raw: bytes, rows: Rows) -> tuple[str, bytes]:
    """Return the text of a row, and the same as UTF-8; raise `RowError`."""
    text = decode(raw)
    if rows.format in ("jsonl", "tsv"):
        from nlpkit.data import document_rows

        text = document_rows.text_of_row(text, rows)
    if rows.line_break is not None:
        text = text.replace(rows.line_break, "\n")
    if wrong := wrong_character(text):
        index, what = wrong
        # Only a paragraph has lines of the file in its text.
        line, where = 1, index + 1
        if rows.format in _BETWEEN_BLANK_LINES:
            line, where = 1 + text.count("\n", 0, index), index - text.rfind("\n", 0, index)
        raise RowError(f"character {where} of the text is {what}", line)
    return text, text.encode()


@dataclass(frozen=True)
class Document:
    """A text, and where it came from: `line` is where it starts, from 1, after decompression.

    `second` is the other text of a pair, a line of `parallel` files; `bytes` are those of both.
    """

    text: str
    file: str
    line: int
    bytes: int
    second: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both of a pair."""
        return (self.text,) if self.second is None else (self.text, self.second)


def rows_in(file: TextFile, config: Config) -> Rows:
    """Return how the documents of a file are read; reads the header of a tsv file.

    Raises:
        UsageError: its rows are those of a task.
    """
    if config.rows is not None:
        raise UsageError(
            "data.rows: says where the rows of a task are, and this objective reads running text; "
            "text_key can be a path: '{paragraphs.text:\\n}' joins texts of a list"
        )
    return rows_of(file, file.text_key or config.text_key, config.line_break)


def is_held_out(encoded: bytes, fraction: float) -> bool:
    """Return whether a text (as UTF-8) is in the held-out share; it depends only on the text."""
    number = int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big")
    return number < fraction * 2**64


def read(
    file: TextFile,
    config: Config,
    counts: Counts,
    *,
    rows: Rows | None = None,
    part: Part = "all",
    within: tuple[int, int | None] = (0, None),
) -> Iterator[Document]:
    """Yield the documents of the bytes [start, stop) `within` a file, counting into `counts`.

    Lines count from the first one read. `rows` is `rows_of` the file, if known already.
    A malformed row is counted and skipped, or raised as `RowError` where `config.on_error` is stop.
    """
    rows = rows or rows_in(file, config)
    if rows.format == "parallel" or formats.documents(rows.format) == "rows":
        from nlpkit.data import document_rows

        by_rows = document_rows.read_pairs if rows.format == "parallel" else document_rows.read_rows
        yield from by_rows(file, config, counts, rows, part)
        return
    raw_lines = lines(file, *within)
    if rows.has_header and within[0] == 0:
        next(raw_lines, None)
        counts.lines += 1
    for line, raw in records(raw_lines, rows, counts):
        try:
            text, encoded = text_of(raw, rows)
        except RowError as bad:
            count_bad(bad, file, line - 1 + bad.line, config, counts)
            continue
        if document := document_of(file, line, [(text, encoded)], config, counts, part):
            yield document


def count_bad(bad: RowError, file: TextFile, line: int, config: Config, counts: Counts) -> None:
    """Count a malformed row, or raise it where `config.on_error` is stop."""
    bad.line = line
    if config.on_error == "stop":
        raise bad
    counts.add_bad(Bad(file.name, line, bad.what))


def document_of(
    file: TextFile,
    line: int,
    texts: Sequence[tuple[str, bytes]],
    config: Config,
    counts: Counts,
    part: Part,
) -> Document | None:
    """Count and return a document of one text, or of two; None if it is empty or of another part.

    `texts` are with their UTF-8. It is held out by all of it.
    """
    (text, _), *second = texts
    if not second and not text.strip():
        counts.empty += 1
        return None
    whole = b"\n".join(each for _, each in texts)
    if part != "all" and is_held_out(whole, config.valid_fraction) != (part == "valid"):
        counts.held_out += 1
        return None
    size = sum(len(each) for _, each in texts)
    counts.documents += 1
    counts.characters += sum(len(each) for each, _ in texts)
    counts.bytes += size
    return Document(text, file.name, line, size, *(each for each, _ in second))


def finish(file: TextFile, config: Config, counts: Counts) -> None:
    """Check what a whole file gave; raise `DataError` if that is no document at all.

    Where `config.on_error` is skip, a file without any row (such as an empty shard) is counted as
    bad; one whose every row is bad is an error all the same.
    """
    if counts.documents or counts.held_out:
        return
    if counts.bad:
        raise DataError(
            f"{file.name}: {all_of(counts.bad, 'rows are malformed')}; the first: "
            f"{counts.first_bad[0]}"
        )
    if not counts.lines:
        what = "empty file"
    else:
        what = (
            f"no documents: {number_of(counts.blank, 'blank lines')}, "
            f"{number_of(counts.empty, 'empty texts')}"
        )
    if config.on_error == "stop":
        raise DataError(f"{file.name}: {what}")
    counts.add_bad(Bad(file.name, max(counts.lines, 1), what))


def read_documents(
    inputs: Sequence[Input],
    config: Config,
    counts: Counts,
    *,
    part: Part = "all",
    should_stop: Callable[[], None] = lambda: None,
) -> Iterator[Document]:
    """Yield every document of `inputs` in order, for instance to train a tokenizer.

    `part` takes the share that `config.valid_fraction` leaves for training or holds out.
    Raise `DataError` (`file:line: what`) at the first malformed row, or count it in `counts`.
    """
    for entry in inputs:
        for file in entry.files:
            own = Counts()
            try:
                for number, document in enumerate(read(file, config, own, part=part)):
                    if number % 256 == 0:
                        should_stop()
                    yield document
            except RowError as bad:
                raise DataError(f"{file.name}:{bad.line}: {bad.what}") from bad
            finish(file, config, own)
            counts.add(own)
