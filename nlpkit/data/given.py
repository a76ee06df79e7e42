"""Files that are named on the command line, as sources of a recipe. Imports no torch."""

from collections.abc import Sequence

from nlpkit.data import formats
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject


def list_sources(files: Sequence[str], form: str, are_rows: bool) -> list[str | JsonObject]:
    """Return a source for each file, or for each pair of source and target files.

    With `auto` the ending of the file name determines the format; rows on stdin are jsonl.
    """
    if "" in files:
        raise UsageError("--data: a name is empty")
    remaining, sources = list(files), list[str | JsonObject]()
    while remaining:
        if are_rows and form == "auto" and remaining[0] == "-":
            sources.append({"files": [remaining.pop(0)], "format": "jsonl"})
            continue
        known = formats.find_format(remaining[0]) if form == "auto" else form
        count = len(formats.parts(known)) if known else 1
        sources.append({"files": remaining[:count]} if count > 1 else remaining[0])
        del remaining[:count]
    return sources
