"""Vocabulary projection and cross entropy in one function, one chunk of targets at a time.

The logits of a step are by far its largest tensor (targets x vocabulary). Here only one chunk of
them exists at a time. Forward computes the gradient of each chunk, so that backward only scales it.
M targets, M' targets of a chunk, C hidden_size, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Targets per chunk. Logits of 512 x 8,192 x 4 bytes are 16 MB, which caches hold. The gradient of a
# large table leaves the caches: in half precision, where adding to it also converts, it is added
# once for several chunks.
CHUNK, CHUNK_OF_LARGE, LARGE = 512, 256, 1 << 14
BLOCK_OF_LARGE_HALF = 1024


def sizes(vocabulary: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the targets of a chunk of logits, and of a product that gives gradients of inputs."""
    if vocabulary <= LARGE:
        return CHUNK, CHUNK
    return CHUNK_OF_LARGE, BLOCK_OF_LARGE_HALF if dtype.itemsize < 4 else CHUNK_OF_LARGE


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the type of losses and sums: float32, or float64 for inputs in float64."""
    return torch.promote_types(tensor.dtype, torch.float32)


@dataclass(frozen=True)
class _Settings:
    label_smoothing: float
    z_loss: float
    with_grad: bool
    dtype: torch.dtype  # of the products


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        loss_weights: Tensor | None,
        settings: _Settings,
    ) -> tuple[Tensor, Tensor]:
        wide, dtype = _wide(hidden), settings.dtype
        token_losses, normalizers = torch.empty(2, len(targets), dtype=wide, device=hidden.device)
        of_hidden, of_weight, of_bias = (settings.with_grad and n for n in ctx.needs_input_grad[:3])
        hidden_grad = torch.empty_like(hidden) if of_hidden else None
        weight_grad = torch.zeros_like(weight) if of_weight and not len(targets) else None
        bias_grad = torch.zeros_like(bias, dtype=wide) if of_bias and bias is not None else None
        states, table = hidden.to(dtype), weight.to(dtype)  # once, not for each chunk
        size, together = sizes(len(weight), dtype)
        for block in _slices(0, len(targets), together):
            grad: Tensor | None = None  # of the logits of the block
            for rows in _slices(block.start, block.stop, size):
                logits = (states[rows] @ table.T).to(wide)  # (M', V)
                if bias is not None:
                    logits += bias
                weights = None if loss_weights is None else loss_weights[rows, None]
                chunk = _chunk(logits, targets[rows, None], weights, settings)
                token_losses[rows], normalizers[rows], part = chunk
                if part is None:
                    continue
                if bias_grad is not None:
                    bias_grad += part.sum(0)
                if rows == block:  # float32 needs no copy
                    grad = part.to(dtype)
                    continue
                if grad is None:
                    grad = states.new_empty(block.stop - block.start, len(weight))
                grad[rows.start - block.start : rows.stop - block.start] = part
            if grad is not None and hidden_grad is not None:
                hidden_grad[block] = grad @ table
            if grad is not None and of_weight:
                weight_grad = _add_product(weight_grad, grad.T, states[block], _wide(weight))
        weight_grad = None if weight_grad is None else weight_grad.to(weight.dtype)
        bias_grad = bias_grad if bias_grad is None or bias is None else bias_grad.to(bias.dtype)
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.mark_non_differentiable(token_losses)
        return _sum(token_losses, normalizers, loss_weights, settings.z_loss), token_losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # A table's gradient is large: it is scaled in place, unless the graph is kept for another
        # backward pass.
        kept = _keeps_graph()
        scaled = (g if g is None else _scale(g, scale, not kept) for g in ctx.saved_tensors)
        return *scaled, None, None, None


def _keeps_graph() -> bool:
    """Return whether the graph is kept after this backward pass, as far as torch says it."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return asked is None or bool(asked())


