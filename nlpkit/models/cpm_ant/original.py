"""Reads the original CPM-Ant (OpenBMB/CPM-Live, branch cpm-ant): a state dict and a json of sizes.

In the original, every linear layer divides its output by sqrt(dim_in) at run time, and every
embedding is divided by sqrt(dim_model). Here, as in transformers, these factors are part of the
weights. The original's output projection divides its input by the same sqrt(dim_model), so input
and output still share one table. Soft prompts have a separate table in `cpm-ant-10b.pt`; here they
follow the words, as in later versions of the original, whose `vocab_size` includes them.

Adapters are `best.pt`, which `examples/tune_cpm_ant.py` saves with thunlp/OpenDelta's `LoraModel`:
h = W x / sqrt(dim_in) + alpha / r * B A x (Hu et al. 2021, eq. 3). They are added behind the
run-time factor of the original, so their product is added to the folded weight as it is.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models.formats.pickled import read_state_dict

WEIGHTS, SETTINGS = "cpm-ant-*.pt", "*.json"
# Names of the sizes in transformers' config.json, with those in the original's json.
_SIZES = {
    "hidden_size": "dim_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "dim_head": "dim_head",
    "dim_ff": "dim_ff",
    "vocab_size": "vocab_size",
    "prompt_types": "prompt_types",
    "prompt_length": "prompt_length",
    "segment_types": "segment_types",
    "position_bias_num_buckets": "position_bias_num_buckets",
    "position_bias_max_distance": "position_bias_max_distance",
}
_WORDS, _PROMPTS = "input_embedding.weight", "prompt_embedding.weight"
_TABLES = (_WORDS, _PROMPTS, "segment_embedding.weight")
# OpenDelta's `lora_alpha`. The file does not have it, and CPM-Live never sets it.
_ALPHA = 16
_A, _B = ".lora.lora_A", ".lora.lora_B"
# Some versions of OpenDelta save a linear layer that their forward never calls.
_UNUSED = (".lora.lin.weight", ".lora.lin.bias")


def is_settings(content: JsonMapping) -> bool:
    """Return whether a JSON object has CPM-Ant's sizes with their original names."""
    return {"dim_model", "num_layers", "prompt_types"} <= content.keys()


def read(
    weights: Path,
    settings: Path,
    dtype: torch.dtype = torch.float32,
    adapters: Path | None = None,
    keep: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> tuple[JsonObject, dict[str, Tensor]]:
    """Return `config.json` and tensors of transformers' CpmAntForCausalLM, computed in float32.

    Only tensors are read: a pickle with anything else is refused, and none of its code is run. The
    order of the prompt blocks is unchanged, because transformers also reads block 2.

    Args:
        dtype: of the returned tensors; each is converted as soon as it is computed.
        adapters: CPM-Live's `best.pt`, merged into the weights before they are converted.
        keep: returns what is kept of each tensor; the release is read tensor by tensor.

    Raises:
        FileError: a setting is missing or wrong, or the file has other things than tensors.
    """
    content = read_json(settings)
    sizes: JsonObject = {theirs: _size(content, ours, settings) for theirs, ours in _SIZES.items()}
    for name in ("eps", "dropout_p"):
        value = content.get(name, 0.0 if name == "dropout_p" else None)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FileError(f"{settings}: {name} is {value!r}; needs a number")
        sizes[name] = float(value)
    # The compressed versions lack parts of some layers; transformers has no setting for this.
    if any(_flat(content.get("mask_modules"))):
        raise FileError(f"{settings}: mask_modules leaves parts of layers out; not supported")
    state = read_state_dict(weights)
    if wrong := [name for name, tensor in state.items() if not tensor.is_floating_point()]:
        raise FileError(f"{weights}: {wrong[0]!r} is no plain tensor of floating-point numbers")
    if _WORDS not in state:
        raise FileError(f"{weights}: lacks {_WORDS}")
    prompts = sizes["prompt_types"] * sizes["prompt_length"]
    if _PROMPTS not in state and sizes["vocab_size"] > prompts:
        sizes["vocab_size"] -= prompts
    changes = {} if adapters is None else _read_adapters(adapters, state)
    if wrong := [name for name in changes if not _is_linear(name, state[name])]:
        raise FileError(f"{adapters}: adapts {wrong[0]}, which is no linear layer")
    tensors = {}
    for name in sorted(state):
        if name not in (_WORDS, _PROMPTS):
            folded = _fold(name, state[name], content)
            if name in changes:
                a, b = (matrix.float() for matrix in changes[name])
                folded.addmm_(b, a, alpha=_ALPHA / len(a))
            tensors[f"cpmant.{name}"] = keep(folded.to(dtype))
    tables = [name for name in (_WORDS, _PROMPTS) if name in state]
    rows = [_fold(name, state[name], content).to(dtype) for name in tables]
    tensors[f"cpmant.{_WORDS}"] = keep(torch.cat(rows))
    return {"model_type": "cpmant", **sizes}, tensors


def _read_adapters(path: Path, weights: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the matrices A (r, in) and B (out, r) of each adapted weight.

    `weights` are the tensors (out, in) of the release, by the original's names.
    """
    state = read_state_dict(path)
    adapters = {}
    for name, tensor in state.items():
        layer = next((name.removesuffix(end) for end in (_A, _B) if name.endswith(end)), None)
        if layer is None and not name.endswith(_UNUSED):
            raise FileError(f"{path}: {name} is no matrix of an adapter (LAYER{_A}, LAYER{_B})")
        if not tensor.is_floating_point():
            raise FileError(f"{path}: {name} has no floating-point numbers")
        if layer is None:
            continue
        for each in (f"{layer}{_A}", f"{layer}{_B}"):
            if each not in state:
                raise FileError(f"{path}: lacks {each}")
            if state[each].ndim != 2:
                raise FileError(f"{path}: {each} is no matrix")
        adapters[f"{layer}.weight"] = state[f"{layer}{_A}"], state[f"{layer}{_B}"]
    if not adapters:
        raise FileError(f"{path}: has no adapter")
    for name, (a, b) in adapters.items():
        if name not in weights:
            raise FileError(f"{path}: adapts {name}, which the release does not have")
        shape, rank = tuple(weights[name].shape), len(a)
        if rank == 0 or shape != (len(b), a.shape[1]) or b.shape[1] != rank:
            raise FileError(
                f"{path}: matrices {tuple(a.shape)} and {tuple(b.shape)} do not fit {name} {shape}"
            )
    return adapters


def _size(content: JsonMapping, name: str, where: Path) -> int:
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        what = f"is {value!r}" if name in content else "is missing"
        raise FileError(f"{where}: {name} {what}; needs a whole number from 1 on")
    return value


def _flat(value: object) -> list[object]:
    return [each for part in value for each in _flat(part)] if isinstance(value, list) else [value]


def _fold(name: str, tensor: Tensor, sizes: JsonMapping) -> Tensor:
    """Return a weight in float32 that includes the run-time factor of the original."""
    tensor = tensor.to(torch.float32, copy=True)
    if name in _TABLES:
        return tensor.div_(math.sqrt(sizes["dim_model"]))
    return tensor.div_(math.sqrt(tensor.shape[1])) if _is_linear(name, tensor) else tensor


def _is_linear(name: str, tensor: Tensor) -> bool:
    return tensor.ndim == 2 and name.startswith("encoder.")
