"""Lines of text files for scores, and the files of one `nlpkit score`: hypotheses and references.

`-` is stdin; gzip is unpacked; BOM and CRLF are dropped. Only `\\n` ends a line (other separators
occur inside sentences). Errors name file and line.
"""

import argparse
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader, StringIO
from typing import IO, NamedTuple, cast

from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.plural import number_of

_GZIP = b"\x1f\x8b"
_MARK = "\ufeff"


def display_name(path: str) -> str:
    """Return the name of the file in messages."""
    return "stdin" if path == "-" else path or "''"


def read_lines(path: str, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines without their ends; a byte order mark at the beginning is dropped.

    Raise `FileError` if the file is missing or unreadable, `DataError` with the line if it is not
    text in `encoding` or its gzip data is damaged.
    """
    number = 0
    try:
        with _open(path) as stream:
            for number, line in enumerate(_decode(stream, encoding), 1):
                if number == 1:
                    line = line.removeprefix(_MARK)
                if line.endswith("\n"):
                    line = line[: -2 if line.endswith("\r\n") else -1]
                yield line
    except UnicodeDecodeError as error:
        where = f"{display_name(path)}:{number + 1}"
        raise DataError(f"{where}: not {encoding} text: {error.reason}") from error
    except FileNotFoundError as error:
        raise FileError(f"{display_name(path)}: no such file") from error
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # gzip's own errors have none
            raise FileError(f"{display_name(path)}: cannot be read: {error.strerror}") from error
        where = f"{display_name(path)}:{number + 1}"
        raise DataError(f"{where}: damaged gzip data: {error}") from error


def _decode(stream: IO[bytes], encoding: str) -> Iterator[str]:
    """Return the lines with their ends; raise `UsageError` for an unknown encoding."""
    try:
        is_byte = "\n".encode(encoding) == b"\n"
    except (LookupError, UnicodeError) as error:  # such as codec "undefined"
        what = f"no encoding {encoding!r}; known are Python's, such as gb18030"
        raise UsageError(what) from error
    if is_byte:
        return (raw.decode(encoding) for raw in stream)
    return _decode_whole(stream.read(), encoding)  # such as utf-16


def _decode_whole(raw: bytes, encoding: str) -> Iterator[str]:
    """Yield the lines; those before one that is no text come first, so that they are counted."""
    wrong: UnicodeDecodeError | None = None
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        wrong, text = error, raw[: error.start].decode(encoding)
        text = text[: text.rfind("\n") + 1]
    yield from StringIO(text, newline="\n")
    if wrong is not None:
        raise wrong


def _open(path: str) -> IO[bytes]:
    """Return the file's bytes, decompressed if they begin as gzip's do."""
    # A second file object for stdin: it is closed after reading, but stdin stays open.
    where: str | int = path
    if path == "-":
        where = 0 if sys.stdin is None else sys.stdin.fileno()
    stream = cast(BufferedReader, open(where, "rb", buffering=1 << 18, closefd=path != "-"))  # noqa: SIM115
    if stream.peek(2)[:2] != _GZIP:
        return stream
    import gzip

    return cast(IO[bytes], gzip.open(stream, "rb"))


class Inputs(NamedTuple):
    """`systems[s]` and `references[k]` have as many lines; their files are `names`, `sources`."""

    names: list[str]
    systems: list[list[str]]
    sources: list[str]
    references: list[list[str]]


def read_inputs(found: argparse.Namespace, fewest: int, most: int | None, of: str) -> Inputs:
    """Return the lines of all files; `of` says which metrics take `fewest` to `most` references.

    Raise `UsageError` for too few or too many files, `DataError` where line counts differ.
    """
    systems, sources = _split(found.files, found.input, fewest)
    both = [*systems, *sources]
    if both.count("-") > 1:
        raise UsageError("stdin (-) can be read once only")
    if twice := [name for name in systems if systems.count(name) > 1]:
        raise UsageError(f"{twice[0]}: given twice to -i")
    if found.num_refs > 1 and len(sources) != 1:
        raise UsageError(f"-nr {found.num_refs} splits one file of references, not {len(sources)}")
    count = len(sources) if found.num_refs == 1 else found.num_refs
    if count < fewest or (most is not None and count > most):
        expected = f"{fewest}" if fewest == most else f"{fewest} or more"
        if most is not None and fewest != most:
            expected = f"{fewest} to {most}"
        noun = "reference" if expected == "1" else "references"
        raise UsageError(f"{of}: takes {expected} {noun}, not {count}")
    hypotheses = [_lines(path, found.encoding) for path in systems]
    if found.input is None and len(found.files) == 1 and fewest and "\t" in hypotheses[0][0]:
        # sacrebleu reads them as several systems; read as one, they give a wrong score.
        raise DataError("stdin:1: a tab: give several systems as files to -i, or one system as -")
    references = [_lines(path, found.encoding) for path in sources]
    if found.num_refs > 1:
        references = _columns(references[0], found.num_refs, display_name(sources[0]))
        sources *= found.num_refs
    inputs = Inputs(
        [display_name(path) for path in systems], hypotheses,
        [display_name(path) for path in sources], references,
    )  # fmt: skip
    _check_counts(inputs)
    return inputs


def _split(files: list[str], given: list[str] | None, fewest: int) -> tuple[list[str], list[str]]:
    if given is not None:
        if not files and fewest:
            raise UsageError(
                "no references: they stand before -i, which takes all files after it for systems"
            )
        return given, files
    if not files:
        raise UsageError(
            "no files: HYP REF..., or REF... -i HYP, or REF with the hypotheses on stdin"
        )
    if len(files) == 1 and fewest:
        if files == ["-"] or sys.stdin is None or sys.stdin.isatty():
            raise UsageError(f"only one file, {display_name(files[0])}; expected two, HYP and REF")
        return ["-"], files
    return files[:1], files[1:]


def _lines(path: str, encoding: str) -> list[str]:
    lines = list(read_lines(path, encoding))
    if not lines:
        raise DataError(f"{display_name(path)}: no lines")
    return lines


def _columns(lines: list[str], count: int, name: str) -> list[list[str]]:
    """Return the columns of lines with `count` fields between tabs; more tabs stay in the last."""
    rows = [line.split("\t", count - 1) for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != count:
            fields = number_of(len(row), "fields")
            raise DataError(f"{name}:{number}: {fields} between tabs, expected {count} (-nr)")
    return [list(column) for column in zip(*rows, strict=True)]


def _check_counts(inputs: Inputs) -> None:
    for name, lines in zip(inputs.names, inputs.systems, strict=True):
        for source, others in zip(inputs.sources, inputs.references, strict=True):
            if len(lines) != len(others):
                longer, where = max((lines, name), (others, source), key=lambda each: len(each[0]))
                extra = longer[-abs(len(lines) - len(others)) :]
                blank = not any(line.strip() for line in extra)
                are = "is" if len(extra) == 1 else "are"
                hint = f" (the last {len(extra)} of {where} {are} blank)" if blank else ""
                raise DataError(
                    f"{name} has {number_of(len(lines), 'lines')}, {source} has {len(others)}"
                    f"{hint}: line i of one belongs to line i of the other"
                )
