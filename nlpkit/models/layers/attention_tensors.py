"""The learned tensors of a model's kinds of attention, shared by all layers or one per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.request import Heads, Layout
from nlpkit.models.layers.packs import compute_dtype

if TYPE_CHECKING:
    from nlpkit.attention.cache import Cache


class AttentionTensors(nn.Module):
    """The tensors that the kinds learn; most kinds learn none.

    The parameters are called `shared_KIND_NAME` and `layer_NUMBER_NAME`; KIND is a number from 0.
    """

    def __init__(self, choices: Sequence[AttentionChoice], layers: int, heads: int, head_dim: int):
        super().__init__()
        self.choices = tuple(dict.fromkeys(choices))
        self.of_layers = [choices[layer % len(choices)] for layer in range(layers)]
        self.heads, self.head_dim = heads, head_dim
        for layer, choice in enumerate(self.of_layers):
            for name, tensor in choice.tensors(heads, head_dim).items():
                full = self._name(choice if tensor.shared else layer, name)
                if full not in dict(self.named_parameters()):
                    values = torch.empty(tensor.shape).normal_(std=tensor.std)
                    self.register_parameter(full, nn.Parameter(values))

    def _name(self, owner: AttentionChoice | int, name: str) -> str:
        if isinstance(owner, int):
            return f"layer_{owner}_{name}"
        return f"shared_{self.choices.index(owner)}_{name}"

    def needs(self, field: str) -> bool:
        """Return whether the kind of some layer cannot do without a field of the tokens."""
        return any(field in each.module.required_fields(each.config) for each in self.choices)

    def of(self, owner: AttentionChoice | int) -> dict[str, Tensor]:
        """Return the tensors that all layers of a kind share, or the tensors of one layer."""
        prefix = self._name(owner, "")
        return {
            name.removeprefix(prefix): parameter
            for name, parameter in self.named_parameters()
            if name.startswith(prefix)
        }

    def heads_like(
        self, weight: Tensor, dropout: float, backend: str, scale: float | None = None
    ) -> Heads:
        """Return the heads of the layers, which compute in the type of one of their weights."""
        return Heads(
            self.heads, self.head_dim, compute_dtype(weight), self.training,
            dropout=dropout, backend=backend, scale=scale,
        )  # fmt: skip

    def prepare(
        self,
        heads: Heads,
        layout: Layout,
        *,
        keys: Layout | None = None,
        cache: Cache | None = None,
    ) -> list[attention.Attend]:
        """Return the attention of each layer with its tensors; each kind is prepared once."""
        prepared = {
            choice: attention.prepare(
                choice, heads, layout, tensors=self.of(choice), keys=keys, cache=cache
            )
            for choice in dict.fromkeys(self.of_layers)
        }
        attends = [prepared[choice] for choice in self.of_layers]
        return [self.bind(attend, layer) for layer, attend in enumerate(attends)]

    def bind(self, attend: attention.Attend, layer: int) -> attention.Attend:
        """Return the attention with the tensors of one layer."""
        tensors = self.of(layer)
        return replace(attend, run=partial(attend.run, tensors=tensors)) if tensors else attend
