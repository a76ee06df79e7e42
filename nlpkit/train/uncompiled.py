"""Keeps torch's optimizers from importing torch's compiler, 0.7 s at the start of every run.

They import it to tell it what not to compile. Nothing here compiles an optimizer.
"""

import inspect
from typing import TypeVar, cast

import torch
from torch.optim import Optimizer

_MARK = "__dynamo_disable"  # torch/_compile.py: a method that has it is called as it is
_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")

T = TypeVar("T", bound=Optimizer)


def leave_out_the_compiler() -> None:
    """Let the methods that all optimizers of torch share not import it."""
    for name in _METHODS:
        eager = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if eager is not None and not hasattr(eager, _MARK):
            setattr(eager, _MARK, eager)


def uncompiled(optimizer: type[T]) -> type[T]:
    """Return an optimizer whose `step` does not import it, and has no gradients of its own."""
    step = torch.no_grad()(inspect.unwrap(optimizer.step))
    return cast(type[T], type(optimizer.__name__, (optimizer,), {"step": step}))
