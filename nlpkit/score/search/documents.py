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

    def __init__(self, path: str, form: str | None = None, title: bool = True):
        self.path = path
        self.format = form or guess_format(path)
        self.title = title
        self.blank = 0  # blank lines of jsonl and tsv files

    def __iter__(self) -> Iterator[tuple[str, str]]:
        read = {"jsonl": self._from_json, "tsv": _read_tsv}.get(self.format)
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
                raise DataError(f"{display_name(self.path)}:{number}: {error}") from error
            first = lines.setdefault(key, number)
            if first != number:
                where = f"{display_name(self.path)}:{number}"
                raise DataError(f"{where}: identifier {key!r} is already used in line {first}")
            yield key, text

    def _from_json(self, line: str) -> tuple[str, str]:
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
        except RecursionError as error:
            raise ValueError("JSON that is nested too deep") from error
        if not isinstance(values, dict):
            raise ValueError('not a JSON object, such as {"id": "1", "text": "…"}')
        text = values.get("text")
        if text is None:
            return _get_id(values), _get_text(values, "contents")
        title = values.get("title") if self.title else None
        if title:
            return _get_id(values), f"{_get_text(values, 'title')} {_get_text(values, 'text')}"
        return _get_id(values), _get_text(values, "text")


def _get_id(values: dict[str, object]) -> str:
    for name in _IDS:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise ValueError(f"{name}: {json.dumps(value)[:40]} is not an identifier; use a string")
        return str(value)
    raise ValueError(
        f"no identifier: expected one of {', '.join(_IDS)}; found {_list_keys(values)}"
    )


def _get_text(values: dict[str, object], name: str) -> str:
    value = values.get(name)
    if value is None:
        raise ValueError(f"no text: expected text or contents; found {_list_keys(values)}")
    if not isinstance(value, str):
        raise ValueError(f"{name}: {json.dumps(value)[:40]} is not a string")
    return value


def _list_keys(values: dict[str, object]) -> str:
    return ", ".join(map(repr, list(values)[:6])) or "no keys"


def _read_tsv(line: str) -> tuple[str, str]:
    key, tab, text = line.partition("\t")
    if not tab:
        raise ValueError("no tab: needs identifier, tab, text")
    if not key.strip():
        raise ValueError("no identifier before the tab")
    return key, text


def _check_characters(*texts: str) -> None:
    """Raise `ValueError` for a lone surrogate, which JSON can contain but UTF-8 cannot."""
    for text in texts:
        if surrogate := re.search("[\ud800-\udfff]", text):
            raise ValueError(f"\\u{ord(surrogate[0]):04x} is a lone surrogate")
