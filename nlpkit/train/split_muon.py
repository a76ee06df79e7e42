"""torch.optim.Muon for parameters that hold several matrices, or a matrix of more dimensions.

Queries, keys and values in one layer, or the gates of a recurrent cell, are matrices of their own:
together they would be orthogonalized against one another. The update of each is torch's, bit for
bit in bfloat16. torch knows no other type, in which a CPU without units for it takes 25 times as
long as in float32, or more (docs/optimizers.md).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nlpkit.contracts.optimizer import Group
from nlpkit.train import placement


class SplitMuon(torch.optim.Muon):
    """Muon on the matrices of each group, one below the other in its parameters.

    `settings` are torch's, `dtype` is the type of the Newton-Schulz iterations. The state of a
    parameter is one tensor of its shape. Shards of FSDP are put together for the step, one
    parameter after the other: it needs whole matrices.
    """

    def __init__(self, groups: Sequence[Group], dtype: torch.dtype, **settings: Any):
        self.dtype = dtype
        given = [group.for_torch() | {"matrices": group.matrices} for group in groups]
        flat = [{**each, "params": [p for p in each["params"] if p.ndim == 2]} for each in given]
        super().__init__(flat, **settings)
        # torch checks only here that a parameter has two dimensions; the others are seen as such.
        for ours, each in zip(self.param_groups, given, strict=True):
            ours["params"] = each["params"]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step. All processes must take it together if parameters are sharded."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                momentum = state["momentum_buffer"]
                whole = [
                    placement.whole(tensor) for tensor in (parameter, parameter.grad, momentum)
                ]
                split = [_matrices(tensor, group["matrices"]) for tensor in whole]
                for matrix, grad, kept in zip(*split, strict=True):
                    self._update(group, matrix, grad, kept)
                if placement.is_shard(parameter):
                    placement.fill(parameter, whole[0])
                    placement.fill(momentum, whole[2])

    def _update(
        self, group: dict[str, Any], matrix: Tensor, grad: Tensor, momentum: Tensor
    ) -> None:
        lr, keep = group["lr"], group["momentum"]
        momentum.lerp_(grad, 1 - keep)
        update = grad.lerp(momentum, keep) if group["nesterov"] else momentum
        update = self._orthogonalized(update, group)
        rows, columns = matrix.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            scale = 0.2 * math.sqrt(max(rows, columns))
        else:  # original
            scale = math.sqrt(max(1, rows / columns))
        matrix.mul_(1 - lr * group["weight_decay"])
        matrix.add_(update, alpha=-(lr * scale))

    def _orthogonalized(self, update: Tensor, group: dict[str, Any]) -> Tensor:
        """Return `update` with singular values near 1, by Newton-Schulz iterations.

        Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; as in torch.optim.Muon.
        """
        a, b, c = group["ns_coefficients"]
        tall = update.shape[0] > update.shape[1]
        x = update.to(self.dtype, copy=True)
        x = x.T if tall else x
        x.div_(x.norm().clamp(min=group["eps"]))
        for _ in range(group["ns_steps"]):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.T if tall else x


def _matrices(tensor: Tensor, count: int) -> list[Tensor]:
    # `view` raises an error where a copy would be needed, which would get the update.
    return list(tensor.view(len(tensor), -1).chunk(count))
