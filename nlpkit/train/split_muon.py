"""torch.optim.Muon for parameters that hold several matrices, or a matrix of more dimensions.

Queries, keys and values in one layer, or the gates of a recurrent cell, are matrices of their own:
together they would be orthogonalized against one another. The update of each is torch's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim._muon import muon

from nlpkit.train import shards
from nlpkit.train.optimizers.contract import Group, param_groups

_SETTINGS = (
    "lr",
    "weight_decay",
    "momentum",
    "nesterov",
    "ns_coefficients",
    "ns_steps",
    "eps",
    "adjust_lr_fn",
)


class SplitMuon(torch.optim.Muon):
    """Muon on the matrices of each group, one below the other in its parameters.

    `settings` are torch's. The state of a parameter is one tensor of its shape. Shards of FSDP are
    put together for the step, one parameter after the other: it needs whole matrices.
    """

    def __init__(self, groups: Sequence[Group], **settings: Any):
        given = [
            torch_group | {"matrices": group.matrices}
            for torch_group, group in zip(param_groups(groups), groups, strict=True)
        ]
        flat = [{**each, "params": [p for p in each["params"] if p.ndim == 2]} for each in given]
        super().__init__(flat, **settings)
        # torch checks only here that a parameter has two dimensions; the others are seen as such.
        for ours, each in zip(self.param_groups, given, strict=True):
            ours["params"] = each["params"]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step. All processes must take it together if parameters are sharded."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            settings = {name: group[name] for name in _SETTINGS}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                momentum = state["momentum_buffer"]
                whole = [shards.whole(tensor) for tensor in (parameter, parameter.grad, momentum)]
                split = [_matrices(tensor, group["matrices"]) for tensor in whole]
                muon(*split, **settings, has_complex=False)
                if shards.is_sharded(parameter):
                    shards.fill(parameter, whole[0])
                    shards.fill(momentum, whole[2])
        return loss


def _matrices(tensor: Tensor, count: int) -> list[Tensor]:
    # `view` raises an error where a copy would be needed, which would get the update.
    return list(tensor.view(len(tensor), -1).chunk(count))
