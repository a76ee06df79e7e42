"""The layers of objectives, kept in a file of their own beside the model, which others ignore.

An objective with layers that no model of the family has, such as those of span boundaries, gives
them by `heads`. They are the model's `objective_heads` while it is trained.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from nlpkit.checkpoints.hf_layout import check_dtypes, load_tensors
from nlpkit.checkpoints.hf_model import OBJECTIVE_HEADS
from nlpkit.checkpoints.hf_writing import save_tensors
from nlpkit.errors import FileError

FILE = "objective.safetensors"


def write(directory: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write the layers of objectives, if there are any; return the other weights of a model."""
    own = {name: tensor for name, tensor in weights.items() if name.startswith(OBJECTIVE_HEADS)}
    if own:
        save_tensors(directory / FILE, own)
    return {name: tensor for name, tensor in weights.items() if name not in own}


def read(directory: Path) -> dict[str, Tensor]:
    """Return the layers of objectives in a checkpoint; empty if it has none."""
    path = directory / FILE
    if not path.is_file():
        return {}
    tensors = load_tensors(path)
    check_dtypes(path, tensors)
    if wrong := [name for name in tensors if not name.startswith(OBJECTIVE_HEADS)]:
        raise FileError(f"{path}: {wrong[0]} is not a layer of an objective")
    return tensors


def add(model: nn.Module, heads: Mapping[str, nn.Module], old: Mapping[str, Tensor]) -> None:
    """Give a model the layers of its objective, with the weights in `old` of those that it had."""
    model.objective_heads = nn.ModuleDict(heads)
    for name, layer in heads.items():
        prefix = f"{OBJECTIVE_HEADS}{name}."
        state = {n.removeprefix(prefix): t for n, t in old.items() if n.startswith(prefix)}
        new = {n: t.shape for n, t in layer.state_dict().items()}
        if new == {n: t.shape for n, t in state.items()}:
            layer.load_state_dict(state)
