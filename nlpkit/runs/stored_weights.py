"""Reads the weights that `nlpkit convert` writes: of a checkpoint, or the mean of several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from nlpkit.checkpoints import any_layout, integrity, objective_heads, tokenizer_files
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.runs.open_checkpoint import find_checkpoint

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Weights:
    """A checkpoint's content in the layout of transformers."""

    path: Path
    settings: JsonObject
    tensors: dict[str, Tensor]
    heads: dict[str, Tensor]  # of layers that an objective owns
    precision: torch.dtype  # of the stored tensors
    is_release: bool = False  # of the authors, not in the layout of transformers


def read(
    source: Path,
    requested: torch.dtype | None,
    config: Path | None,
    family: str | None,
    info: Callable[[str], None],
    adapters: Path | None = None,
    keep: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Weights:
    """Return the content of an original release or of a checkpoint, with adapters merged.

    Args:
        adapters: a file of adapters in the format of the release's authors.
        keep: returns what is kept of each tensor of a release.

    Raises:
        UsageError: an option belongs to an original release, and `source` is none.
        FileError: a file is missing or damaged, or does not fit.
    """
    release = any_layout.find_original(source, config)
    if release is not None:
        dtype = requested or torch.float32
        info(f"{release.weights}: original release, settings from {release.settings}")
        if adapters is not None:
            info(f"adapters of {adapters} merged into {release.weights}")
        files = release.weights, release.settings
        settings, tensors = release.module.read(*files, dtype, adapters, keep)
        return Weights(source, settings, tensors, {}, dtype, is_release=True)
    if adapters is not None:
        raise UsageError(
            f"--adapters: {source} is not an original release; give the release that they adapt"
        )
    if config is not None:
        raise UsageError(
            f"--config: {source} is not an original release, and has its own config.json"
        )
    path = find_checkpoint(source, info)
    integrity.verify(path)
    settings, tensors = any_layout.read(path, family)
    if (base := any_layout.find_base(path)) is not None:
        info(f"adapters of {path} merged into {base}")
    # Merged weights stay in float32 until the end, so that they are rounded only once.
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.dtype in PRECISIONS.values()}
    stored = min(kinds, key=lambda kind: kind.itemsize, default=torch.float32)
    return Weights(path, settings, tensors, objective_heads.read(path), stored)


def average(all_weights: Sequence[Weights]) -> Weights:
    """Return the mean of the weights of several checkpoints, with the rest of the first one.

    Raises:
        FileError: they are not checkpoints of the same model.
    """
    first = all_weights[0]
    for each in all_weights[1:]:
        if key := _find_difference(first.settings, each.settings):
            raise FileError(f"{each.path}: not the model of {first.path}: {key} differs")
        if _fingerprint(each.path) != _fingerprint(first.path):
            raise FileError(f"{each.path}: its tokenizer is not that of {first.path}")
        for mine, theirs in ((first.tensors, each.tensors), (first.heads, each.heads)):
            shapes = [{name: t.shape for name, t in found.items()} for found in (mine, theirs)]
            if key := _find_difference(*shapes):
                raise FileError(f"{each.path}: not the model of {first.path}: {key} differs")
    return replace(
        first,
        tensors=_average_tensors([each.tensors for each in all_weights]),
        heads=_average_tensors([each.heads for each in all_weights]),
    )


def _average_tensors(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each tensor in float32; integers are those of the first state."""
    means = {}
    for name, first in states[0].items():
        means[name] = first
        if first.is_floating_point():
            means[name] = torch.stack([state[name] for state in states]).double().mean(0).float()
    return means


def _find_difference(one: JsonMapping, other: JsonMapping) -> str | None:
    """Return the first key with different values, or None; not of who wrote a config.json."""
    keys = sorted((one.keys() | other.keys()) - {"transformers_version", "_name_or_path"})
    return next((key for key in keys if one.get(key) != other.get(key)), None)


def _fingerprint(path: Path) -> str:
    """Return what decides the ids of texts in a checkpoint; "" if it has no tokenizer."""
    try:
        return tokenizer_files.fingerprint(tokenizer_files.load(any_layout.find_tokenizer(path))[1])
    except FileError:
        return ""
