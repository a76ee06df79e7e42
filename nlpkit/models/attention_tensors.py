"""The learned tensors of a model's kinds of attention, shared by all layers or one per layer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nlpkit.attention.contract import Choice


class AttentionTensors(nn.Module):
    """The tensors that the kinds learn; most kinds learn none.

    The parameters are called `shared_KIND_NAME` and `layer_NUMBER_NAME`; KIND is a number from 0.
    """

    def __init__(self, choices: Sequence[Choice], layers: int, heads: int, head_dim: int):
        super().__init__()
        self.choices = tuple(dict.fromkeys(choices))
        for layer in range(layers):
            choice = choices[layer % len(choices)]
            learned = choice.module.tensors(choice.config, heads, head_dim)
            for name, tensor in learned.items():
                full = self._name(choice if tensor.shared else layer, name)
                if not hasattr(self, full):
                    values = torch.empty(tensor.shape).normal_(std=tensor.std)
                    self.register_parameter(full, nn.Parameter(values))

    def _name(self, owner: Choice | int, name: str) -> str:
        if isinstance(owner, int):
            return f"layer_{owner}_{name}"
        return f"shared_{self.choices.index(owner)}_{name}"

    def of(self, owner: Choice | int) -> dict[str, Tensor]:
        """Return the tensors that all layers of a kind share, or the tensors of one layer."""
        prefix = self._name(owner, "")
        return {
            name.removeprefix(prefix): parameter
            for name, parameter in self.named_parameters()
            if name.startswith(prefix)
        }
