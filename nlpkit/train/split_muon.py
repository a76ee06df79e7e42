"""torch.optim.Muon for parameters that hold several matrices, or a matrix of more dimensions.

Queries, keys and values in one layer, or the gates of a recurrent cell, are matrices of their own:
together they would be orthogonalized against one another. The update of each is torch's.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nlpkit.train.optimizers.contract import Group, param_groups


class SplitMuon(torch.optim.Muon):
    """Muon on the matrices of each group, one below the other in its parameters.

    `settings` are torch's. The state of a parameter is one tensor of its shape.
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

    def _init_group(
        self,
        group: MutableMapping[str, Any],
        params_with_grad: list[Tensor],
        grads: list[Tensor],
        muon_momentum_bufs: list[Tensor],
    ) -> bool:
        """Fill the lists as torch does, with views of the single matrices."""
        has_complex: bool = super()._init_group(group, params_with_grad, grads, muon_momentum_bufs)
        for tensors in (params_with_grad, grads, muon_momentum_bufs):
            # `view` raises an error where a copy would be needed, which would get the update.
            tensors[:] = [
                matrix
                for tensor in tensors
                for matrix in tensor.view(len(tensor), -1).chunk(group["matrices"])
            ]
        return has_complex
