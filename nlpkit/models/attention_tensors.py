"""The learned tensors of a model's kinds of attention, shared by the layers or one a layer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nlpkit.attention.contract import Choice


class AttentionTensors(nn.Module):
    """What the kinds say that they learn; empty for most kinds.

    Parameters are `shared_KIND_NAME` and `layer_NUMBER_NAME`, KIND a number from 0.
    """

    def __init__(self, choices: Sequence[Choice], layers: int, heads: int, head_dim: int):
        super().__init__()
        self.choices = tuple(dict.fromkeys(choices))
        for layer in range(layers):
            choice = choices[layer % len(choices)]
            learned = choice.module.tensors(choice.config, heads, head_dim)
            for name, each in learned.items():
                full = self._name(choice if each.shared else layer, name)
                if not hasattr(self, full):
                    drawn = torch.empty(each.shape).normal_(std=each.std)
                    self.register_parameter(full, nn.Parameter(drawn))

    def _name(self, owner: Choice | int, name: str) -> str:
        if isinstance(owner, int):
            return f"layer_{owner}_{name}"
        return f"shared_{self.choices.index(owner)}_{name}"

    def of(self, owner: Choice | int) -> dict[str, Tensor]:
        """Return the tensors that all layers of a kind share, or those of one layer."""
        prefix = self._name(owner, "")
        return {
            name.removeprefix(prefix): parameter
            for name, parameter in self.named_parameters()
            if name.startswith(prefix)
        }
