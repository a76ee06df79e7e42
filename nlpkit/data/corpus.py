"""Files -> documents: the recipe's `data` section, path resolution, one reader per format.

Formats: `text` (a document a line), `paragraphs` (documents between blank lines), `sentences`
(the same, each line a sentence), `jsonl`, `tsv`, `parallel` (a document is a pair of lines); the
others of `readers/` are for rows of tasks.
Everything is UTF-8, only `\\n` ends a line, and every document knows the line it starts at.
Nothing is dropped without being counted in `Counts`. Tokenising is `store`'s work.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from nlpkit.config import FrozenConfig, Workers
from nlpkit.contracts.reader import Bad, Counts, RowError, TextFile
from nlpkit.data import _directories, _paths, formats, template
from nlpkit.data.formats import Format
from nlpkit.data.lines import lines
from nlpkit.data.readers import parallel
from nlpkit.data.records import wrong_character
from nlpkit.data.row_text import Rows, records, rows_of, text_in, text_of
from nlpkit.data.sources import Name, Source, Sources, TextKey
from nlpkit.errors import DataError, UsageError
from nlpkit.plural import all_of, number_of

Part = Literal["all", "train", "valid"]


def _as_text(value: object) -> object:
    """Return a path that is a number alone, such as 1, as text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Config(FrozenConfig):
    """The recipe's `data` section. After validation every entry of `train` is a `Source`."""

    ALTERNATIVES: ClassVar = (("valid", "valid_fraction"),)

    train: Annotated[Sources, Field(min_length=1, description="training files: paths or globs")]
    valid: Sources = Field(default_factory=list, description="held-out files")
    valid_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of documents held out, chosen by a hash of their text"
    )
    format: Format = Field("auto", description="auto goes by the ending, before .gz")
    text_key: Annotated[
        TextKey,
        Field(
            description="where the text is: a key or column (a name in the header, or 1, 2…), a "
            "path (meta.text), several, each on a line ([title, body]), or a template "
            "('{title}: {body}')"
        ),
    ] = "text"
    rows: Annotated[
        Name | None, BeforeValidator(_as_text, json_schema_input_type=Name | int | None)
    ] = Field(
        None,
        description="path to the lists whose entries are the rows of a task, in nested values: "
        "data.paragraphs.qas; lists that belong together: questions+options+answers",
    )
    history: int | None = Field(
        None,
        ge=1,
        description="entries of such a list before a row's, at most so many, as its column before: "
        "the turns of a dialogue",
    )
    line_break: Name | None = Field(
        None, description="mark that stands for a newline in text and tsv lines, such as <n>"
    )
    on_error: Literal["stop", "skip"] = Field("stop", description="what a malformed row does")
    workers: Workers | None = Field(None, ge=1, description="processes that tokenise; default: all")
    cache: Name | None = Field(None, description="directory of the tokenised data")

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if self.valid and self.valid_fraction:
            raise PydanticCustomError("exclude", "valid and valid_fraction exclude each other")
        if self.history is not None and self.rows is None:
            raise ValueError("history: needs rows, the path to the list of turns")
        return self


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


@dataclass(frozen=True)
class Input:
    """A source whose files have been found; `notes` say what of its directories is taken."""

    files: tuple[TextFile, ...]
    weight: float
    notes: tuple[str, ...] = ()


def _go_on() -> None:
    pass


def resolve(
    config: Config,
    base: Path | None,
    spool: Path,
    should_stop: Callable[[], None] = _go_on,
) -> tuple[list[Input], list[Input]]:
    """Return the training and the held-out inputs, every file found.

    Relative names are looked for in the working directory, in `base` (the recipe's folder), in the
    data that come with nlpkit. What can be read only once (stdin, a pipe) is copied into `spool`.
    Raise `FileError` for a name that matches nothing, `UsageError` for a file that `train` or
    `valid` names twice, or for stdin in both.
    """
    seen: dict[str, str] = {}
    found = []
    for sources in (config.train, config.valid):
        # Both may have the same file: a test of whether a model can learn it by heart.
        seen = {"-": "-"} if "-" in seen else {}
        inputs = []
        for source in sources:
            form = source.format or config.format
            files: list[TextFile] = []
            notes: list[str] = []
            for pattern, paths, note in find_files(source, form, base):
                notes += [note] if note else []
                if pattern == "-":
                    _once("-", pattern, seen)
                    files.append(_paths.spool_stdin(spool, form, should_stop))
                for path, name in paths:
                    _once(str(path.resolve()), pattern, seen)
                    if _paths.is_stream(path, name):
                        files.append(_paths.spool(path, name, spool, form, should_stop))
                    else:
                        files.append(_paths.text_file(path, name, form))
            if source.text_key is not None:
                files = [dataclasses.replace(file, text_key=source.text_key) for file in files]
            inputs.append(Input(tuple(_paths.joined(files)), source.weight, tuple(notes)))
        found.append(inputs)
    used = {file.format for inputs in found for part in inputs for file in part.files}
    if config.line_break is not None and not used & {"text", "tsv", "parallel"}:
        raise UsageError("data.line_break: only text and tsv lines have it, and no file is either")
    return found[0], found[1]


