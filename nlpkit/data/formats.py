"""The names of `data.format`: what text is read by itself, and rows by the folder of readers."""

from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field
from pydantic_core import PydanticKnownError

from nlpkit import registry
from nlpkit.contracts.reader import Reader
from nlpkit.errors import UsageError

_READERS = "data/readers"
# Read as documents alone; the readers' formats hold rows, and some documents, too.
TEXT_FORMATS = ("text", "paragraphs", "sentences")
DOCUMENT_FORMATS = (*TEXT_FORMATS, "jsonl", "tsv", "parallel")  # the others hold rows alone
_ROWS_OF_TASKS = ("conll", "idx", "images", "squad")  # whose rows are no documents


def readers() -> list[str]:
    """Return the names of the formats that hold rows."""
    return registry.names(_READERS)


def known() -> list[str]:
    """Return all known names of `data.format`."""
    return ["auto", *TEXT_FORMATS, *readers()]


def reader(name: str) -> Reader:
    """Return what reads rows of the format `name`; raise `UsageError` if nothing does."""
    if name in TEXT_FORMATS:
        rows = ", ".join(readers())
        raise UsageError(f"rows are read from files of the formats {rows}, not {name}")
    return cast(Reader, registry.load(_READERS, name))


def is_read_whole(name: str) -> bool:
    """Return whether the documents of a format are rows of its reader, from the first to the last.

    Files of the other formats are cut, so that several processes read one.
    """
    return name not in (*DOCUMENT_FORMATS, *_ROWS_OF_TASKS)


def parts(name: str) -> tuple[str, ...]:
    """Return what the files are that belong together, in the recipe's order."""
    return ("text",) if name in TEXT_FORMATS else reader(name).FILES


def endings() -> dict[str, str]:
    """Return the endings of file names, before `.gz`, that tell a format."""
    found = {".txt": "text"}
    for name in readers():
        found |= dict.fromkeys(reader(name).ENDINGS, name)
    return found


def by_ending(name: str) -> str:
    """Return the format that the ending of a file's name tells, before `.gz`; else nothing.

    The longest ending counts: `.squad.json` is not `.json`.
    """
    plain = name.lower().removesuffix(".gz")
    fitting = {ending: form for ending, form in endings().items() if plain.endswith(ending)}
    return fitting[max(fitting, key=len)] if fitting else ""


def inside(name: str) -> str:
    """Return the glob of a folder's files, where `name` lets a folder be named; else nothing."""
    return "" if name in ("auto", *TEXT_FORMATS) else reader(name).INSIDE


def _check(name: str) -> str:
    names = known()
    if name not in names and not ("." in name and reader(name)):
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, names))})
    return name


def _list_names(schema: dict[str, Any]) -> None:
    """Add the names to the schema for editors; a dotted name is a module of the user's."""
    schema["anyOf"] = [{"enum": known()}, {"type": "string", "pattern": r"\w\.\w"}]


Format = Annotated[str, AfterValidator(_check), Field(json_schema_extra=_list_names)]
