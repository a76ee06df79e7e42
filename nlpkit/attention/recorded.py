"""Records the weights of attention while a model computes, of any kind and any backend."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from nlpkit.attention import Attend
from nlpkit.errors import Unsupported

_LAYERS = ("layers", "blocks")  # names of lists of layers, of models that have one
_CLOSE = 1e-4  # of two ways to find the same weight, in float32


@dataclass(frozen=True)
class Weights:
    """The weights (H, N, K) of the queries of a pack for its keys, in one layer."""

    name: str  # of the module that computes it without numbers, such as `encoder.layers`
    layer: int  # from 1, counted among the modules of this name as they compute
    call: int  # of the calls in this time, from 1; a model of two streams has two
    values: Tensor

    @property
    def title(self) -> str:
        """The layer for people."""
        part, _, rest = self.name.partition(".")
        part = f"{part} " if rest and part not in _LAYERS else ""
        cross = "cross attention of " if "cross" in self.name else ""
        stream = f", stream {self.call}" if self.call > 1 else ""
        return f"{cross}{part}layer {self.layer}{stream}"


@dataclass
class _Inside:
    """A module that is computing."""

    name: str
    layer: int
    calls: int = 0
    attends: bool = False


@contextmanager
def record(model: nn.Module) -> Iterator[list[Weights]]:
    """Record the weights of each layer of attention of `model` inside this context.

    Attention is linear in the values: where these are rows of the identity, it returns weights.

    Raises:
        Unsupported: a kind is no weighted mean of values, with one weight for a whole head.
    """
    found: list[Weights] = []
    times: Counter[str] = Counter()
    inside: list[_Inside] = []
    compute = Attend.__call__

    def enter(name: str) -> None:
        times[name] += 1
        inside.append(_Inside(name, times[name]))

    def attend(self: Attend, q: Tensor, k: Tensor, v: Tensor, *tensors: Any) -> Tensor:
        module = inside[-1]
        if module.attends:  # to a part of the heads, in a call that is recorded
            return compute(self, q, k, v, *tensors)
        module.attends, module.calls = True, module.calls + 1
        values = _find_weights(lambda identity: compute(self, q, k, identity, *tensors), v)
        out = compute(self, q, k, v, *tensors)
        module.attends = False
        found.append(Weights(module.name, module.layer, module.calls, values))
        return out

    hooks = []
    for name, module in model.named_modules():
        stem = re.sub(r"\.\d+", "", name)
        hooks.append(module.register_forward_pre_hook(lambda *_, stem=stem: enter(stem)))
        hooks.append(module.register_forward_hook(lambda *_: inside.pop() and None))
    try:
        with mock.patch.object(Attend, "__call__", attend):
            yield found
    finally:
        for hook in hooks:
            hook.remove()


def _find_weights(attend: Any, v: Tensor) -> Tensor:
    keys, _, width = v.shape
    rolled = []
    for shift in (0, 1):  # a weight must not depend on the channel that carries it
        parts = []
        for first in range(0, keys, width):
            identity = torch.zeros_like(v)
            for key in range(first, min(first + width, keys)):
                identity[key, :, (key - first + shift) % width] = 1
            parts.append(attend(identity).roll(-shift, -1))
        rolled.append(torch.cat(parts, -1)[..., :keys].permute(1, 0, 2).float())
    one, other = rolled
    if not torch.allclose(one, other, atol=_CLOSE) or one.sum(-1).max() > 1 + _CLOSE:
        raise Unsupported(
            "this kind of attention is no weighted mean of values with one weight for each head"
        )
    return one
