"""Soft prompts in peft's layout: `adapter_config.json` and `adapter_model.safetensors`.

The settings are those of peft's `PromptTuningConfig`. Beside the embeddings of the virtual tokens
the file has the task's output layer, and the tables if the vocabulary has grown. Nothing can be
merged into the base: the model that opens them gets the virtual tokens (`models/soft_prompt.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nlpkit.checkpoints import hf_layout, hf_writing
from nlpkit.checkpoints.peft_layout import (
    SETTINGS,
    WEIGHTS,
    drop_copies,
    find_names,
    is_own,
    read_tensors,
    task_type,
)
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping
from nlpkit.models import families, lora
from nlpkit.models.config import ModelConfig
from nlpkit.models.layers.head import HEAD, head_names, task_head
from nlpkit.models.soft_prompt import NAME

_KIND = "PROMPT_TUNING"
_PREFIX = "base_model."  # of the names of the base's tensors in peft's file
_ROWS = "prompt_embeddings"


@dataclass(frozen=True)
class Made:
    """What is written of a soft prompt beside its weights."""

    family: str
    config: ModelConfig
    base: Path
    head_kind: str
    text: str | None  # whose words it began with
    grown: bool  # the vocabulary is larger than that of the base: the tables are saved, too


def write(
    directory: Path, made: Made, weights: Mapping[str, Tensor], merged: Mapping[str, Tensor]
) -> None:
    """Write the two files of peft.

    Args:
        weights: the model's state dict; the soft prompt and the task's output layer are saved.
        merged: the tensors of the model by transformers' names.
    """
    module = families.load_model(made.family)
    rows = weights[NAME]
    heads = task_head(module, made.head_kind).names if HEAD in weights else {}
    tensors = {theirs: weights[ours] for ours, theirs in heads.items()}
    if made.grown:
        vocabulary = families.load(made.family).VOCABULARY
        tables = lora.table_names(module.FORMAT, vocabulary).values()
        tensors |= {name: merged[name] for name in tables if name in merged}
    kind = task_type(module.FORMAT, made.head_kind if heads else None)
    settings = {
        "peft_type": _KIND,
        "task_type": kind or "FEATURE_EXTRACTION",  # peft wants one; this adds nothing
        "base_model_name_or_path": str(made.base),
        "num_virtual_tokens": len(rows),
        "token_dim": rows.shape[1],
        "num_transformer_submodules": 1,
        "num_attention_heads": made.config.setting("num_heads"),
        "num_layers": made.config.setting("num_layers"),
        "prompt_tuning_init": "RANDOM" if made.text is None else "TEXT",
        "prompt_tuning_init_text": made.text,
        "tokenizer_name_or_path": None if made.text is None else str(made.base),
        "modules_to_save": sorted({n.partition(".")[0] for n in heads.values()}) or None,
        "inference_mode": True,
    }
    (directory / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    named = {_ROWS: rows} | {f"{_PREFIX}{name}": tensor for name, tensor in tensors.items()}
    hf_writing.save_tensors(directory / WEIGHTS, named, {"format": "pt"})


def is_prompt(adapter: JsonMapping | None) -> bool:
    """Return whether this `adapter_config.json` is that of a soft prompt."""
    return adapter is not None and adapter.get("peft_type") == _KIND


def read_rows(directory: Path) -> Tensor | None:
    """Return the embeddings (P, E) of the virtual tokens of a checkpoint; None without a prompt.

    Raises:
        FileError: they are missing, or of another number than `adapter_config.json` says.
    """
    adapter = hf_layout.read_adapters(directory) if directory.is_dir() else None
    if adapter is None or not is_prompt(adapter):
        return None
    rows, count = read_tensors(directory).get(_ROWS), adapter.get("num_virtual_tokens")
    if rows is None or rows.ndim != 2 or not isinstance(count, int) or not 0 < count <= len(rows):
        raise FileError(
            f"{directory / WEIGHTS}: {_ROWS} of {count} virtual tokens are missing or of another "
            "size"
        )
    return rows[:count].clone()  # peft has as many again for a decoder, which it does not use


def read_state(directory: Path, family: str) -> dict[str, Tensor]:
    """Return what is trained, or new in the tables, by our names: a part of the state dict."""
    tensors, module = _read_others(directory), families.load_model(family)
    state = {ours: tensors[theirs] for ours, theirs in head_names(module) if theirs in tensors}
    tables = lora.table_names(module.FORMAT, families.load(family).VOCABULARY)
    state |= {ours: tensors[theirs] for ours, theirs in tables.items() if theirs in tensors}
    rows = read_rows(directory)
    return state if rows is None else {**state, NAME: rows}


def merge(
    directory: Path, adapter: JsonMapping, family: str, base: hf_layout.Content
) -> hf_layout.Content:
    """Return the content of a base with the output layer and the tables of a soft prompt."""
    form, tensors = families.load_model(family).FORMAT, dict(base[1])
    names = find_names(form, tensors)
    drop_copies(form, tensors, names)
    tensors |= {names.get(name, name): each for name, each in _read_others(directory).items()}
    own = is_own(adapter) and (directory / "config.json").is_file()
    return hf_layout.replace_settings((base[0], tensors), directory) if own else (base[0], tensors)


def _read_others(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of a directory that are those of a model, by transformers' names."""
    found = read_tensors(directory)
    return {name.removeprefix(_PREFIX): each for name, each in found.items() if name != _ROWS}
