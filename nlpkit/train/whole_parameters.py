"""Steps of an optimizer that needs whole parameters where FSDP has shards of them."""

from typing import TypeVar, cast

import torch
from torch.optim import Optimizer

from nlpkit.train import placement

T = TypeVar("T", bound=Optimizer)


def on_whole_parameters(kind: type[T]) -> type[T]:
    """Return an optimizer that puts the shards of one parameter after the other together.

    Every process computes the whole step, and keeps the whole state, of each parameter. All must
    take the step together.
    """

    def step(self: T, closure: None = None) -> None:
        groups = [group["params"] for group in self.param_groups]
        if not any(placement.is_shard(parameter) for group in groups for parameter in group):
            kind.step(self)
            return
        for group in self.param_groups:
            group["params"] = []
        for group, parameters in zip(self.param_groups, groups, strict=True):
            for parameter in parameters:
                if parameter.grad is None:
                    continue
                whole = placement.whole(parameter.detach()).clone()
                whole.grad = placement.whole(parameter.grad)
                self.state[whole] = self.state.pop(parameter, {})
                group["params"] = [whole]
                kind.step(self)
                self.state[parameter] = self.state.pop(whole)
                placement.fill(parameter, whole)
            group["params"] = []
        for group, parameters in zip(self.param_groups, groups, strict=True):
            group["params"] = parameters

    return cast(type[T], type(kind.__name__, (kind,), {"step": torch.no_grad()(step)}))
