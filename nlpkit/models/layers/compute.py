"""The data type of a model's computation."""

import torch
from torch import Tensor


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """Return the current type of linear layers: that of autocast, or else of the parameter."""
    device = parameter.device.type
    enabled = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if enabled else parameter.dtype
