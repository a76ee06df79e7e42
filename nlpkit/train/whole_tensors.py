"""Whole tensors put where several processes have shards: of a checkpoint, and of a step.

All processes must call these functions together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nlpkit.train.shards import PREFIX, is_shard, options, whole

T = TypeVar("T", bound=Optimizer)


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a tensor; into a sharded one, this process's part of them.

    `values` is whole and the same in all processes. Nothing is sent.
    """
    if is_shard(tensor):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = tensor.device_mesh, tensor.placements
        # Without a source rank, each process takes its part of what it has.
        values = distribute_tensor(values.to(tensor.device), mesh, placements, src_data_rank=None)
    tensor.copy_(values)


def restore(
    training: nn.Module,
    optimizers: Sequence[Optimizer],
    weights: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Tensor],
) -> None:
    """Restore weights and the optimizers' state, bit for bit; raise `KeyError` if one is missing.

    `weights` are at least the trained parameters. Those that the loss does not use, such as a head
    of another task, have no optimizer state.
    """
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_model_state_dict,
    )

    named: Any = {PREFIX + name: tensor for name, tensor in weights.items()}
    # The state dicts have no prefix of DistributedDataParallel.
    trained = {n.removeprefix("module.") for n, p in training.named_parameters() if p.requires_grad}
    all_trained = len(trained) == len(list(training.parameters()))
    if lacking := trained - named.keys():
        raise KeyError(sorted(lacking)[0])
    set_model_state_dict(training, named, options=options(strict=all_trained))
    get_optimizer_state_dict(training, optimizers)  # makes the state of new optimizers
    names: dict[Tensor, str] = {
        p: n.removeprefix("module.") for n, p in training.named_parameters()
    }
    known = {name.partition(":")[2] for name in optimizer_state}
    for optimizer in optimizers:
        for parameter, state in [*optimizer.state.items()]:
            name = names[parameter].removeprefix(PREFIX)
            if name not in known and optimizer_state:
                del optimizer.state[parameter]
                continue
            for kind, tensor in state.items():
                fill(tensor, optimizer_state[f"{kind}:{name}"])


def on_whole_parameters(kind: type[T]) -> type[T]:
    """Return an optimizer that puts the shards of one parameter after the other together.

    Every process computes the whole step, and keeps the whole state, of each parameter. All must
    take the step together.
    """

    def step(self: T, closure: None = None) -> None:
        groups = [group["params"] for group in self.param_groups]
        if not any(is_shard(parameter) for group in groups for parameter in group):
            kind.step(self)
            return
        for group in self.param_groups:
            group["params"] = []
        for group, parameters in zip(self.param_groups, groups, strict=True):
            for parameter in parameters:
                if parameter.grad is None:
                    continue
                full = whole(parameter.detach()).clone()
                full.grad = whole(parameter.grad)
                self.state[full] = self.state.pop(parameter, {})
                group["params"] = [full]
                kind.step(self)
                self.state[parameter] = self.state.pop(full)
                fill(parameter, full)
            group["params"] = []
        for group, parameters in zip(self.param_groups, groups, strict=True):
            group["params"] = parameters

    return cast(type[T], type(kind.__name__, (kind,), {"step": torch.no_grad()(step)}))
