"""Files -> documents, counted; tokenising them is `store`'s work.

Formats: `text` (a document a line), `paragraphs` (documents between blank lines), `sentences`
(the same, each line a sentence), and those of readers, whose rows are documents.
Everything is UTF-8, only `\\n` ends a line, and every document knows the line it starts at.
Nothing is dropped without being counted in `Counts`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from nlpkit.contracts.reader import Bad, Counts, RowError, TextFile, Texts
from nlpkit.data import formats, template
from nlpkit.data.files import Input
from nlpkit.data.lines import check_characters, decode, lines
from nlpkit.data.settings import Config, Part
from nlpkit.errors import DataError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import all_of, number_of


@dataclass(frozen=True)
class Document:
    """A text, both of a pair, or those of a row, and where they came from.

    `line` is where they start, from 1, after decompression.
    """

    texts: tuple[str, ...]
    file: str
    line: int

    @property
    def text(self) -> str:
        """The text; of a pair, the first one."""
        return self.texts[0]


def gather(documents: Iterable[Document], characters: int, most: int) -> Iterator[list[Document]]:
    """Yield the documents in lists of about so many characters, and of `most` documents."""
    found: list[Document] = []
    size = 0
    for document in documents:
        found.append(document)
        size += sum(map(len, document.texts))
        if size >= characters or len(found) >= most:
            yield found
            found, size = [], 0
    if found:
        yield found


def check_format(file: TextFile, config: Config) -> None:
    """Raise `UsageError` if the rows of a file are those of a task."""
    if config.rows is not None:
        raise UsageError(
            "data.rows: says where the rows of a task are, and this objective reads running text; "
            "text_key can be a path: '{paragraphs.text:\\n}' joins texts of a list"
        )
    if not formats.documents(file.format):
        raise UsageError(
            f"{file.name}: {file.format} is read for the rows of a task (a classification, say); "
            "for running text make it jsonl or tsv"
        )


def find_key(file: TextFile, config: Config) -> str:
    """Return the column, path or template of a file's texts; several are joined by lines."""
    keys = file.text_key or config.text_key
    if isinstance(keys, str):
        return keys
    return template.as_template(keys) if len(keys) > 1 else keys[0]


def is_held_out(encoded: bytes, fraction: float) -> bool:
    """Return whether a text (as UTF-8) is in the held-out share; it depends only on the text."""
    number = int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big")
    return number < fraction * 2**64


def read(
    file: TextFile, config: Config, counts: Counts, *, part: Part = "all"
) -> Iterator[Document]:
    """Yield the documents of a file, or of its range, and count them.

    Lines count from the first one of the range.
    A malformed row is counted and skipped, or raised as `RowError` where `config.on_error` is stop.
    """
    is_text = file.format in formats.TEXT_FORMATS
    line_break = config.line_break if file.format in formats.WITH_LINE_BREAK else None
    found = (_blocks if is_text else _rows)(file, config, counts)
    for line, texts in islice(found, file.max_rows):
        try:
            if isinstance(texts, RowError):
                raise texts
            if line_break is not None:
                texts = [text.replace(line_break, "\n") for text in texts]
            for text in texts:
                check_characters(text, by_line=is_text and line_break is None)
        except RowError as bad:
            bad.line += line - 1
            if config.on_error == "stop":
                raise
            counts.add_bad(Bad(file.name, bad.line, bad.what))
            continue
        if len(texts) == 1 and not texts[0].strip():
            counts.empty += 1
            continue
        whole = "\n".join(texts).encode()  # a pair is held out by both of its texts
        if part != "all" and is_held_out(whole, config.valid_fraction) != (part == "valid"):
            counts.held_out += 1
            continue
        counts.documents += 1
        counts.characters += sum(map(len, texts))
        counts.bytes += len(whole) - len(texts) + 1
        yield Document(tuple(texts), file.name, line)


def _blocks(file: TextFile, config: Config, counts: Counts) -> Texts:
    """Yield each line that is not blank or, of paragraphs, the lines up to a blank one."""
    held: list[bytes] = []
    for raw in lines(file):
        counts.lines += 1
        is_blank = not raw or raw.isspace()
        if is_blank:
            counts.blank += 1
        else:
            held.append(raw)
        if held and (is_blank or file.format == "text"):
            yield counts.lines - is_blank + 1 - len(held), _decode(held)
            held = []
    if held:
        yield counts.lines + 1 - len(held), _decode(held)


def _decode(raw_lines: list[bytes]) -> list[str] | RowError:
    try:
        return [decode(b"\n".join(raw_lines))]
    except RowError as error:
        return error


def _rows(file: TextFile, config: Config, counts: Counts) -> Texts:
    """Yield the text of each row of a reader, or the texts of its two files."""
    reader = formats.reader(file.format)
    key = find_key(file, config)
    keys = [key] if len(reader.FILES) == 1 else [*reader.FILES]
    for line, found in reader.rows(file, template.columns(*keys), counts):
        try:
            if isinstance(found, RowError):
                raise found
            yield line, [template.text_at(found, key) for key in keys]
        except RowError as error:
            yield line, error


def finish(file: TextFile, config: Config, counts: Counts) -> None:
    """Check what a whole file gave; raise `DataError` if that is no document at all.

    Where `config.on_error` is skip, a file without any row (such as an empty shard) is counted as
    bad; one whose every row is bad is an error all the same.
    """
    if counts.documents or counts.held_out:
        return
    if counts.bad:
        said = all_of(counts.bad, "rows are malformed")
        raise DataError(f"{file.name}: {said}; the first: {counts.first_bad[0]}")
    blank, empty = number_of(counts.blank, "blank lines"), number_of(counts.empty, "empty texts")
    what = f"no documents: {blank}, {empty}" if counts.blank + counts.empty else "no rows"
    what = what if counts.lines else "empty file"
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
    for file in (file for entry in inputs for file in entry.files):
        check_format(file, config)
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


def describe_reading(file: TextFile, config: Config) -> JsonObject:
    """Return what decides the texts of a file beside its bytes: a part of the keys of stores."""
    key, form = find_key(file, config), file.format
    is_text = form in (*formats.TEXT_FORMATS, "parallel")
    found: JsonObject = {"format": form, "key": None if is_text else key}
    found |= {"column": None, "columns": None}
    found["line_break"] = config.line_break if form in formats.WITH_LINE_BREAK else None
    found |= {} if file.max_rows is None else {"max_rows": file.max_rows}
    return found | _columns(file, key) if form == "tsv" else found


def _columns(file: TextFile, key: str) -> JsonObject:
    """Return the places of the columns that are read, which are part of the keys of stores."""
    if all(map(template.is_number, template.columns(key))):
        return {} if template.is_template(key) else {"column": int(key) - 1}
    names = next(lines(file), b"").decode(errors="replace").split("\t")
    if template.is_template(key):
        return {"columns": len(names), "names": names}
    return {"columns": len(names), "column": names.index(key) if key in names else None}
