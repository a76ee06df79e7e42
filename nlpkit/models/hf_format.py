"""The format of a family's checkpoints in transformers: a table of settings and a table of names.

The same tables serve for writing and for reading, so that the two agree. A family has small
functions for everything that a table cannot express (`more_settings`, `read_config`, `join`,
`split`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from typing import Any, TypeVar, get_args

import torch
from pydantic_core import to_jsonable_python
from torch import Tensor, nn

from nlpkit.config import FrozenConfig
from nlpkit.models.meta import meta_model

State = Mapping[str, Tensor]
_Config = TypeVar("_Config", bound=FrozenConfig)
Settings = Mapping[str, Any]
_NUMBER = re.compile(r"\{(\w+)\}")
FOLDERS = "nlpkit.folders"  # of settings that were read: config.json of each folder that is there


class Transposed(str):
    """The name in transformers of linear layers whose weights are (in, out) there."""

    __slots__ = ()


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


@dataclass(frozen=True)
class HfFormat:
    """The names of a family's settings and parameters in transformers."""

    architecture: str  # transformers' class of the complete model
    # Our parameters and modules with transformers' names. The row of a module holds for all its
    # contents; the longest matching row counts; {num_layers} is any number below that setting.
    # Each tensor that `join` adds has its own row. A row that a model with these settings has no
    # tensor for, such as an untied output table, is not written; read, it is one of `copies`.
    names: Mapping[str, str]
    sizes: Mapping[str, str]  # our settings with transformers' names
    pipeline: str = "feature-extraction"  # the Hub's name of what the class does
    # transformers' settings that config.json may lack, with the values that are meant then
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # transformers' settings that make another model, with the only value that the family has.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    body: str = ""  # prefix of the body's names in a transformers model with a head
    copies: Mapping[str, str] = field(default_factory=dict)  # their tensors that are copies of ours
    # Ends of their tensors' names in old checkpoints, with the ends that they have now.
    old_ends: Mapping[str, str] = field(default_factory=dict)
    # Parts of the names on disk with those of transformers' modules in memory, where they differ;
    # they are replaced in this order. peft names modules.
    in_memory: Mapping[str, str] = field(default_factory=dict)
    # Both are parts of dotted names, ours or theirs.
    optional: tuple[str, ...] = ()  # a checkpoint may lack such tensors
    ignored: tuple[str, ...] = ()  # a checkpoint may contain such tensors; they are not read
    # Further settings in config.json; those under `nlpkit` are added to our notes.
    more_settings: Callable[[Any], dict[str, Any]] = lambda config: {}
    # Write `bos_token_id` and `eos_token_id`; transformers' defaults are ids of the original
    # vocabulary.
    bos_and_eos: bool = False
    # Write `pad_token_id`, because the models there leave tokens of this id out. It is -1, the id
    # of no token, for a tokenizer without padding.
    has_padding: bool = False
    # Returns the arguments of `Config`, from config.json and its sizes; raises ValueError.
    read_config: Callable[[Settings, dict[str, Any]], dict[str, Any]] = lambda settings, sizes: (
        sizes
    )
    # `join` merges or splits tensors of our state dict as `names` requires; `split` reverses it.
    join: Callable[[Any, State], State] = lambda config, state: state
    split: Callable[[Any, Settings, State], State] = lambda config, settings, state: state
    folders: Mapping[str, "HfFormat"] = field(default_factory=dict)  # saved as separate models
    # Of a folder: whether a model with these settings has it.
    present: Callable[[Any], bool] = lambda config: True


def own_format(config: type[FrozenConfig], *modules: str) -> HfFormat:
    """Return the format of a family that transformers lacks: names and settings are unchanged.

    `modules` are the parameters and modules of the model.
    """
    settings = [name for name, field in config.model_fields.items() if not field.exclude]

    def read(settings: Settings, sizes: dict[str, Any]) -> dict[str, Any]:
        two = "decoder_vocab_size" in settings
        return sizes | ({"source_vocab_size": settings["vocab_size"]} if two else {})

    return HfFormat(
        "",
        {name: name for name in modules},
        {name: name for name in settings},
        read_config=read,
    )


def table_names(form: HfFormat, tables: Sequence[str]) -> dict[str, str]:
    """Return our names of the vocabulary tables with transformers' names, without folders."""
    all_names = {ours: names_of(form, ours) for ours in tables}
    first = {ours: names[0] for ours, names in all_names.items() if names}
    return {ours: name.theirs for ours, name in first.items() if not name.folder}


