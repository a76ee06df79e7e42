"""Gets and sets weights and optimizer state as named tensors, independent of DDP and FSDP.

torch's distributed state dicts have the same names for a plain module, DDP and FSDP, on any number
of processes. All processes must call these functions together. They are imported at the first save,
not at the start; with a budget of time, before its clock starts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nlpkit.train import placement

_PREFIX = "model."  # of `runs.run.Training`


def import_early() -> None:
    """Import now what the first save would: it takes seconds, and the last save does not."""
    import torch._dynamo  # what torch's functions import when they are called
    import torch.distributed.checkpoint.state_dict  # noqa: F401


def _options(strict: bool = True) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True, strict=strict)


def weights(training: nn.Module) -> dict[str, Tensor]:
    """Return the model's full parameters on the CPU; on ranks other than 0, an empty dict."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    placement.release(training)
    state: dict[str, Any] = get_model_state_dict(training, options=_options())
    return {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()}


def optimizer_state(
    training: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Return what the optimizers keep, such as `exp_avg:NAME` of AdamW, full and on the CPU."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    placement.release(training)
    state: Any = get_optimizer_state_dict(training, optimizers, options=_options())
    return {
        f"{kind}:{name.removeprefix(_PREFIX)}": value
        for name, entry in state.get("state", {}).items()
        for kind, value in entry.items()
    }


def restore(
    training: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
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
                placement.fill(tensor, optimizer_state[f"{kind}:{name}"])
