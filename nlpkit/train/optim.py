"""The optimizer and the learning rate as a pure function of the step."""

import math

import torch
from torch import nn

from nlpkit.train.settings import ResolvedTraining


def lr_factor(step: int, settings: ResolvedTraining) -> float:
    """Return the share of the peak learning rate that step 1, 2, … `settings.steps` uses.

    `noam` is Vaswani et al. 2017, eq. 3, scaled so that its peak, at the end of the warm-up, is 1.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return step / warmup
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "noam":
        return math.sqrt(warmup / step)
    progress = (step - warmup) / max(1, settings.steps - warmup)
    shape = (
        1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    )
    low = settings.min_lr_ratio
    return low + (1 - low) * shape


def adamw(model: nn.Module, settings: ResolvedTraining) -> torch.optim.AdamW:
    """Return AdamW over what is trainable, with weight decay on matrices only.

    Decoupled decay (Loshchilov & Hutter 2019). A matrix is any parameter of two or more
    dimensions; norm scales and biases are not decayed.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    # Rows of the soft prompts that are not the task's must stay as they are.
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
