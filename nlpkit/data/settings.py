"""The recipe's `data` section: files, directories, data sets, and where their text is."""

import json
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from nlpkit.config import FrozenConfig, Workers
from nlpkit.data import formats
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject

Part = Literal["all", "train", "valid"]


def _check(name: str) -> str:
    if "." in name:
        try:
            formats.reader(name)
        except UsageError as error:
            raise ValueError(str(error)) from error
    elif name not in (names := formats.all_names()):
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, names))})
    return name


def _list_names(schema: JsonObject) -> None:
    """Add the names to the schema for editors; a dotted name is a module of the user's."""
    schema["anyOf"] = [{"enum": formats.all_names()}, {"type": "string", "pattern": r"\w\.\w"}]


Format = Annotated[str, AfterValidator(_check), Field(json_schema_extra=_list_names)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, (str, dict, Source)) else value


def _as_source(value: object) -> object:
    """Read a plain string as a source of weight 1; done here, since a union gives two errors."""
    if isinstance(value, str) and value:
        return {"files": [value]}
    if isinstance(value, (dict, Source)):
        return value
    raise PydanticCustomError("source", "needs a path, a glob or {files: [...], weight: ...}")


def _as_keys(value: object) -> str | list[str]:
    """Return keys as text; one error for a value of another kind, where a union gives two."""
    keys = value if isinstance(value, list) else [value]
    found = [str(k) if isinstance(k, int) and not isinstance(k, bool) else k for k in keys]
    wrong = [key for key in found if not isinstance(key, str)]
    if wrong and isinstance(value, list):
        raise ValueError(f"the entry {json.dumps(wrong[0], default=str)} is not text")
    if wrong or not found:
        raise PydanticKnownError("string_type")
    if "" in found:
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    if any(brace in str(key) for key in found for brace in "{}"):
        from nlpkit.data import template

        if what := next(filter(None, map(template.problem, map(str, found))), None):
            raise ValueError(what)
    return [str(key) for key in found] if isinstance(value, list) else str(found[0])


Name = Annotated[str, Field(min_length=1)]


TextKey = Annotated[
    str | list[str], PlainValidator(_as_keys, json_schema_input_type=Name | int | list[Name | int])
]


class Source(FrozenConfig):
    """One part of a mixture: its files are read in order, as one."""

    files: Annotated[
        list[Name],
        Field(description="paths, globs or directories (texts/); - is stdin"),
        BeforeValidator(_as_list, json_schema_input_type=str | list[Name]),
    ] = Field(default_factory=list)
    hf: Name | None = Field(
        None, description="directory of a data set of the datasets library, instead of files"
    )
    split: Name | None = Field(None, description="split of hf; default: train")
    text_key: TextKey | None = Field(None, description="as data.text_key, for these files")
    max_rows: int | None = Field(None, ge=1, description="the first rows of each file alone")
    weight: float = Field(1.0, gt=0, description="how often an epoch has each of its documents")
    format: Format | None = Field(None, description="as data.format, for these files")

    @model_validator(mode="after")
    def _of_one_kind(self) -> "Source":
        if self.hf is not None and self.files:
            raise ValueError("files and hf exclude each other: remove one of them")
        if self.hf is None and not self.files:
            raise ValueError("needs files: [...], or hf: DIRECTORY")
        if self.split is not None and self.hf is None:
            raise ValueError("split: only of hf, the directory of a data set")
        return self


Sources = Annotated[
    list[Annotated[Source, BeforeValidator(_as_source, json_schema_input_type=Name | Source)]],
    BeforeValidator(_as_list, json_schema_input_type=Name | Source | list[Name | Source]),
]


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Config(FrozenConfig):
    """The recipe's `data` section. After validation every entry of `train` is a `Source`."""

    ALTERNATIVES: ClassVar = (("valid", "valid_fraction"),)

    train: Annotated[Sources, Field(min_length=1, description="training files: paths or globs")]
    valid: Sources = Field(default_factory=list, description="held-out files")
    valid_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of documents held out, chosen by a hash of their text"
    )
    valid_group: Name | None = Field(
        None,
        description="column of rows; those with the same value there (lists in any order) are held "
        "out together",
    )
    format: Format = Field("auto", description="auto goes by the ending, before .gz")
    text_key: Annotated[
        TextKey,
        Field(
            description="where the text is: a key or column (a name in the header, or 1, 2…), a "
            "path (meta.text), several, each on a line ([title, body]), or a template "
            "('{title}: {body}')"
        ),
    ] = "text"
    rows: Annotated[
        Name | None, BeforeValidator(_as_text, json_schema_input_type=Name | int | None)
    ] = Field(
        None,
        description="path to the lists whose entries are the rows of a task, in nested values: "
        "data.paragraphs.qas; lists that belong together: questions+options+answers",
    )
    history: int | None = Field(
        None,
        ge=1,
        description="entries of such a list before a row's, at most so many, as its column before: "
        "the turns of a dialogue",
    )
    line_break: Name | None = Field(
        None, description="mark that stands for a newline in lines of text, tsv, parallel: <n>"
    )
    on_error: Literal["stop", "skip"] = Field("stop", description="what a malformed row does")
    workers: Workers | None = Field(None, ge=1, description="processes that tokenise; default: all")
    cache: Name | None = Field(None, description="directory of the tokenised data")

    def without_effect(self) -> dict[str, str]:
        """See `FrozenConfig`."""
        return {} if self.valid_fraction else {"valid_group": "without valid_fraction"}

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if self.valid and self.valid_fraction:
            raise PydanticCustomError("exclude", "valid and valid_fraction exclude each other")
        if self.history is not None and self.rows is None:
            raise ValueError("history: needs rows, the path to the list of turns")
        return self
