"""Reads documents and queries from files: one identifier and text per line.

- `jsonl`: objects with `id`, `_id` or `docid`, and `text` or `contents`. A `title` is put before
  `text`, as in BEIR and Anserini; `contents` of Anserini already contains the title.
- `tsv`: identifier, tab, text; more tabs are white space in the text.
- `text`: a text; its identifier is the line number, from 1.
"""

import json
import re
from collections.abc import Iterator

from nlpkit.errors import DataError
from nlpkit.plural import number_of
from nlpkit.score.files import display_name, read_lines

FORMATS = ("jsonl", "tsv", "text")
_IDS = ("id", "_id", "docid")
_ENDINGS = {"jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "tsv": "tsv", "tab": "tsv"}


def guess_format(path: str) -> str:
    """Return the format for the file's ending without `.gz`, by default `text`."""
    name = path.lower().removesuffix(".gz")
    return _ENDINGS.get(name.rpartition(".")[2], "text") if "." in name else "text"


class Records:
    """Yields (identifier, text) for each line of a file, and counts the blank lines.

    Raises `DataError` with file and line for a malformed line or a repeated identifier.
    """

    def __init__(self, path: str, form: str | None = None):
        self.path = path
        self.name = display_name(path)
        self.format = form or guess_format(path)
        self.blank = 0  # blank lines of jsonl and tsv files

    @property
    def left_out(self) -> str:
        """The number of blank lines, for a message; empty if there are none."""
        return f", {number_of(self.blank, 'blank lines')} left out" if self.blank else ""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        lines: dict[str, int] = {}
        self.blank = 0
        for number, line in enumerate(read_lines(self.path), 1):
            if self.format == "text":
                yield str(number), line
                continue
            if not line or line.isspace():
                self.blank += 1
                continue
            try:
                key, text = _read_json(line) if self.format == "jsonl" else _read_tsv(line)
            except ValueError as error:
                raise DataError(f"{self.name}:{number}: {error}") from error
            first = lines.setdefault(key, number)
            if first != number:
                where = f"{self.name}:{number}"
                raise DataError(f"{where}: identifier {key!r} is already used in line {first}")
            yield key, text


def _read_json(line: str) -> tuple[str, str]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError('not a JSON object, such as {"id": "1", "text": "…"}')
    key = next((values[name] for name in _IDS if values.get(name) not in (None, "")), None)
    text, title = values.get("text"), values.get("title")
    if text is None:
        text = values.get("contents")
    elif title:
        text = f"{title} {text}" if isinstance(title, str) and isinstance(text, str) else None
    keys = ", ".join(map(repr, list(values)[:6])) or "no keys"
    if isinstance(key, bool) or not isinstance(key, str | int):
        expected = f"a string or whole number as one of {', '.join(_IDS)}"
        raise ValueError(f"no identifier: expected {expected}; found {keys}")
    if not isinstance(text, str):
        raise ValueError(f"no text: expected strings as text or contents, and title; found {keys}")
    if surrogate := re.search("[\ud800-\udfff]", f"{key}{text}"):
        raise ValueError(f"\\u{ord(surrogate[0]):04x} is a lone surrogate")  # it is not in UTF-8
    return str(key), text


def _read_tsv(line: str) -> tuple[str, str]:
    key, tab, text = line.partition("\t")
    if not tab or not key.strip():
        raise ValueError("needs identifier, tab, text")
    return key, text
