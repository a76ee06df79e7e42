"""Soft prompts in peft's layout: `adapter_config.json` and `adapter_model.safetensors`.

The settings are those of peft's `PromptTuningConfig`. Beside the embeddings of the virtual tokens
the file has the task's output layer, and the tables if the vocabulary has grown. Nothing can be
merged into the base: the model that opens them gets the virtual tokens (`models/soft_prompt.py`).
`runs/adapters.py` writes them.
"""

from pathlib import Path

from torch import Tensor

from nlpkit.checkpoints import hf_layout
from nlpkit.checkpoints.peft_layout import (
    WEIGHTS,
    is_own,
    open_base,
    read_saved,
    read_tensors,
)
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping
from nlpkit.models.soft_prompt import NAME

KIND = "PROMPT_TUNING"
PREFIX = "base_model."  # of the names of the base's tensors in peft's file
ROWS = "prompt_embeddings"


def is_prompt(adapter: JsonMapping | None) -> bool:
    """Return whether this `adapter_config.json` is that of a soft prompt."""
    return adapter is not None and adapter.get("peft_type") == KIND


def read_rows(directory: Path) -> Tensor | None:
    """Return the embeddings (P, E) of the virtual tokens of a checkpoint; None without a prompt.

    Raises:
        FileError: they are missing, or of another number than `adapter_config.json` says.
    """
    adapter = hf_layout.read_adapters(directory) if directory.is_dir() else None
    if adapter is None or not is_prompt(adapter):
        return None
    rows, count = read_tensors(directory).get(ROWS), adapter.get("num_virtual_tokens")
    if rows is None or rows.ndim != 2 or not isinstance(count, int) or not 0 < count <= len(rows):
        raise FileError(
            f"{directory / WEIGHTS}: {ROWS} of {count} virtual tokens are missing or of another "
            "size"
        )
    return rows[:count].clone()  # peft has as many again for a decoder, which it does not use


def read_state(directory: Path, family: str) -> dict[str, Tensor]:
    """Return what is trained, or new in the tables, by our names: a part of the state dict."""
    state, rows = read_saved(_read_others(directory), family), read_rows(directory)
    return state if rows is None else {**state, NAME: rows}


def merge(
    directory: Path, adapter: JsonMapping, family: str, base: hf_layout.Content
) -> hf_layout.Content:
    """Return the content of a base with the output layer and the tables of a soft prompt."""
    _, tensors, names = open_base(family, base)
    tensors |= {names.get(name, name): each for name, each in _read_others(directory).items()}
    own = is_own(directory, adapter)
    return hf_layout.replace_settings((base[0], tensors), directory) if own else (base[0], tensors)


def _read_others(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of a directory that are those of a model, by transformers' names."""
    found = read_tensors(directory, PREFIX)
    return {name: tensor for name, tensor in found.items() if name != ROWS}
