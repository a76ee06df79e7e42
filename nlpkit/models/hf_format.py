"""A family's checkpoints in transformers: one table of settings, one of names, for both ways.

Written and read by the same tables, so that what the one says the other understands. What a table
cannot say is a small function of the family's (`more_settings`, `read_config`, `join`, `split`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from nlpkit.config import FrozenConfig

State = Mapping[str, Tensor]
Settings = Mapping[str, Any]
_NUMBER = re.compile(r"\{(\w+)\}")


class Transposed(str):
    """A name in transformers of linear layers whose weights are kept there as (in, out)."""

    __slots__ = ()


@dataclass(frozen=True)
class Name:
    """What transformers calls one parameter."""

    theirs: str
    transposed: bool = False
    folder: str = ""  # below the checkpoint's directory

    @property
    def key(self) -> str:
        """Return the name among all tensors of a checkpoint, those of its folders included."""
        return f"{self.folder}/{self.theirs}" if self.folder else self.theirs


@dataclass(frozen=True)
class HfFormat:
    """How transformers calls a family's settings and parameters."""

    architecture: str  # transformers' class of the whole model
    # Our parameters and modules, and transformers' names of them: a module's row is good for all
    # that is in it, the longest row counts, and {num_layers} is any number below that setting.
    # What `join` makes has rows of its own, one for each tensor.
    names: Mapping[str, str]
    sizes: Mapping[str, str]  # our settings and transformers'
    body: str = ""  # what the names of the body begin with, as transformers saves it with a head
    copies: Mapping[str, str] = field(default_factory=dict)  # their tensors that repeat one of ours
    # Parts of dotted names, ours or theirs: a checkpoint may lack such tensors; and it may hold
    # such ones beside, which mean nothing.
    optional: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    # Settings in config.json beside `sizes`; those in `nlpkit` are added to what is there.
    more_settings: Callable[[Any], dict[str, Any]] = lambda config: {}
    # What `Config` takes, from config.json and the sizes found in it; raises ValueError.
    read_config: Callable[[Settings, dict[str, Any]], dict[str, Any]] = lambda settings, sizes: (
        sizes
    )
    # Our state dict with tensors put together, or apart, as `names` has them; and back.
    join: Callable[[Any, State], State] = lambda config, state: state
    split: Callable[[Any, Settings, State], State] = lambda config, settings, state: state
    folders: Mapping[str, "HfFormat"] = field(default_factory=dict)  # parts saved as models apart


def own_format(config: type[FrozenConfig], *modules: str) -> HfFormat:
    """Return the format of a family that transformers has not: names and settings as they are.

    `modules` are the parameters and modules of the model.
    """
    settings = [name for name, field in config.model_fields.items() if not field.exclude]
    return HfFormat("", {name: name for name in modules}, {name: name for name in settings})


def table_names(form: HfFormat, tables: Sequence[str]) -> dict[str, str]:
    """Return the tables of the vocabulary by our names, with transformers'."""
    found = {ours: names_of(form, ours) for ours in tables}
    return {ours: names[0].theirs for ours, names in found.items() if names}


def is_transposed(form: HfFormat, theirs: str) -> bool:
    """Return whether transformers keeps the weight of its layer `theirs` as (in, out)."""
    for row in form.names.values():
        if isinstance(row, Transposed):
            rows = {row: row, row.removeprefix(form.body): row}
            if _theirs(rows, f"{theirs}.weight") is not None:
                return True
    return False


def outline(model: Callable[..., nn.Module], config: FrozenConfig, vocab_size: int) -> nn.Module:
    """Return a family's `Model` without memory: its names and shapes."""
    with torch.device("meta"):
        return model(config, vocab_size, "auto")


def linear_names(
    form: HfFormat, model: Callable[..., nn.Module], config: FrozenConfig
) -> dict[str, str]:
    """Return the linear layers' names here and in transformers, in the order of the model.

    Left out are layers of other folders, and those that transformers keeps in one tensor with
    others.
    """
    found = {}
    made = outline(model, config, 1)
    alone = form.join(config, made.state_dict()).keys()
    for ours, layer in made.named_modules():
        if isinstance(layer, nn.Linear) and f"{ours}.weight" in alone:
            theirs = _theirs(form.names, f"{ours}.weight")
            if theirs is not None:
                found[ours] = str(theirs.removesuffix(".weight"))
    return found


def names_of(form: HfFormat, ours: str) -> list[Name]:
    """Return what one of our parameters is called there, in each folder that has it."""
    parts = {"": form, **form.folders}
    found = [(folder, _theirs(each.names, ours)) for folder, each in parts.items()]
    return [Name(n, isinstance(n, Transposed), folder) for folder, n in found if n is not None]


def _theirs(rows: Mapping[str, str], ours: str) -> str | None:
    """Return the name by the longest row that fits."""
    for row in sorted(rows, key=len, reverse=True):
        pattern = _NUMBER.sub(r"(\\d+)", re.escape(row).replace(r"\{", "{").replace(r"\}", "}"))
        if hit := re.fullmatch(rf"{pattern}(\..+)?", ours):
            *numbers, rest = hit.groups()
            theirs = rows[row]
            for number in numbers:
                theirs = type(theirs)(_NUMBER.sub(number, theirs, count=1))
            return type(theirs)(theirs + (rest or ""))
    return None


