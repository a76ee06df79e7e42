"""Checks that the weights of a checkpoint are finite, before it is saved and before it is used."""

from collections.abc import Mapping
from pathlib import Path

from accelerate import PartialState
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nlpkit.checkpoints import files
from nlpkit.errors import DivergedError
from nlpkit.runs.run import from_first


def check_finite(step: int, weights: Mapping[str, Tensor]) -> None:
    """Raise `DivergedError` if a weight is not finite; all processes raise it together."""
    if name := from_first(PartialState(), lambda: _first_not_finite(weights)):
        raise DivergedError(f"step {step}: weights of {name} are not finite; nothing is saved")


def find_problem(path: Path) -> str | None:
    """Return the first problem of a checkpoint's files or weights, or None.

    Earlier versions also saved weights that were not finite.
    """
    return files.find_corruption(path) or find_not_finite(path)


def find_not_finite(path: Path) -> str | None:
    """Return which weights of a checkpoint are not finite, or None."""
    for file in sorted(path.rglob("*.safetensors")):
        if file.name == files.OPTIMIZER_STATE:
            continue
        try:
            name = _first_not_finite(load_file(file))
        except (SafetensorError, OSError):  # the reader of the weights says what is wrong
            continue
        if name:
            return f"weights of {name} are not finite: the training diverged before it was saved"
    return None


def _first_not_finite(weights: Mapping[str, Tensor]) -> str | None:
    return next((name for name, each in weights.items() if not each.isfinite().all()), None)