def find_files(
    source: Source, form: str, base: Path | None
) -> Iterator[tuple[str, list[tuple[Path, str]], str]]:
    """Yield each name, its files, and what is to be said of them; raise `FileError`."""
    if source.hf is not None:
        files, note = _directories.of_data_set(source.hf, source.split or "train", base)
        yield source.hf, files, note
    for pattern in source.files:
        if pattern == "-":
            yield pattern, [], ""
        elif pattern.endswith("/") and not formats.inside(form):
            files, note = _directories.all_of(pattern, base, form)
            yield pattern, files, note
        else:
            yield pattern, _paths.find(pattern, base, formats.inside(form)), ""


def regular_files(config: Config, base: Path | None) -> Iterator[list[TextFile]]:
    """Yield the files of each source that can be read twice, as `resolve` finds them.

    Raises:
        FileError: a name matches no file.
        UsageError: a file's format is unknown.
    """
    for source in (*config.train, *config.valid):
        form = source.format or config.format
        found = [each for _, paths, _ in find_files(source, form, base) for each in paths]
        files = [
            dataclasses.replace(_paths.text_file(path, name, form), text_key=source.text_key)
            for path, name in found
            if not _paths.is_stream(path, name)
        ]
        yield _paths.joined(files) if files and len(files) == len(found) else files


def _once(path: str, pattern: str, seen: dict[str, str]) -> None:
    if path in seen and path == "-":
        raise UsageError("data: -: stdin is named twice, and can be read only once")
    if path in seen:
        by = f" (by {seen[path]!r} and {pattern!r})" if seen[path] != pattern else ""
        raise UsageError(f"data: {path} is named twice{by}; to use it more often, give it a weight")
    seen[path] = pattern


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


def held_out(encoded: bytes, fraction: float) -> bool:
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
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Document]:
    """Yield the documents of the bytes [start, stop) of a file, counting into `counts`.

    Lines count from the first one read. `rows` is `rows_of` the file, if known already.
    A malformed row is counted and skipped, or raised as `RowError` where `config.on_error` is stop.
    """
    rows = rows or rows_in(file, config)
    if rows.format == "parallel":
        yield from _pairs(file, config, counts, rows, part)
        return
    if formats.is_read_whole(rows.format):
        yield from _of_rows(file, config, counts, rows, part)
        return
    raw_lines = lines(file, start, stop)
    if rows.has_header and start == 0:
        next(raw_lines, None)
        counts.lines += 1
    for line, raw in records(raw_lines, rows, counts):
        try:
            text, encoded = text_of(raw, rows)
        except RowError as bad:
            _count_bad(bad, file, line - 1 + bad.line, config, counts)
            continue
        if document := _document(file, line, [(text, encoded)], config, counts, part):
            yield document


def _pairs(
    file: TextFile, config: Config, counts: Counts, rows: Rows, part: Part
) -> Iterator[Document]:
    """Yield each pair of lines as a document of two texts; it is held out by both."""
    for line, found in parallel.rows(file, (), counts):
        try:
            if isinstance(found, RowError):
                raise found
            pair = [text_of(found[side].encode(), rows) for side in parallel.FILES]
        except RowError as bad:
            _count_bad(bad, file, line, config, counts)
            continue
        if document := _document(file, line, pair, config, counts, part):
            yield document


def _of_rows(
    file: TextFile, config: Config, counts: Counts, rows: Rows, part: Part
) -> Iterator[Document]:
    """Yield the text of each row that a reader finds; it is held out by its text, as any other."""
    assert rows.key is not None
    named = template.columns(rows.key)
    for line, found in formats.reader(rows.format).rows(file, named, counts):
        try:
            if isinstance(found, RowError):
                raise found
            text = text_in(found, rows.key)
            if wrong := wrong_character(text):
                raise RowError(f"character {wrong[0] + 1} of the text is {wrong[1]}")
        except RowError as bad:
            _count_bad(bad, file, line, config, counts)
            continue
        if document := _document(file, line, [(text, text.encode())], config, counts, part):
            yield document


def _count_bad(bad: RowError, file: TextFile, line: int, config: Config, counts: Counts) -> None:
    """Count a malformed row, or raise it where `config.on_error` is stop."""
    bad.line = line
    if config.on_error == "stop":
        raise bad
    counts.add_bad(Bad(file.name, line, bad.what))


def _document(
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
    if part != "all" and held_out(whole, config.valid_fraction) != (part == "valid"):
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


def documents(
    inputs: Sequence[Input],
    config: Config,
    counts: Counts,
    *,
    part: Part = "all",
    should_stop: Callable[[], None] = _go_on,
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
