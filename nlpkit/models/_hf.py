"""Directories that `transformers` can open: `config.json` and safetensors. Never a pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nlpkit import registry
from nlpkit.errors import FileError

WEIGHTS = "model.safetensors"


def write(directory: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write `config.json` and `model.safetensors`."""
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (directory / "config.json").write_text(text + "\n", encoding="utf-8")
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, directory / WEIGHTS, metadata={"format": "pt"})


def read(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings and all tensors of a checkpoint directory, one file or several shards.

    Raises:
        FileError: a file is missing, damaged, or a pickle.
    """
    settings = read_settings(directory)
    index = directory / f"{WEIGHTS}.index.json"
    shards = [WEIGHTS]
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if any(Path(name).name != name for name in names):
            raise FileError(f"{index}: a shard lies outside the directory")
        shards = sorted(names)
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        path = directory / shard
        if not path.is_file():
            pickles = [p.name for p in directory.glob("*.bin")] + [
                p.name for p in directory.glob("*.pt")
            ]
            hint = f"; {pickles[0]} is a pickle, which is not opened" if pickles else ""
            raise FileError(f"{path}: no such file{hint}")
        try:
            tensors.update(load_file(path))
        except (SafetensorError, OSError) as error:
            raise FileError(f"{path}: not a readable safetensors file: {error}") from error
    return settings, tensors


def read_settings(directory: Path) -> dict[str, Any]:
    """Return `config.json` of a checkpoint directory."""
    path = directory / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path}: no such file; is this a checkpoint directory?") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error


def family_of(settings: Mapping[str, Any], directory: Path) -> tuple[str, ModuleType]:
    """Return the family that reads checkpoints of this `model_type`, and its light module."""
    known = {}
    for name in registry.names("models"):
        module = registry.load("models", name)
        known[module.MODEL_TYPE] = (name, module)
    found = known.get(settings.get("model_type", ""))
    if found is None:
        raise FileError(
            f"{directory}/config.json: model_type {settings.get('model_type')!r} is none of "
            f"{', '.join(sorted(known))}"
        )
    return found
