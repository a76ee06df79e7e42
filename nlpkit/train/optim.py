"""The optimizer, and the learning rate as a function of the step."""

import math

import torch
from torch import nn

from nlpkit.train.settings import ResolvedTraining


def lr_factor(step: int, settings: ResolvedTraining) -> float:
    """Return the learning rate of step 1, 2, … `settings.steps`, relative to the peak.

    `noam` is Vaswani et al. 2017, eq. 3, scaled to 1 at its peak, the end of the warm-up. `linear`
    and `cosine` reach `min_lr_ratio` one step after the last step, so that no step has rate 0.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return step / warmup
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "noam":
        return math.sqrt(warmup / step)
    if settings.zero_at_last_step:
        progress = (step - warmup) / max(1, settings.steps - warmup)
    else:
        peak = max(1, warmup)
        progress = (step - peak) / (settings.steps + 1 - peak)
    shape = (
        1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    )
    low = settings.min_lr_ratio
    return low + (1 - low) * shape


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