def table_layer(form: HfFormat, ours: str, config: FrozenConfig) -> dict[str, str]:
    """Return our name of an input table with that of transformers' layer, if it is one layer there.

    It is not where several layers share a table, such as those of an encoder and a decoder.
    """
    parts = {"": form, **form.folders}
    names = [name for name in names_of(form, ours) if parts[name.folder].present(config)]
    copies = [theirs for theirs, table in form.copies.items() if table == ours]
    if len(names) != 1 or names[0].folder or len(copies) > 1:
        return {}
    return {ours: names[0].theirs.removesuffix(".weight")}


def is_transposed(form: HfFormat, theirs: str) -> bool:
    """Return whether the weight of transformers' layer `theirs` is (in, out)."""
    for row in form.names.values():
        if isinstance(row, Transposed):
            rows = {row: row, row.removeprefix(form.body): row}
            if _theirs(rows, f"{theirs}.weight") is not None:
                return True
    return False


def in_memory(form: HfFormat, theirs: str) -> str:
    """Return the name in memory of a layer or tensor that is called `theirs` on disk."""
    for on_disk, name in form.in_memory.items():
        theirs = theirs.replace(on_disk, name)
    return theirs


def linear_names(
    form: HfFormat, model: Callable[..., nn.Module], config: FrozenConfig
) -> dict[str, str]:
    """Return our names of the linear layers with transformers' names, in the order of the model.

    Layers of other folders, and layers that transformers merges into one tensor, are left out.
    """
    layers = {}
    module = meta_model(model, config, 1)
    separate = form.join(config, module.state_dict()).keys()
    for ours, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and f"{ours}.weight" in separate:
            theirs = _theirs(form.names, f"{ours}.weight")
            if theirs is not None:
                layers[ours] = str(theirs.removesuffix(".weight"))
    return layers


def names_of(form: HfFormat, ours: str) -> list[Name]:
    """Return transformers' name of our parameter in each folder that contains it."""
    parts = {"": form, **form.folders}
    names = [(folder, _theirs(part.names, ours)) for folder, part in parts.items()]
    return [Name(n, isinstance(n, Transposed), folder) for folder, n in names if n is not None]


def _theirs(rows: Mapping[str, str], ours: str) -> str | None:
    """Return the name by the longest matching row, or None."""
    for row in sorted(rows, key=len, reverse=True):
        if hit := _pattern(row).fullmatch(ours):
            *numbers, suffix = hit.groups()
            theirs = rows[row]
            for number in numbers:
                theirs = type(theirs)(_NUMBER.sub(number, theirs, count=1))
            return type(theirs)(theirs + (suffix or ""))
    return None


@cache
def _pattern(row: str) -> re.Pattern[str]:
    """Return the pattern of our names that a row of a table of names stands for."""
    pattern = _NUMBER.sub(r"(\\d+)", re.escape(row).replace(r"\{", "{").replace(r"\}", "}"))
    return re.compile(rf"{pattern}(\..+)?")


def written(form: HfFormat, config: FrozenConfig, state: State) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each folder of a checkpoint; "" is the checkpoint's directory.

    Raises:
        KeyError: the table has no name for one of our tensors.
    """
    parts = {"": form, **form.folders}
    tensors: dict[str, dict[str, Tensor]] = {folder: {} for folder in parts}
    for ours, tensor in form.join(config, state).items():
        names = names_of(form, ours)
        if not names:
            raise KeyError(ours)
        for name in names:
            transpose = name.transposed and tensor.ndim == 2
            tensors[name.folder][name.theirs] = tensor.T if transpose else tensor
    for folder, part in parts.items():
        for theirs, ours in part.copies.items():
            if ours in state and theirs not in tensors[folder]:
                tensors[folder][theirs] = state[ours].clone()
    return {folder: tensors[folder] for folder, part in parts.items() if part.present(config)}


def settings_of(
    form: HfFormat,
    config: FrozenConfig,
    *,
    model_type: str,
    vocab_size: int,
    notes: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return config.json of a model, or of the model in a folder.

    Args:
        vocab_size: 0 if the family has no vocabulary.
        notes: nlpkit's own settings of the model; None for a folder.
    """
    more = form.more_settings(config)
    own = more.pop("nlpkit", {})
    settings: dict[str, Any] = {
        "architectures": [form.architecture] if form.architecture else [],
        "model_type": model_type,
    }
    if vocab_size:
        settings["vocab_size"] = vocab_size
    if source_vocab_size := getattr(config, "source_vocab_size", None):  # as Marian's are called
        settings |= {"vocab_size": source_vocab_size, "decoder_vocab_size": vocab_size}
    settings |= {**more, "dtype": "float32"}
    if notes is not None:
        settings["nlpkit"] = {**notes, **own}
    sizes = {theirs: getattr(config, ours) for ours, theirs in form.sizes.items()}
    return {**settings, **to_jsonable_python(sizes), **more}


