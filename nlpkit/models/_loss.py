"""Vocabulary projection and cross entropy together, a chunk of targets at a time.

The logits of a step are by far its largest tensor (targets x vocabulary); here only one chunk of
them exists, and its gradient is made at once, so that the backward pass only scales it.
M targets, C hidden_size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 512  # targets whose logits exist together: 512 x 30,000 x 4 bytes = 60 MB


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        each = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        needs_grad = any(ctx.needs_input_grad[:2])
        compute = weight.to(hidden.dtype)
        if needs_grad:
            hidden_grad = torch.empty_like(hidden)
            weight_grad = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(targets), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = (hidden[rows] @ compute.T).float()  # (M', V)
            chosen = targets[rows, None]
            normalizer = logits.logsumexp(1, keepdim=True)
            each[rows] = (normalizer - logits.gather(1, chosen)).squeeze(1)
            if needs_grad:
                probabilities = logits.sub_(normalizer).exp_()
                probabilities.scatter_add_(1, chosen, -torch.ones_like(normalizer))
                grad = probabilities.to(hidden.dtype)
                hidden_grad[rows] = grad @ compute
                weight_grad += grad.T @ hidden[rows]
        if needs_grad:
            ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        ctx.mark_non_differentiable(each)
        return each.sum(dtype=torch.float64).float(), each

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad * scale.to(hidden_grad.dtype), weight_grad * scale, None


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed cross entropy of `hidden @ weight.T` and, without gradient, each one's.

    Args:
        hidden: (M, C), in the compute type; softmax and loss are float32 whatever it is.
        weight: (V, C).
        targets: (M,) int64, all in [0, V).
    """
    return _LinearCrossEntropy.apply(hidden, weight, targets)
