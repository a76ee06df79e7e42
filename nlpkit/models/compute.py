"""In which type a model computes."""

import torch
from torch import Tensor


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type in which linear layers compute now: autocast's, or the parameter's own."""
    kind = parameter.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype
