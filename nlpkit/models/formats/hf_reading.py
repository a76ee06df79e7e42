"""Reads settings and weights of transformers by the format of a family (`contracts/format.py`)."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TypeVar, get_args

import torch
from torch import Tensor, nn

from nlpkit.config import FrozenConfig
from nlpkit.contracts.format import FOLDERS, HfFormat, Settings, State
from nlpkit.json_types import JsonMapping
from nlpkit.models.formats.hf_format import NUMBER, matches, matching_name, names_of

_Config = TypeVar("_Config", bound=FrozenConfig)


def read_config(form: HfFormat, config: type[_Config], settings: Settings) -> _Config:
    """Return our `Config` from transformers' config.json.

    Raises:
        KeyError: a setting is missing.
        ValueError: the family does not support the value of a setting.
    """
    check_fixed(form.fixed, settings)
    sizes = {
        ours: settings[theirs] if theirs in settings else form.defaults[theirs]
        for ours, theirs in form.sizes.items()
    }
    given = form.read_config(settings, sizes)
    for ours, theirs in form.sizes.items():
        known = get_args(config.model_fields[ours].annotation)  # of a `Literal`
        if all(isinstance(each, str) for each in known) and known and given[ours] not in known:
            raise ValueError(f"{theirs} is {given[ours]!r}; this family has {', '.join(known)}")
    return config(**given)


def check_fixed(fixed: JsonMapping, settings: Settings) -> None:
    """Raise `ValueError` if config.json has another value of a setting than the family."""
    for name, value in fixed.items():
        if settings.get(name, value) != value:
            raise ValueError(f"{name} is {settings[name]!r}; this family has {value!r} only")


def read_state(
    form: HfFormat, config: FrozenConfig, settings: Settings, tensors: State, model: nn.Module
) -> tuple[dict[str, Tensor], list[str]]:
    """Return our state dict, as far as the tensors contain it, and the names of unused tensors.

    `model` is one with this `config`; its state dict has the names to read.

    Raises:
        ValueError: a copy of a table differs from it; transformers then ties neither to the other.
    """
    tensors = {current_name(form, key): tensor for key, tensor in tensors.items()}
    state: dict[str, Tensor] = {}
    used: dict[str, list[str]] = {}
    names = [*model.state_dict()]
    for ours in (*names, *_joined(form, config, names)):
        for name in names_of(form, ours):
            key = _key(form, name.key, tensors)
            if key is None:
                continue
            tensor = tensors[key]
            if name.transposed and tensor.ndim == 2:
                tensor = tensor.T.contiguous()
            # What two folders share is read from the first; another tensor in the second is unused.
            first = state.setdefault(ours, tensor)
            if first is tensor or torch.equal(first, tensor.to(first.dtype)):
                used.setdefault(ours, []).append(key)
    state = dict(form.split(config, settings, state))
    for ours in state.keys() - {*names}:  # for models with other settings
        del state[ours], used[ours]
    read = {key for keys in used.values() for key in keys}
    unused = [key for key in tensors if key not in read and not _repeats(form, key, tensors, state)]
    if others := [key for key in unused if key in form.copies and tensors[key].ndim > 1]:
        table = names_of(form, form.copies[others[0]])[0].key
        raise ValueError(f"{others[0]} is not {table}; this model has one table for both")
    return state, [key for key in unused if not matches(form.ignored, key)]


def current_name(form: HfFormat, key: str) -> str:
    """Return the name in `form` of a tensor of an old checkpoint, or of a class in `bodies`."""
    for body in form.bodies.values():
        if key.startswith(body):
            key = form.body + key.removeprefix(body)
    for old, new in form.old_ends.items():
        if key.endswith(old):
            return key.removesuffix(old) + new
    return key


def _joined(form: HfFormat, config: FrozenConfig, names: Iterable[str]) -> Iterator[str]:
    """Yield the names in the table that the model lacks: tensors of `join`, inputs of `split`."""
    for part in (form, *form.folders.values()):
        for row in part.names:
            if not any(matching_name({row: ""}, ours) is not None for ours in names):
                depths = [range(getattr(config, setting)) for setting in NUMBER.findall(row)]
                for numbers in product(*depths):
                    name = row
                    for number in numbers:
                        name = NUMBER.sub(str(number), name, count=1)
                    yield name


def _key(form: HfFormat, key: str, tensors: State) -> str | None:
    """Return the tensor's name in the file, which lacks the prefix of a body without a head."""
    folder, slash, name = key.rpartition("/")
    body = (form.folders[folder] if folder else form).body
    keys = (key, f"{folder}{slash}{name.removeprefix(body)}")
    return next((name for name in keys if name in tensors), None)


def _repeats(form: HfFormat, key: str, tensors: State, state: State) -> bool:
    """Return whether a tensor is a copy of a table, as we have it or as it is in the file."""
    folder, _, name = key.rpartition("/")
    ours = (form.folders.get(folder, form) if folder else form).copies.get(name)
    if ours is None or ours not in state:
        return ours is not None
    found = [tensors[name.key] for name in names_of(form, ours) if name.key in tensors]
    return any(_is_same(tensors[key], table) for table in (state[ours], *found))


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether tables are equal where both are finite; what is not is refused later."""
    if torch.equal(one, other) or not (one.is_floating_point() and other.is_floating_point()):
        return True  # integers are refused later, too
    if one.shape != other.shape:
        return False
    finite = one.isfinite() & other.isfinite()
    return torch.equal(one[finite], other[finite])


def add_missing_folders(form: HfFormat, settings: Settings, allowed: Sequence[str]) -> Settings:
    """Return settings in which a folder that may be missing is there, with no settings of its own.

    `read_config` of the family then gives it its default sizes.
    """
    missing: dict[str, Settings] = {name: {} for name in form.folders if matches(allowed, name)}
    return {**settings, FOLDERS: {**missing, **settings.get(FOLDERS, {})}} if missing else settings


def check_depth(form: HfFormat, config: FrozenConfig, tensors: State) -> None:
    """Raise `KeyError` if the settings require more layers than there are tensors."""
    rows = [row for part in (form, *form.folders.values()) for row in part.names]
    for setting in NUMBER.findall(" ".join(rows)):
        depth = getattr(config, setting)
        if depth > len(tensors):
            raise KeyError(f"layer {depth - 1}")
