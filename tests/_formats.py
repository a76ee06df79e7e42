"""Weights of a family in transformers' layout, and back, as tests compare them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nlpkit.checkpoints import hf_layout, hf_model, hf_writing


def to_hf(
    family: str, config: Any, state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `config.json` and tensors of a state dict, or of its gradients."""
    return hf_writing.to_hf(family, config, state)[""]


def from_hf(family: str, directory: Path) -> tuple[Any, dict[str, Tensor]]:
    """Return `Config` and state dict of a checkpoint directory."""
    loaded = hf_model.from_hf(family, directory, *hf_layout.read(directory))
    return loaded.config, loaded.state
