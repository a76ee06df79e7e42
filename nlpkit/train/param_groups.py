"""Groups of parameters, for the optimizers in `train/optimizers/`. Importable without torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nlpkit.contracts.optimizer import Group, Trained
from nlpkit.errors import Unsupported, not_installed
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from nlpkit.train.settings import ResolvedTraining


def line(figures: Mapping[str, Any]) -> str:
    """Return the figures of a group on one line, for people."""
    tensors, each = figures["tensors"], figures["matrices_per_tensor"]
    number = f"{tensors} x {each}" if each > 1 else f"{tensors}"
    return (
        f"{figures['optimizer']}: {number} {figures['parameters']}; "
        f"{number_of(figures['weights'], 'weights')}; "
        f"lr {figures['lr']:g}, decay {figures['weight_decay']:g}"
    )


def param_groups(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the groups as torch's optimizers take them; `initial_lr` is the schedule's peak."""
    return [
        {
            "params": list(group.parameters),
            "lr": group.lr,
            "initial_lr": group.lr,
            "weight_decay": group.weight_decay,
        }
        for group in groups
    ]


def by_dimension(
    optimizer: str, trained: Trained, settings: ResolvedTraining, state: Sequence[int]
) -> list[Group]:
    """Return the groups of an optimizer for all: what is decayed, and norms and biases.

    `state` has the float32 numbers that the optimizer keeps for each parameter.
    """
    wide = [parameter.ndim >= 2 for parameter in trained.parameters]
    named = {True: "matrices, tables", False: "norms, biases"}
    decay = {True: decay_of(settings), False: 0.0}
    return [
        Group(
            optimizer,
            what,
            [p for p, is_wide in zip(trained.parameters, wide, strict=True) if is_wide is kind],
            settings.lr,
            decay[kind],
            sum(n for n, is_wide in zip(state, wide, strict=True) if is_wide is kind),
        )
        for kind, what in named.items()
        if kind in wide
    ]


def decay_of(settings: ResolvedTraining) -> float:
    """Return the weight decay of matrices; it would change the soft prompts of other tasks."""
    return settings.weight_decay if settings.tune == "all" else 0.0


def check_installed(package: str | None) -> None:
    """Raise `Unsupported` if the package of an optimizer is not installed."""
    if package and importlib.util.find_spec(package.replace("-", "_")) is None:
        raise Unsupported(f"train.optimizer: {not_installed(package)}")
