"""Vocabulary projection and cross entropy together, a chunk of targets at a time.

The logits of a step are by far its largest tensor (targets x vocabulary); here only one chunk of
them exists, and its gradient is made at once, so that the backward pass only scales it.
M targets, C hidden_size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 512  # targets whose logits exist together: 512 x 30,000 x 4 bytes = 60 MB


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        importance: Tensor | None,
        with_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        each = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        of_hidden, of_weight = (with_grad and needed for needed in ctx.needs_input_grad[:2])
        hidden_grad = torch.empty_like(hidden) if of_hidden else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if of_weight else None
        compute = weight.to(hidden.dtype)
        for start in range(0, len(targets), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = (hidden[rows] @ compute.T).float()  # (M', V)
            chosen = targets[rows, None]
            normalizer = logits.logsumexp(1, keepdim=True)
            each[rows] = (normalizer - logits.gather(1, chosen)).squeeze(1)
            if not (of_hidden or of_weight):
                continue
            probabilities = logits.sub_(normalizer).exp_()
            probabilities.scatter_add_(1, chosen, -torch.ones_like(normalizer))
            if importance is not None:
                probabilities *= importance[rows, None]
            grad = probabilities.to(hidden.dtype)
            if hidden_grad is not None:
                hidden_grad[rows] = grad @ compute
            if weight_grad is not None:
                weight_grad += grad.T @ hidden[rows]
        if weight_grad is not None:
            weight_grad = weight_grad.to(weight.dtype)
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.mark_non_differentiable(each)
        weighted = each if importance is None else each * importance
        return weighted.sum(dtype=torch.float64).float(), each

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # In bfloat16 the scale, 1 / targets, would be off by up to 0.4 %.
        scaled = (
            g
            if g is None
            else (g.to(torch.promote_types(g.dtype, scale.dtype)) * scale).to(g.dtype)
            for g in ctx.saved_tensors
        )
        return *scaled, None, None, None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, importance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the summed cross entropy of `hidden @ weight.T` and, without gradient, each one's.

    Args:
        hidden: (M, C), in the compute type; softmax and loss are float32 whatever it is.
        weight: (V, C).
        targets: (M,) int64, all in [0, V).
        importance: (M,) float32, by which each one's is multiplied in the sum.
    """
    # Inside `forward` gradients are always off, and `needs_input_grad` knows nothing of `no_grad`.
    return _LinearCrossEntropy.apply(hidden, weight, targets, importance, torch.is_grad_enabled())
