"""The optimizer."""

import torch
from torch import nn

from nlpkit.train.settings import ResolvedTraining


def adamw(model: nn.Module, settings: ResolvedTraining) -> torch.optim.AdamW:
    """Return AdamW for the trainable parameters, with weight decay on matrices only.

    Decoupled weight decay: Loshchilov & Hutter 2019. Matrices are parameters with two or more
    dimensions; norm scales and biases are not decayed.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    # Decay would change the soft prompts of other tasks.
    decay = settings.weight_decay if settings.tune == "all" else 0.0
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.adam_eps,
        fused=True,
    )
