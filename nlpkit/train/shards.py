"""Whole tensors where several processes have shards; weights and optimizer state by their names.

torch's distributed state dicts have the same names for a plain module, DDP and FSDP, on any number
of processes. All processes must call these functions together. What of torch they need takes half a
second and more to import: it is imported at the first save, not at the start; with a budget of
time, before its clock starts. What it has not made is not sharded.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions
    from torch.distributed.tensor import DTensor

_PREFIX = "model."  # of `runs.run.Training`
T = TypeVar("T", bound=Optimizer)


def is_shard(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether each process has a part of this tensor."""
    made_by = sys.modules.get("torch.distributed.tensor")
    return made_by is not None and isinstance(tensor, made_by.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor. All processes must call it together if it is sharded."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


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


def release(module: nn.Module) -> None:
    """Let all parameters be shards, also those that a forward pass alone has left whole.

    Until then, FSDP computes with the whole ones, whatever the shards have become.
    """
    made_by = sys.modules.get("torch.distributed.fsdp")
    if made_by is None:
        return
    for each in module.modules():
        if isinstance(each, made_by.FSDPModule):
            each.reshard()


def import_early() -> None:
    """Import now what the first save would: it takes seconds, and the last save does not."""
    import torch._dynamo  # what torch's functions import when they are called
    import torch.distributed.checkpoint.state_dict  # noqa: F401


def _options(strict: bool = True) -> "StateDictOptions":
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True, strict=strict)


def weights(training: nn.Module) -> dict[str, Tensor]:
    """Return the model's full parameters on the CPU; on ranks other than 0, an empty dict."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    release(training)
    state: dict[str, Any] = get_model_state_dict(training, options=_options())
    return {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()}


def optimizer_state(training: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return what the optimizers keep, such as `exp_avg:NAME` of AdamW, full and on the CPU."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    release(training)
    state: Any = get_optimizer_state_dict(training, optimizers, options=_options())
    return {
        f"{kind}:{name.removeprefix(_PREFIX)}": value
        for name, entry in state.get("state", {}).items()
        for kind, value in entry.items()
    }


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

    named: Any = {_PREFIX + name: tensor for name, tensor in weights.items()}
    # The state dicts have no prefix of DistributedDataParallel.
    trained = {n.removeprefix("module.") for n, p in training.named_parameters() if p.requires_grad}
    all_trained = len(trained) == len(list(training.parameters()))
    if lacking := trained - named.keys():
        raise KeyError(sorted(lacking)[0])
    set_model_state_dict(training, named, options=_options(strict=all_trained))
    get_optimizer_state_dict(training, optimizers)  # makes the state of new optimizers
    names: dict[Tensor, str] = {
        p: n.removeprefix("module.") for n, p in training.named_parameters()
    }
    known = {name.partition(":")[2] for name in optimizer_state}
    for optimizer in optimizers:
        for parameter, state in [*optimizer.state.items()]:
            name = names[parameter].removeprefix(_PREFIX)
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
