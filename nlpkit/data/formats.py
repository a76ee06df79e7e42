"""The names of `data.format`: what text is read by itself, and rows by the folder of readers."""

from typing import cast

from nlpkit import registry
from nlpkit.contracts.reader import Reader

_READERS = "data/readers"
# Read as documents alone; the readers' formats hold rows, and some documents, too.
TEXT_FORMATS = ("text", "paragraphs", "sentences")
WITH_LINE_BREAK = ("text", "tsv", "parallel")  # a document is a line, so `data.line_break` helps


def readers() -> list[str]:
    """Return the names of the formats that hold rows."""
    return registry.names(_READERS)


def all_names() -> list[str]:
    """Return all known names of `data.format`."""
    return ["auto", *TEXT_FORMATS, *readers()]


def reader(name: str) -> Reader:
    """Return what reads rows of the format `name`, which is none of `TEXT_FORMATS`."""
    return cast(Reader, registry.load(_READERS, name))


def documents(name: str) -> str:
    """Return what the documents of a format are (`DOCUMENTS` of a reader): rows, lines, none."""
    return "lines" if name in TEXT_FORMATS else reader(name).DOCUMENTS


def parts(name: str) -> tuple[str, ...]:
    """Return what the files are that belong together, in the recipe's order."""
    return ("text",) if name in TEXT_FORMATS else reader(name).FILES


def endings() -> dict[str, str]:
    """Return the endings of file names, before `.gz`, that tell a format."""
    found = {".txt": "text"}
    for name in readers():
        found |= dict.fromkeys(reader(name).ENDINGS, name)
    return found


def find_format(name: str) -> str:
    """Return the format that the ending of a file's name tells, before `.gz`; else nothing.

    The longest ending counts: `.squad.json` is not `.json`.
    """
    plain = name.lower().removesuffix(".gz")
    last = plain.rpartition(".")[2]
    if last == "txt":
        return "text"
    # Most formats have the ending of their name: no other reader need be loaded then.
    if last in readers() and plain.endswith(reader(last).ENDINGS):
        return last
    fitting = {ending: form for ending, form in endings().items() if plain.endswith(ending)}
    return fitting[max(fitting, key=len)] if fitting else ""


def inside(name: str) -> str:
    """Return the glob of a folder's files, where `name` lets a folder be named; else nothing."""
    return "" if name in ("auto", *TEXT_FORMATS) else reader(name).INSIDE
