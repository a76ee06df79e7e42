"""What a family's checkpoints are called in transformers: tables of settings and of parameters.

The same tables serve for writing and for reading, so that the two agree. A family has small
functions for everything that a table cannot express (`more_settings`, `read_config`, `join`,
`split`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from nlpkit.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "Mapping[str, Tensor]"
Settings: TypeAlias = JsonMapping
Values: TypeAlias = JsonObject  # settings that are made here
FOLDERS = "nlpkit.folders"  # of settings that were read: config.json of each folder that is there


class Transposed(str):
    """The name in transformers of linear layers whose weights are (in, out) there."""

    __slots__ = ()


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
    defaults: JsonMapping = field(default_factory=dict)
    # transformers' settings that make another model, with the only value that the family has.
    fixed: JsonMapping = field(default_factory=dict)
    body: str = ""  # prefix of the body's names in a transformers model with a head
    bodies: Mapping[str, str] = field(default_factory=dict)  # classes with another such prefix
    copies: Mapping[str, str] = field(default_factory=dict)  # their tensors that are copies of ours
    # Ends of their tensors' names in old checkpoints, with the ends that they have now.
    old_ends: Mapping[str, str] = field(default_factory=dict)
    # Parts of the names on disk with those of transformers' modules in memory, where they differ;
    # they are replaced in this order. peft names modules.
    in_memory: Mapping[str, str] = field(default_factory=dict)
    # These are parts of dotted names, ours or theirs.
    optional: tuple[str, ...] = ()  # a checkpoint may lack such tensors
    ignored: tuple[str, ...] = ()  # a checkpoint may contain such tensors; they are not read
    beside: tuple[str, ...] = ()  # tensors of ours that the model there leaves out
    # Further settings in config.json; those under `nlpkit` are added to our notes.
    more_settings: Callable[[Any], Values] = lambda config: {}
    # Write `bos_token_id` and `eos_token_id`; transformers' defaults are ids of the original
    # vocabulary.
    bos_and_eos: bool = False
    # Write `pad_token_id`, because the models there leave tokens of this id out. It is -1, the id
    # of no token, for a tokenizer without padding.
    has_padding: bool = False
    has_separator: bool = False  # Write `sep_token_id`, by which the models there find texts.
    # Ids of tokens that are others there: `cls_token_id` that of `bos_token_id`.
    same_ids: Mapping[str, str] = field(default_factory=dict)
    # Returns the arguments of `Config`, from config.json and its sizes; raises ValueError.
    read_config: Callable[[Settings, Values], Values] = lambda settings, sizes: sizes
    # `join` merges or splits tensors of our state dict as `names` requires; `split` reverses it.
    join: Callable[[Any, State], State] = lambda config, state: state
    split: Callable[[Any, Settings, State], State] = lambda config, settings, state: state
    folders: Mapping[str, HfFormat] = field(default_factory=dict)  # saved as separate models
    # Of a folder: whether a model with these settings has it.
    present: Callable[[Any], bool] = lambda config: True