def written(form: HfFormat, config: FrozenConfig, state: State) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each folder of a checkpoint; "" is its own directory.

    Raises:
        KeyError: the table has no name for one of ours.
    """
    parts = {"": form, **form.folders}
    tensors: dict[str, dict[str, Tensor]] = {folder: {} for folder in parts}
    for ours, tensor in form.join(config, state).items():
        names = names_of(form, ours)
        if not names:
            raise KeyError(ours)
        for name in names:
            turned = name.transposed and tensor.ndim == 2
            tensors[name.folder][name.theirs] = tensor.T if turned else tensor
    for folder, each in parts.items():
        for theirs, ours in each.copies.items():
            if ours in state:
                tensors[folder][theirs] = state[ours].clone()
    return tensors


def settings_of(
    form: HfFormat,
    config: FrozenConfig,
    *,
    model_type: str,
    vocab_size: int,
    notes: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return config.json of a model, or of a folder's, which has no notes of ours.

    Args:
        vocab_size: 0 if the family has no vocabulary.
        notes: what nlpkit must know about it.
    """
    more = form.more_settings(config)
    own = more.pop("nlpkit", {})
    found: dict[str, Any] = {
        "architectures": [form.architecture] if form.architecture else [],
        "model_type": model_type,
    }
    if vocab_size:
        found["vocab_size"] = vocab_size
    found |= {**more, "dtype": "float32"}
    if notes is not None:
        found["nlpkit"] = {**notes, **own}
    sizes = {theirs: getattr(config, ours) for ours, theirs in form.sizes.items()}
    return {**found, **sizes, **more}


def read_config(form: HfFormat, config: type[FrozenConfig], settings: Settings) -> FrozenConfig:
    """Return our `Config` from transformers' config.json.

    Raises:
        KeyError: a setting is missing.
        ValueError: one of them is none that this family can have.
    """
    sizes = {}
    for ours, theirs in form.sizes.items():
        value = settings[theirs]
        # In JSON 0 may be written for 0.0.
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        sizes[ours] = (
            float(value) if is_whole and config.model_fields[ours].annotation is float else value
        )
    return config(**form.read_config(settings, sizes))


def read_state(
    form: HfFormat, config: FrozenConfig, settings: Settings, tensors: State, wanted: nn.Module
) -> tuple[dict[str, Tensor], list[str]]:
    """Return what of our state dict the tensors hold, and the names of tensors left over.

    Args:
        wanted: a model of this `config`, whose names are looked for.
    """
    state: dict[str, Tensor] = {}
    used = set()
    names = [*wanted.state_dict()]
    for ours in (*names, *_joined(form, config, names)):
        for name in names_of(form, ours):
            key = _key(form, name.key, tensors)
            if key is None:
                continue
            used.add(key)
            tensor = tensors[key]
            turned = name.transposed and tensor.ndim == 2
            state.setdefault(ours, tensor.T.contiguous() if turned else tensor)
    state = dict(form.split(config, settings, state))
    left = [key for key in tensors if key not in used and not _repeats(form, key, tensors, state)]
    return state, [key for key in left if not matches(form.ignored, key)]


def _joined(form: HfFormat, config: FrozenConfig, names: Iterable[str]) -> Iterator[str]:
    """Yield what the table has and the model has not: what `join` makes and `split` takes apart."""
    for each in (form, *form.folders.values()):
        for row in each.names:
            if not any(_theirs({row: ""}, ours) is not None for ours in names):
                depths = [range(getattr(config, setting)) for setting in _NUMBER.findall(row)]
                for numbers in product(*depths):
                    found = row
                    for number in numbers:
                        found = _NUMBER.sub(str(number), found, count=1)
                    yield found


def _key(form: HfFormat, key: str, tensors: State) -> str | None:
    """Return the tensor of this name; the body alone is saved without the body's name."""
    folder, slash, name = key.rpartition("/")
    body = (form.folders[folder] if folder else form).body
    keys = (key, f"{folder}{slash}{name.removeprefix(body)}")
    return next((each for each in keys if each in tensors), None)


def _repeats(form: HfFormat, key: str, tensors: State, state: State) -> bool:
    """Return whether a tensor says once more what one of ours does."""
    folder, _, name = key.rpartition("/")
    ours = (form.folders.get(folder, form) if folder else form).copies.get(name)
    return ours is not None and (ours not in state or torch.equal(tensors[key], state[ours]))


def matches(patterns: Sequence[str], *names: str) -> bool:
    """Return whether a pattern is a part of a dotted name: `pooler` of `bert.pooler.dense.bias`."""
    return any(fnmatchcase(f".{name}.", f"*.{pattern}.*") for name in names for pattern in patterns)


def check_depth(form: HfFormat, config: FrozenConfig, tensors: State) -> None:
    """Raise `KeyError` if the settings name more layers than there are tensors."""
    for setting in _depths(form):
        depth = getattr(config, setting)
        if depth > len(tensors):
            raise KeyError(f"layer {depth - 1}")


def _depths(form: HfFormat) -> Iterator[str]:
    for each in (form, *form.folders.values()):
        for row in each.names:
            yield from _NUMBER.findall(row)
