"""The sources of a recipe's `data` section: files, directories, data sets; where their text is."""

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from nlpkit.config import FrozenConfig
from nlpkit.data import template
from nlpkit.data.formats import Format


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
    if not found or not all(isinstance(key, str) for key in found):
        what = "Input should be a valid string, or a list of strings"
        raise PydanticCustomError("string_type", what)
    if "" in found:
        what = "String should have at least 1 character"
        raise PydanticCustomError("string_too_short", what, {"min_length": 1})
    problems = [template.problem(str(key)) for key in found]
    if wrong := next(filter(None, problems), None):
        raise ValueError(wrong)
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
