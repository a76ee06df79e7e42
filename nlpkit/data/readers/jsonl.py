"""Rows of JSON objects, one per line."""

import json
from collections.abc import Sequence

from nlpkit.contracts.reader import Counts, RowError, Rows, TextFile
from nlpkit.data.lines import decode, kind_of, lines
from nlpkit.json_types import JsonObject

ENDINGS = (".jsonl", ".json", ".ndjson")
DOCUMENTS = "lines"


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the objects; a repeated key is a `RowError`."""
    example = columns[0] if columns else "text"
    for number, raw in enumerate(lines(file), 1):
        counts.lines += 1
        if not raw or raw.isspace():
            counts.blank += 1
            continue
        try:
            yield number, parse(decode(raw), example)
        except RowError as error:
            yield number, error


def parse(line: str, example: str) -> JsonObject:
    """Return the object in a line; raise `RowError`. `example` is a key that it should have."""
    hint = "; one object a line is needed; in a recipe, data.format: json reads an array"
    try:
        row = json.loads(line, object_pairs_hook=refuse_twins)
    except (ValueError, RecursionError) as error:
        begins = line.strip() == "{" or line.lstrip().startswith("[")
        raise RowError(describe(error) + hint * begins) from error
    if not isinstance(row, dict):
        hint *= isinstance(row, list)
        raise RowError(f'{kind_of(row)}, not an object like {{"{example}": "..."}}{hint}')
    return row


def refuse_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs as a dictionary; raise `RowError` if a key is there twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RowError(f'"{next(key for key in keys if keys.count(key) > 1)}" is there twice')
    return row


def describe(error: Exception) -> str:
    """Return what is wrong with JSON that Python cannot read."""
    if isinstance(error, RecursionError):
        return "broken JSON: nested too deeply"
    if not isinstance(error, json.JSONDecodeError):
        return "broken JSON: a number with too many digits"
    what = error.msg.removesuffix(" at").removesuffix(" starting")
    return f"broken JSON at column {error.colno}: {what}"
