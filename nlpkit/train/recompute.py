"""Gradient checkpointing: backward computes the activations inside of a layer again.

Only the inputs of layers are kept (Chen et al. 2016, arXiv:1604.06174). Random numbers are drawn
again from the same state, so that dropout masks, losses and gradients are the same bit for bit.
A layer is a member of an `nn.ModuleList`, as with FSDP; names of parameters do not change.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nlpkit.errors import UsageError


def apply(model: nn.Module) -> None:
    """Let the layers of `model` be computed again in backward; call it before it is wrapped."""
    check(model)
    for layer in layers(model):
        layer.forward = partial(_forward, layer, layer.forward)


def check(model: nn.Module) -> None:
    """Raise `UsageError` if no layer of the model can be computed again alone."""
    if not layers(model):
        raise UsageError(
            "train.gradient_checkpointing: the model has no layers that can be computed again one "
            "by one: it has none, or is a recurrent network, whose layers torch computes in one "
            "call and whose steps in time need the one before; set it to false"
        )


def layers(module: nn.Module) -> list[nn.Module]:
    """Return the members of all `nn.ModuleList` that have parameters, without those inside them."""
    found = []
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            found += [child] if [*child.parameters()] else []
        else:
            found += layers(child)
    return found


def _forward(layer: nn.Module, forward: Any, *given: Any, **named: Any) -> Any:
    """Return what the layer's own `forward` returns; keep only what is given, if it is trained."""
    if not (layer.training and torch.is_grad_enabled()):
        return forward(*given, **named)
    return checkpoint(forward, *given, use_reentrant=False, preserve_rng_state=True, **named)
