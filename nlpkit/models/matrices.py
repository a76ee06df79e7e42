"""Which parameters of a model are matrices of its layers, such as Muon orthogonalizes.

Tables, position tables, heads, projections of the input, norms and biases are not among them.
"""

from collections.abc import Iterator, Mapping

from torch import nn

from nlpkit.models.lora import LoraLinear

# Layers that a task or an objective adds to any family (`runs/build.py`).
_HEADS = ("head", "objective_heads")


def layer_matrices(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return the matrices that multiply hidden states inside layers, each parameter once.

    The value is the number of matrices that lie one below the other in the parameter: 3 where
    queries, keys and values are one layer, 4 for the gates of an LSTM.

    They are the weights of `nn.Linear`, and both matrices of adapters on them, below an
    `nn.ModuleList`, and the weights of recurrent cells. A module of a family may say more of the
    parameters below it with `MATRICES`, names with their number of matrices; 0: none. A parameter
    of more than two dimensions is then one matrix with a row for each entry of its first one.
    A single row or column is a vector.
    """
    found: dict[nn.Parameter, int] = {}
    for module, in_layers in _modules(model):
        # A module comes before those below it, so that what it says of them counts.
        for path, count in getattr(module, "MATRICES", {}).items():
            parameter = _parameter(module, path)
            if parameter is not None:
                found.setdefault(parameter, count)
        for name, count in _usual(module, in_layers, found).items():
            found.setdefault(getattr(module, name), count)
    return {p: count for p, count in found.items() if count and _is_matrix(p, count)}


def _modules(model: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """Yield all modules but heads, and whether they are below a list of layers."""
    lists: list[str] = []
    for name, module in model.named_modules():
        if name.partition(".")[0] in _HEADS:
            continue
        yield module, any(name.startswith(each) for each in lists)
        if isinstance(module, nn.ModuleList):
            lists.append(f"{name}.")


def _usual(module: nn.Module, in_layers: bool, found: Mapping[nn.Parameter, int]) -> dict[str, int]:
    """Return the matrices of a module by its type."""
    if isinstance(module, nn.RNNBase):
        # The rows of each are those of all gates; a projection of an LSTM's states has no gates.
        return {
            name: 1 if name.startswith("weight_hr") else len(parameter) // module.hidden_size
            for name, parameter in module.named_parameters()
            if name.startswith("weight")
        }
    if not in_layers:
        return {}
    if isinstance(module, LoraLinear):
        # The rows of B are those of the weight.
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        return {"lora_A": 1, "lora_B": found.get(weight, 1)}
    return {"weight": 1} if isinstance(module, nn.Linear) else {}


def _parameter(module: nn.Module, path: str) -> nn.Parameter | None:
    """Return the parameter of a name; None if a model with these settings has no such part."""
    here: nn.Module | nn.Parameter | None = module
    for step in path.split("."):
        here = None if here is None else getattr(here, step)
    assert here is None or isinstance(here, nn.Parameter), f"MATRICES: {path} is no parameter"
    return here


def _is_matrix(parameter: nn.Parameter, count: int) -> bool:
    if parameter.ndim < 2 or len(parameter) % count:
        return False
    return min(len(parameter) // count, parameter[0].numel()) > 1