def read_config(form: HfFormat, config: type[_Config], settings: Settings) -> _Config:
    """Return our `Config` from transformers' config.json.

    Raises:
        KeyError: a setting is missing.
        ValueError: the family does not support the value of a setting.
    """
    check_fixed(form.fixed, settings)
    sizes = {}
    for ours, theirs in form.sizes.items():
        value = settings[theirs] if theirs in settings else form.defaults[theirs]
        # JSON may contain 0 for 0.0.
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        sizes[ours] = (
            float(value) if is_integer and config.model_fields[ours].annotation is float else value
        )
    given = form.read_config(settings, sizes)
    for ours, theirs in form.sizes.items():
        known = get_args(config.model_fields[ours].annotation)  # of a `Literal`
        if all(isinstance(each, str) for each in known) and known and given[ours] not in known:
            raise ValueError(f"{theirs} is {given[ours]!r}; this family has {', '.join(known)}")
    return config(**given)


def check_fixed(fixed: Mapping[str, Any], settings: Settings) -> None:
    """Raise `ValueError` if config.json has another value of a setting than the family."""
    for name, value in fixed.items():
        if settings.get(name, value) != value:
            raise ValueError(f"{name} is {settings[name]!r}; this family has {value!r} only")


def read_state(
    form: HfFormat, config: FrozenConfig, settings: Settings, tensors: State, model: nn.Module
) -> tuple[dict[str, Tensor], list[str]]:
    """Return our state dict, as far as the tensors contain it, and the names of unused tensors.

    Args:
        model: a model with this `config`; its state dict has the names to read.
    """
    tensors = {_renamed(form, key): tensor for key, tensor in tensors.items()}
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
    return state, [key for key in unused if not matches(form.ignored, key)]


def _renamed(form: HfFormat, key: str) -> str:
    """Return today's name of a tensor of an old checkpoint."""
    for old, new in form.old_ends.items():
        if key.endswith(old):
            return key.removesuffix(old) + new
    return key


def _joined(form: HfFormat, config: FrozenConfig, names: Iterable[str]) -> Iterator[str]:
    """Yield the names in the table that the model lacks: tensors of `join`, inputs of `split`."""
    for part in (form, *form.folders.values()):
        for row in part.names:
            if not any(_theirs({row: ""}, ours) is not None for ours in names):
                depths = [range(getattr(config, setting)) for setting in _NUMBER.findall(row)]
                for numbers in product(*depths):
                    name = row
                    for number in numbers:
                        name = _NUMBER.sub(str(number), name, count=1)
                    yield name


def _key(form: HfFormat, key: str, tensors: State) -> str | None:
    """Return the tensor's name in the file, which lacks the prefix of a body without a head."""
    folder, slash, name = key.rpartition("/")
    body = (form.folders[folder] if folder else form).body
    keys = (key, f"{folder}{slash}{name.removeprefix(body)}")
    return next((name for name in keys if name in tensors), None)


def _repeats(form: HfFormat, key: str, tensors: State, state: State) -> bool:
    """Return whether a tensor is a copy of one of ours."""
    folder, _, name = key.rpartition("/")
    ours = (form.folders.get(folder, form) if folder else form).copies.get(name)
    return ours is not None and (ours not in state or torch.equal(tensors[key], state[ours]))


def matches(patterns: Sequence[str], *names: str) -> bool:
    """Return whether a pattern matches parts of a name: `pooler` in `bert.pooler.dense.bias`."""
    return any(fnmatchcase(f".{name}.", f"*.{pattern}.*") for name in names for pattern in patterns)


def with_missing_folders(form: HfFormat, settings: Settings, allowed: Sequence[str]) -> Settings:
    """Return settings in which a folder that may be missing is there, with no settings of its own.

    `read_config` of the family then gives it its default sizes.
    """
    missing: dict[str, Settings] = {name: {} for name in form.folders if matches(allowed, name)}
    return {**settings, FOLDERS: {**missing, **settings.get(FOLDERS, {})}} if missing else settings


def check_depth(form: HfFormat, config: FrozenConfig, tensors: State) -> None:
    """Raise `KeyError` if the settings require more layers than there are tensors."""
    for setting in _depths(form):
        depth = getattr(config, setting)
        if depth > len(tensors):
            raise KeyError(f"layer {depth - 1}")


def _depths(form: HfFormat) -> Iterator[str]:
    for part in (form, *form.folders.values()):
        for row in part.names:
            yield from _NUMBER.findall(row)
