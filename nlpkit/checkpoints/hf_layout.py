"""Directories that `transformers` can open: `config.json` and safetensors. Never a pickle."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nlpkit import registry
from nlpkit.attention.contract import Choice
from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.models.head import HEAD

WEIGHTS = "model.safetensors"
NOTES = "nlpkit.json"  # what transformers need not know: the objective with its settings
# A task's layer on a state, as transformers' sequence classifiers call it.
THEIR_HEAD = "score.weight"


def write(directory: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write `config.json` and `model.safetensors`."""
    write_settings(directory, settings)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, directory / WEIGHTS, metadata={"format": "pt"})


def write_settings(directory: Path, settings: Mapping[str, Any]) -> None:
    """Write `config.json`."""
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (directory / "config.json").write_text(text + "\n", encoding="utf-8")


def layout(
    module: Any,
    config: Any,
    weights: Mapping[str, Tensor],
    labels: Sequence[str] | None = None,
    pad_id: int | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `config.json` and tensors of a family's model, and of the task's layer if it has one.

    `labels` name the outputs of that layer. Where transformers has a classifier of this family,
    `CLASSIFIER` in `module`, it opens as one.
    """
    body = {name: tensor for name, tensor in weights.items() if name != HEAD}
    settings, tensors = module.to_hf(config, body)
    if config.attention:  # transformers would open it as the family has it by default
        settings["model_type"] = f"nlpkit-{settings['model_type']}"
        settings["architectures"] = []
        settings["nlpkit"]["attention"] = [choice.to_json() for choice in config.attention]
    if HEAD in weights:
        tensors[THEIR_HEAD] = weights[HEAD]
        names = labels or [f"LABEL_{i}" for i in range(len(weights[HEAD]))]
        settings["id2label"] = dict(enumerate(names))
        settings["label2id"] = {name: i for i, name in enumerate(names)}
        if hasattr(module, "CLASSIFIER"):
            settings["architectures"] = [module.CLASSIFIER]
        if pad_id is not None:
            settings["pad_token_id"] = pad_id
    return settings, tensors


def read(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings and all tensors of a checkpoint directory, one file or several shards.

    Raises:
        FileError: a file is missing, damaged, or a pickle.
    """
    settings = read_settings(directory)
    index = directory / f"{WEIGHTS}.index.json"
    shards = [WEIGHTS]
    if index.is_file():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(n, str) for n in places.values()):
            raise FileError(f"{index}: needs weight_map, which names the file of each tensor")
        shards = sorted(set(places.values()))
        for name in shards:
            if Path(name).name != name:
                raise FileError(f"{index}: the shard {name!r} lies outside the directory")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        path = directory / shard
        if not path.is_file():
            pickles = [p.name for p in directory.glob("*.bin")] + [
                p.name for p in directory.glob("*.pt")
            ]
            hint = f"; {pickles[0]} is a pickle, which is not opened" if pickles else ""
            raise FileError(f"{path}: {_absent(path)}{hint}")
        try:
            tensors.update(load_file(path))
        except (SafetensorError, OSError) as error:
            raise FileError(f"{path}: not a readable safetensors file: {error}") from error
    return settings, tensors


def read_notes(directory: Path) -> dict[str, Any]:
    """Return what nlpkit wrote beside the weights, such as the objective; empty if nothing."""
    path = directory / NOTES
    return read_json(path) if path.is_file() else {}


def read_settings(directory: Path) -> dict[str, Any]:
    """Return `config.json` of a checkpoint directory."""
    path = directory / "config.json"
    if not path.is_file():
        raise FileError(f"{path}: {_absent(path)}; is this a checkpoint directory?")
    return read_json(path)


def _absent(path: Path) -> str:
    """Say why a path is no file. A link to a file is one: Hugging Face's cache is made of these."""
    return "not a regular file" if path.exists() else "no such file"


def converted(
    module: Any, directory: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Any, dict[str, Tensor]]:
    """Return `Config` and state dict that `module.from_hf` gives, checked against each other.

    Nothing is allocated that the file does not hold.

    Raises:
        FileError: a setting or tensor is missing, of a wrong type, or of another size.
    """
    try:
        config, state = module.from_hf(settings, tensors)
        kinds = settings.get("nlpkit", {}).get("attention", [])
        config = config.model_copy(update={"attention": tuple(map(Choice.from_json, kinds))})
        with torch.device("meta"):
            model = module.Model(config, len(state["token_embedding"]), "auto")
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if THEIR_HEAD in tensors:
            state[HEAD] = tensors[THEIR_HEAD]
            shapes[HEAD] = (len(state[HEAD]), config.hidden_size)
    except KeyError as error:
        raise FileError(f"{directory}: {error} is missing from config.json or weights") from error
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        what = " ".join(str(error).split("\n")[:3])
        raise FileError(f"{directory}/config.json: does not fit the weights: {what}") from error
    for name, shape in shapes.items():
        if name not in state or tuple(state[name].shape) != shape:
            found = tuple(state[name].shape) if name in state else "missing"
            raise FileError(f"{directory}: {name} is {found}; by config.json it is {shape}")
    return config, state


def family_of(settings: Mapping[str, Any], directory: Path) -> tuple[str, ModuleType]:
    """Return the family that reads checkpoints of this `model_type`, and its light module."""
    known = {}
    for name in registry.names("models"):
        module = registry.load("models", name)
        known[module.MODEL_TYPE] = (name, module)
    named = settings.get("model_type")
    if isinstance(named, str):
        named = named.removeprefix("nlpkit-")
    found = known.get(named) if isinstance(named, str) else None
    if found is None:
        raise FileError(
            f"{directory}/config.json: model_type {named!r} is none of {', '.join(sorted(known))}"
        )
    return found
