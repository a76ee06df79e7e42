"""Names of settings and parameters in transformers, by the format of a family; writes by it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from pydantic_core import to_jsonable_python
from torch import Tensor

from nlpkit.config import FrozenConfig
from nlpkit.contracts.format import HfFormat, Settings, State, Transposed, Values
from nlpkit.models.config import ModelConfig

NUMBER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Name:
    """The name of one parameter in transformers."""

    theirs: str
    transposed: bool = False
    folder: str = ""  # subdirectory of the checkpoint

    @property
    def key(self) -> str:
        """The name among all tensors of a checkpoint and its folders."""
        return f"{self.folder}/{self.theirs}" if self.folder else self.theirs


def own_format(config: type[FrozenConfig], *modules: str) -> HfFormat:
    """Return the format of a family that transformers lacks: names and settings are unchanged.

    `modules` are the parameters and modules of the model.
    """
    settings = [name for name, field in config.model_fields.items() if not field.exclude]

    def read(settings: Settings, sizes: Values) -> Values:
        two = "decoder_vocab_size" in settings
        return sizes | ({"source_vocab_size": settings["vocab_size"]} if two else {})

    return HfFormat(
        "", {name: name for name in modules}, {name: name for name in settings}, read_config=read
    )


def names_of(form: HfFormat, ours: str) -> list[Name]:
    """Return transformers' name of our parameter in each folder that contains it."""
    parts = {"": form, **form.folders}
    names = [(folder, matching_name(part.names, ours)) for folder, part in parts.items()]
    return [Name(n, isinstance(n, Transposed), folder) for folder, n in names if n is not None]


def matching_name(rows: Mapping[str, str], ours: str) -> str | None:
    """Return the name by the longest matching row, or None."""
    for row in sorted(rows, key=len, reverse=True):
        if hit := _pattern(row).fullmatch(ours):
            *numbers, suffix = hit.groups()
            theirs = rows[row]
            for number in numbers:
                theirs = type(theirs)(NUMBER.sub(number, theirs, count=1))
            return type(theirs)(theirs + (suffix or ""))
    return None


@cache
def _pattern(row: str) -> re.Pattern[str]:
    """Return the pattern of our names that a row of a table of names stands for."""
    pattern = NUMBER.sub(r"(\\d+)", re.escape(row).replace(r"\{", "{").replace(r"\}", "}"))
    return re.compile(rf"{pattern}(\..+)?")


def vocabulary_size(state: Mapping[str, Tensor], tables: Sequence[str]) -> int:
    """Return the number of rows of the tables; 0 if the state dict has none of them."""
    return next((len(state[name]) for name in tables if name in state), 0)


def to_hf_tensors(
    form: HfFormat, config: FrozenConfig, state: State
) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each folder of a checkpoint; "" is the checkpoint's directory.

    Raises:
        KeyError: the table has no name for one of our tensors.
    """
    folders = {folder: part for folder, part in form.folders.items() if part.present(config)}
    parts = {"": form, **folders}
    tensors: dict[str, dict[str, Tensor]] = {folder: {} for folder in parts}
    for ours, tensor in form.join(config, state).items():
        names = names_of(form, ours)
        if not names:
            raise KeyError(ours)
        for name in names:
            transpose = name.transposed and tensor.ndim == 2
            if name.folder in parts:
                tensors[name.folder][name.theirs] = tensor.T if transpose else tensor
    for folder, part in parts.items():
        for theirs, ours in part.copies.items():
            if ours in state and theirs not in tensors[folder]:
                tensors[folder][theirs] = state[ours].clone()
    return tensors


def to_hf_settings(
    form: HfFormat, config: ModelConfig, *, model_type: str, vocab_size: int, notes: Values | None
) -> Values:
    """Return config.json of a model, or of the model in a folder.

    `vocab_size` is 0 if the family has no vocabulary; `notes` are nlpkit's own settings of the
    model, None for a folder.
    """
    more = form.more_settings(config)
    own = more.pop("nlpkit", {})
    settings: Values = {
        "architectures": [form.architecture] if form.architecture else [],
        "model_type": model_type,
    }
    if vocab_size:
        settings["vocab_size"] = vocab_size
    if config.source_vocab_size:  # as Marian's are called
        settings |= {"vocab_size": config.source_vocab_size, "decoder_vocab_size": vocab_size}
    settings |= {**more, "dtype": "float32"}
    if notes is not None:
        settings["nlpkit"] = {**notes, **own}
    sizes = {theirs: getattr(config, ours) for ours, theirs in form.sizes.items()}
    return {**settings, **to_jsonable_python(sizes), **more}


def matches(patterns: Sequence[str], *names: str) -> bool:
    """Return whether a pattern matches parts of a name: `pooler` in `bert.pooler.dense.bias`."""
    return any(fnmatchcase(f".{name}.", f"*.{pattern}.*") for name in names for pattern in patterns)
