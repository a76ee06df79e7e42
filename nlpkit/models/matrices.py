"""Which parameters of a model are matrices of its layers, such as Muon orthogonalizes.

Tables, position tables, heads, projections of the input, norms and biases are not among them.
"""

from contextlib import suppress

from torch import nn

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
    lists: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.partition(".")[0] in _HEADS:
            continue
        # A module comes before those below it, so that what it says of them counts.
        for path, count in getattr(module, "MATRICES", {}).items():
            with suppress(AttributeError):  # a model with these settings has no such part
                found.setdefault(module.get_parameter(path), count)
        if isinstance(module, nn.RNNBase):
            # The rows of each are those of all gates; a projection of an LSTM's states has none.
            for leaf, weight in module.named_parameters(recurse=False):
                if leaf.startswith("weight"):
                    gates = 1 if "_hr_" in leaf else len(weight) // module.hidden_size
                    found.setdefault(weight, gates)
        elif isinstance(module, nn.Linear) and name.startswith(lists or "."):
            # The rows of B, of an adapter, are those of the weight, which is frozen.
            own = dict(module.named_parameters(recurse=False))
            for leaf in ("lora_A", "lora_B") if "lora_A" in own else ("weight",):
                rows = found.get(own["weight"], 1) if leaf == "lora_B" else 1
                found.setdefault(own[leaf], rows)
        if isinstance(module, nn.ModuleList):
            lists += (f"{name}.",)
    stacked = {p: n for p, n in found.items() if n and p.ndim > 1 and len(p) % n == 0}
    return {p: n for p, n in stacked.items() if min(len(p) // n, p[0].numel()) > 1}
