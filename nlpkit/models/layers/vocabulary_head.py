"""The language-model heads of the families with a vocabulary, and their cross entropy.

A family derives its `Model` from `TiedHead`, or from `OutputHead` of `output_head.py` if the output
may have a table or a bias of its own, and overrides the methods that differ.

The logits of a step are by far its largest tensor (targets x vocabulary). `linear_cross_entropy`
has one chunk of them at a time, whose gradient it computes at once, so that backward only scales.
N tokens of the pack, M targets, M' of a chunk, S sequences, C hidden_size, E width of the table,
V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nlpkit.models.layers.packs import last_states

# Targets whose logits exist at a time: 512 x 8,192 x 4 bytes are 16 MB, which caches hold. The
# gradient of a large table leaves the caches: in half precision, where adding to it also converts,
# it is added less often.
CHUNK, CHUNK_OF_LARGE, CHUNK_OF_LARGE_HALF, LARGE = 512, 256, 1024, 1 << 14
ROWS, NUMBERS = 4, 1 << 18  # logits for the softmax, a thread: at least 4 rows, 1 MB in float32


class TiedHead(nn.Module):
    """Losses and logits of a model whose output table is by default `token_embedding`."""

    token_embedding: Tensor  # (V, E)
    attention_choice = ""  # backends of the last forward pass, with their reasons, for the log
    z_loss = 0.0  # `train.z_loss`

    def output_table(self) -> Tensor:
        """Return the table of the output, (V, E): that of the input, unless they are not tied."""
        return self.token_embedding

    def output_bias(self) -> Tensor | None:
        """Return the bias of the logits, (V,), or None."""
        return None

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table multiplies, (M, E), from hidden states (M, C): BERT adds layers."""
        return hidden

    def token_loss(
        self,
        hidden: Tensor,
        index: Tensor,
        targets: Tensor,
        loss_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the summed cross entropy of `targets` (M,), and the losses (M,), detached.

        `index` (M,) are the targets' rows of `hidden` (N, C); `loss_weights` (M,) are the weights
        in the sum. Labels are smoothed, and `z_loss` added, only in training mode, not for held-out
        perplexity.
        """
        return linear_cross_entropy(
            self.output_states(hidden[index]),
            self.output_table(),
            targets,
            loss_weights,
            bias=self.output_bias(),
            label_smoothing=label_smoothing if self.training else 0.0,
            z_loss=self.z_loss if self.training else 0.0,
        )

    def token_losses(self, hidden: Tensor, index: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy at each of the rows `index`, (M,), each with its gradient.

        `targets` are tokens (M,) or probabilities (M, V). Slower than `token_loss`, which is for a
        sum: backward computes the logits again. Only those of one chunk of targets exist at a time.
        """

        def compute(states: Tensor, right: Tensor) -> Tensor:
            logits = self.logits(states)
            return F.cross_entropy(logits.to(_wide(logits)), right, reduction="none")

        chunks = zip(hidden[index].split(CHUNK), targets.split(CHUNK), strict=True)
        return torch.cat([checkpoint(compute, *each, use_reentrant=False) for each in chunks])

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (M, V) for hidden states (M, C)."""
        return F.linear(self.output_states(hidden), self.output_table(), self.output_bias())

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task: its last token's state."""
        return last_states(hidden, lengths)


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

    hidden (M, C), weight (V, C), bias (V,), targets (M,) int64; `loss_weights` (M,) float32 are the
    weights in the sum. Products are in the type of autocast, softmax and losses in float32 (float64
    for float64). The graph can be used for one backward pass.

    `label_smoothing` is the share of the target that is spread evenly over the vocabulary (Szegedy
    et al. 2016, sec. 7). The sum, not the losses, also has `z_loss` * (log of the normalizer)^2 of
    each target, which keeps logits near 0 (Chowdhery et al. 2022, PaLM, sec. 5).
    """
    device, dtype = hidden.device.type, hidden.dtype
    if torch.is_autocast_enabled(device) and dtype == torch.float32:
        dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):  # it would convert the table for each chunk
        # Inside `forward`, gradients are always off, and `needs_input_grad` ignores `no_grad`.
        with_grad = torch.is_grad_enabled() and any(
            each is not None and each.requires_grad for each in (hidden, weight, bias)
        )
        settings = _Settings(label_smoothing, z_loss, with_grad, dtype)
        return _LinearCrossEntropy.apply(hidden, weight, bias, targets, loss_weights, settings)


@dataclass(frozen=True)
class _Settings:
    label_smoothing: float
    z_loss: float
    with_grad: bool
    dtype: torch.dtype  # of the products


def chunk_size(vocabulary: int, dtype: torch.dtype) -> int:
    """Return the targets whose logits exist at a time, in the type of the products."""
    if vocabulary <= LARGE:
        return CHUNK
    return CHUNK_OF_LARGE_HALF if dtype.itemsize < 4 else CHUNK_OF_LARGE


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
        wide, dtype, count = _wide(hidden), settings.dtype, len(targets)
        token_losses, normalizers = torch.empty(2, count, dtype=wide, device=hidden.device)
        of_hidden, of_weight, of_bias = (settings.with_grad and n for n in ctx.needs_input_grad[:3])
        hidden_grad = torch.empty_like(hidden) if of_hidden else None
        weight_grad = torch.zeros_like(weight) if of_weight and not count else None
        bias_grad = torch.zeros_like(bias, dtype=wide) if of_bias and bias is not None else None
        states, table = hidden.to(dtype), weight.to(dtype)  # once, not for each chunk
        size = some = chunk_size(len(weight), dtype)
        if hidden.device.type == "cpu":  # the passes of the softmax: in the cache of each core
            some = min(max(ROWS, NUMBERS // len(weight)) * torch.get_num_threads(), size)
        # All chunks share them: a new large tensor is new pages of the system each time.
        buffer = states.new_empty(min(size, count), len(weight))
        converted = states.new_empty(min(some, count), len(weight), dtype=wide)
        for begin in range(0, count, size):
            chunk = slice(begin, min(begin + size, count))
            grad = torch.mm(states[chunk], table.T, out=buffer[: chunk.stop - begin])  # the logits
            for start in range(begin, chunk.stop, some):
                rows = slice(start, min(start + some, chunk.stop))
                part = grad[start - begin : rows.stop - begin]
                logits = part if dtype == wide else converted[: len(part)].copy_(part)
                if bias is not None:
                    logits += bias
                weights = None if loss_weights is None else loss_weights[rows, None]
                token_losses[rows], normalizers[rows] = _losses(
                    logits, targets[rows, None], weights, settings
                )
                if bias_grad is not None:
                    bias_grad += logits.sum(0)
                if settings.with_grad:
                    part.copy_(logits)  # nothing if they are the same
            if hidden_grad is not None:
                hidden_grad[chunk] = grad @ table
            if of_weight:
                weight_grad = _add_product(weight_grad, grad.T, states[chunk], _wide(weight))
        weight_grad = None if weight_grad is None else weight_grad.to(weight.dtype)
        bias_grad = bias_grad if bias_grad is None or bias is None else bias_grad.to(bias.dtype)
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.mark_non_differentiable(token_losses)
        total = token_losses.addcmul(normalizers, normalizers, value=settings.z_loss)
        total = total if loss_weights is None else total * loss_weights
        return total.sum(dtype=torch.float64).to(wide), token_losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled: list[Tensor | None] = []
        for grad in ctx.saved_tensors:
            if grad is None or grad.dtype == torch.promote_types(grad.dtype, scale.dtype):
                # In place, because that of a table is large; torch refuses a second use.
                scaled.append(grad if grad is None else grad.mul_(scale))
            else:  # in bfloat16, rounding would change 1 / targets by up to 0.4 %
                scaled.append((grad.to(scale.dtype) * scale).to(grad.dtype))
        return *scaled, None, None, None


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the type of losses and sums: float32, or float64 for inputs in float64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _losses(
    logits: Tensor, chosen: Tensor, weights: Tensor | None, settings: _Settings
) -> tuple[Tensor, Tensor]:
    """Return losses (M') and the log of the normalizers (M'); `logits` (M', V) get their gradient.

    `chosen` and `weights` are (M', 1).
    """
    smoothing, z_loss = settings.label_smoothing, settings.z_loss
    likelihood = logits.gather(1, chosen)
    if smoothing:
        # (1 - e) * nll + e * (mean of -log p over V); the weights of the normalizer sum to 1.
        likelihood = (1 - smoothing) * likelihood + smoothing * logits.mean(1, keepdim=True)
    normalizer, likely = _softmax(logits), logits
    if settings.with_grad:
        # (1 + 2 * z * normalizer) * p - (1 - e) * one_hot - e / V
        if z_loss:
            likely *= 1 + 2 * z_loss * normalizer
        likely.scatter_add_(1, chosen, torch.full_like(normalizer, smoothing - 1))
        if smoothing:
            likely -= smoothing / likely.shape[1]
        if weights is not None:
            likely *= weights
    return (normalizer - likelihood).squeeze(1), normalizer.squeeze(1)


def _softmax(logits: Tensor) -> Tensor:
    """Return the log of the normalizer (M', 1); logits (M', V) become probabilities.

    The largest probability is 1 / sum of exp(logit - largest): one pass of exp serves both.
    """
    largest = logits.amax(1, True)
    return largest - torch.softmax(logits, 1, out=logits).amax(1, True).log_()


def _add_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return total + a @ b, in `dtype`; it overwrites the total."""
    if total is None:
        return (a @ b).to(dtype)
    return total.addmm_(a, b) if total.dtype == a.dtype else total.add_(a @ b)
