"""Documents and queries from files: identifier and text, one a line.

- `jsonl`: objects with `id`, `_id` or `docid`, and `text` (with `title` before it where there is
  one, as BEIR and Anserini do) or `contents` (which has the title already, in Anserini's layout);
- `tsv`: identifier, a tab, text (further tabs are white space in it);
- `text`: a text; its identifier is the line's number, from 1.
"""

import json
import re
from collections.abc import Iterator

from nlpkit.errors import DataError
from nlpkit.score.files import name_of, read_lines

FORMATS = ("jsonl", "tsv", "text")
_IDS = ("id", "_id", "docid")
_ENDINGS = {"jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "tsv": "tsv", "tab": "tsv"}


def format_of(path: str) -> str:
    """Return the format that the ending stands for, before `.gz`; `text` if none."""
    name = path.lower().removesuffix(".gz")
    return _ENDINGS.get(name.rpartition(".")[2], "text") if "." in name else "text"


class Records:
    """Yields (identifier, text) for each line of a file, and counts what it passes over.

    Raise `DataError` with file and line for what is malformed or has an identifier seen before.
    """

    def __init__(self, path: str, form: str | None = None, title: bool = True):
        self.path = path
        self.format = form or format_of(path)
        self.title = title
        self.blank = 0  # lines without anything, of jsonl and tsv

    def __iter__(self) -> Iterator[tuple[str, str]]:
        read = {"jsonl": self._from_json, "tsv": _from_tsv}.get(self.format)
        lines: dict[str, int] = {}
        self.blank = 0
        for number, line in enumerate(read_lines(self.path), 1):
            if read is None:
                yield str(number), line
                continue
            if not line or line.isspace():
                self.blank += 1
                continue
            try:
                key, text = read(line)
                if not key.isascii() or not text.isascii():
                    _check_characters(key, text)
            except ValueError as error:
                raise DataError(f"{name_of(self.path)}:{number}: {error}") from error
            first = lines.setdefault(key, number)
            if first != number:
                where = f"{name_of(self.path)}:{number}"
                raise DataError(f"{where}: identifier {key!r} is that of line {first}, too")
            yield key, text

    def _from_json(self, line: str) -> tuple[str, str]:
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
        except RecursionError as error:
            raise ValueError("not JSON that can be read: nested too deep") from error
        if not isinstance(found, dict):
            raise ValueError('not a JSON object, such as {"id": "1", "text": "…"}')
        text = found.get("text")
        if text is None:
            return _id(found), _string(found, "contents")
        title = found.get("title") if self.title else None
        if title:
            return _id(found), f"{_string(found, 'title')} {_string(found, 'text')}"
        return _id(found), _string(found, "text")


def _id(found: dict[str, object]) -> str:
    for name in _IDS:
        value = found.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise ValueError(f"{name}: {json.dumps(value)[:40]} is no identifier, a string is")
        return str(value)
    raise ValueError(f"no identifier: none of {', '.join(_IDS)}; there are {_keys(found)}")


def _string(found: dict[str, object], name: str) -> str:
    value = found.get(name)
    if value is None:
        raise ValueError(f"no text: neither text nor contents; there are {_keys(found)}")
    if not isinstance(value, str):
        raise ValueError(f"{name}: {json.dumps(value)[:40]} is no string")
    return value


def _keys(found: dict[str, object]) -> str:
    return ", ".join(map(repr, list(found)[:6])) or "no keys"


def _from_tsv(line: str) -> tuple[str, str]:
    key, tab, text = line.partition("\t")
    if not tab:
        raise ValueError("no tab: needs identifier, tab, text")
    if not key.strip():
        raise ValueError("no identifier before the tab")
    return key, text


def _check_characters(*texts: str) -> None:
    """Raise for half a surrogate pair, which JSON can write and no file can hold."""
    for text in texts:
        if found := re.search("[\ud800-\udfff]", text):
            raise ValueError(f"\\u{ord(found[0]):04x} is half a character")
