"""The value of a JSON file, whose objects know where in the file they begin."""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from json import decoder, scanner
from typing import Any

from nlpkit.contracts.reader import Counts, RowError, TextFile
from nlpkit.data.lines import decode, lines
from nlpkit.errors import DataError

PLACE = "\0place"  # key of the character at which an object begins


class _Decoder(json.JSONDecoder):
    """A decoder whose objects hold the place at which they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object: Callable[..., Any] = _object
        # The scanner in C calls no `parse_object`.
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _object(text_and_end: tuple[str, int], *arguments: Any) -> tuple[dict[str, Any], int]:
    parse = decoder.JSONObject  # type: ignore[attr-defined]
    found, end = parse(text_and_end, *arguments)
    return {**found, PLACE: text_and_end[1] - 1}, end


def read(file: TextFile, counts: Counts) -> tuple[Any, Callable[[Mapping[str, Any]], int]]:
    """Return the value of a JSON file, and what tells the line of an object in it.

    Raises:
        DataError: it is not JSON.
    """
    texts = []
    for number, raw in enumerate(lines(file), 1):
        try:
            texts.append(decode(raw))
        except RowError as error:
            raise DataError(f"{file.name}:{number}: {error.what}") from error
    counts.lines += len(texts)
    starts = [0]
    for each in texts:
        starts.append(starts[-1] + len(each) + 1)
    try:
        content = _Decoder().decode("\n".join(texts))
    except json.JSONDecodeError as error:
        hint = "; objects line by line are data.format: jsonl" if error.msg == "Extra data" else ""
        raise DataError(
            f"{file.name}:{error.lineno}: broken JSON at column {error.colno}: {error.msg}{hint}"
        ) from error
    except RecursionError as error:
        raise DataError(f"{file.name}: broken JSON: nested too deeply") from error

    def line_of(entry: Mapping[str, Any]) -> int:
        return bisect_right(starts, int(entry[PLACE]))

    return content, line_of