def _chunk(
    logits: Tensor, chosen: Tensor, weights: Tensor | None, settings: _Settings
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return losses (M'), the log of the normalizers (M') and the gradient of the logits (M', V).

    `chosen` and `weights` are (M', 1).
    """
    smoothing = settings.label_smoothing
    likely, normalizer = _softmax(logits)
    losses = _losses(logits, normalizer, chosen, smoothing)
    grad = None
    if settings.with_grad:
        grad = _logits_grad(likely, normalizer, chosen, smoothing, settings.z_loss)
        if weights is not None:
            grad *= weights
    return losses.squeeze(1), normalizer.squeeze(1), grad


def _sum(losses: Tensor, normalizers: Tensor, weights: Tensor | None, z_loss: float) -> Tensor:
    """Return the weighted sum of losses (M,), summed in float64."""
    total = losses + z_loss * normalizers.square() if z_loss else losses
    total = total if weights is None else total * weights
    return total.sum(dtype=torch.float64).to(losses.dtype)


def _slices(start: int, stop: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` from `start` to `stop`; the last one may be shorter."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def _add_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return total + a @ b, in `dtype`; it overwrites the total."""
    if total is None:
        return (a @ b).to(dtype)
    return total.addmm_(a, b) if total.dtype == a.dtype else total.add_(a @ b)


def _scale(grad: Tensor, scale: Tensor, overwrite: bool) -> Tensor:
    """Return grad * scale, in grad's type."""
    exact = torch.promote_types(grad.dtype, scale.dtype)
    if exact != grad.dtype:  # in bfloat16, rounding would change 1 / targets by up to 0.4 %
        return (grad.to(exact) * scale).to(grad.dtype)
    return grad.mul_(scale) if overwrite else grad * scale


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities (M', V) of logits (M', V), and the log of their normalizer (M', 1).

    The largest probability is 1 / sum of exp(logit - largest): one pass of exp serves both.
    """
    likely = logits.softmax(1)
    return likely, logits.amax(1, True) - likely.amax(1, True).log_()


def _losses(logits: Tensor, normalizer: Tensor, chosen: Tensor, smoothing: float) -> Tensor:
    """Return the loss of each target (M', 1) from logits (M', V)."""
    log_likelihood = logits.gather(1, chosen)
    if smoothing:
        # (1 - e) * nll + e * (mean of -log p over V); the weights of the normalizer sum to 1.
        log_likelihood = (1 - smoothing) * log_likelihood + smoothing * logits.mean(1, keepdim=True)
    return normalizer - log_likelihood


def _logits_grad(
    likely: Tensor, normalizer: Tensor, chosen: Tensor, smoothing: float, z_loss: float
) -> Tensor:
    """Return (1 + 2 * z * normalizer) * p - (1 - e) * one_hot - e / V (M', V).

    It overwrites the probabilities p.
    """
    if z_loss:
        likely *= 1 + 2 * z_loss * normalizer
    likely.scatter_add_(1, chosen, torch.full_like(normalizer, smoothing - 1))
    if smoothing:
        likely -= smoothing / likely.shape[1]
    return likely


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    loss_weights: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the summed cross entropy of `hidden @ weight.T + bias`, and the losses (M,), detached.

    Args:
        hidden: (M, C), in the compute type, or float32 under autocast, whose type is then that of
            the products; softmax and loss are float32 (float64 for float64).
        weight: (V, C).
        targets: (M,) int64, all in [0, V).
        loss_weights: (M,) float32, the weight of each loss in the sum.
        bias: (V,), added to the logits of every token.
        label_smoothing: e in [0, 1]; the target's share is 1 - e, and e is spread evenly over the
            vocabulary (Szegedy et al. 2016, sec. 7; Vaswani et al. 2017, sec. 5.4), as in
            `torch.nn.functional.cross_entropy`.
        z_loss: z; the sum also has z * (log of the normalizer)^2 of each target, which keeps logits
            near 0 (Chowdhery et al. 2022, PaLM, sec. 5). The losses (M,) do not.
    """
    device = hidden.device.type
    dtype = hidden.dtype
    if torch.is_autocast_enabled(device) and dtype == torch.float32:
        dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):  # it would convert the table for each chunk
        # Inside `forward`, gradients are always off, and `needs_input_grad` ignores `no_grad`.
        with_grad = torch.is_grad_enabled() and any(
            each is not None and each.requires_grad for each in (hidden, weight, bias)
        )
        settings = _Settings(label_smoothing, z_loss, with_grad, dtype)
        return _LinearCrossEntropy.apply(hidden, weight, bias, targets, loss_weights, settings)
