"""Reads `best.pt`, the adapters that CPM-Live's tuning saves: LoRA by OpenDelta.

OpenBMB/CPM-Live, branch cpm-ant, `examples/tune_cpm_ant.py`, with thunlp/OpenDelta's `LoraModel`:
h = W x / sqrt(dim_in) + alpha / r * B A x (Hu et al. 2021, eq. 3). The adapter is added behind the
run-time factor of the original, so its product is added to the folded weight as it is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from nlpkit.errors import FileError
from nlpkit.models.formats.pickled import read_state_dict

# OpenDelta's `lora_alpha`. The file does not have it, and CPM-Live never sets it.
ALPHA = 16
_A, _B = ".lora.lora_A", ".lora.lora_B"
# Some versions of OpenDelta save a linear layer that their forward never calls.
_UNUSED = (".lora.lin.weight", ".lora.lin.bias")
Adapters: TypeAlias = Mapping[str, tuple[Tensor, Tensor]]


def read(path: Path, weights: Mapping[str, Tensor]) -> Adapters:
    """Return the matrices A (r, in) and B (out, r) of each adapted weight.

    Only tensors are read: a pickle with anything else is refused, and none of its code is run.
    `weights` are the tensors (out, in) of the release, by the original's names.

    Raises:
        FileError: the file has other things than adapters, or they do not fit the release.
    """
    state = read_state_dict(path)
    adapters = {}
    for name, tensor in state.items():
        layer = next((name.removesuffix(end) for end in (_A, _B) if name.endswith(end)), None)
        if layer is None and not name.endswith(_UNUSED):
            raise FileError(f"{path}: {name} is no matrix of an adapter (LAYER{_A}, LAYER{_B})")
        if not tensor.is_floating_point():
            raise FileError(f"{path}: {name} has no floating-point numbers")
        if layer is not None:
            adapters[f"{layer}.weight"] = _find_pair(path, state, layer)
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


def _find_pair(path: Path, state: Mapping[str, Tensor], layer: str) -> tuple[Tensor, Tensor]:
    for end in (_A, _B):
        if f"{layer}{end}" not in state:
            raise FileError(f"{path}: lacks {layer}{end}")
        if state[f"{layer}{end}"].ndim != 2:
            raise FileError(f"{path}: {layer}{end} is no matrix")
    return state[f"{layer}{_A}"], state[f"{layer}{_B}"]


def add(weight: Tensor, adapter: tuple[Tensor, Tensor]) -> Tensor:
    """Return the folded weight (out, in), changed in place: plus alpha / r * B A in float32."""
    a, b = (matrix.float() for matrix in adapter)
    return weight.addmm_(b, a, alpha=ALPHA / len(a))
