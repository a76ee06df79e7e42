"""Bias over the vocabulary and label smoothing of the chunked loss, against torch's cross entropy.

Tolerances: those of test_loss.py.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nlpkit.models.layers.vocabulary_head import CHUNK, linear_cross_entropy

C, V = 24, 97
M = CHUNK + 9  # two chunks, the second not full


def _inputs(dtype: torch.dtype = torch.float32, m: int = M) -> list[Tensor]:
    shapes = (m, C), (V, C), (V,)
    return [torch.randn(*shape).to(dtype).requires_grad_() for shape in shapes]


def _oracle(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, e: float, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return torch's sum and each loss from whole logits."""
    logits = F.linear(hidden, weight, bias)
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=e)
    return (losses if weights is None else losses * weights).sum(), losses.detach()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("e", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_with_bias_and_smoothing_equals_torch(
    dtype: torch.dtype, e: float, weighted: bool
) -> None:
    hidden, weight, bias = inputs = _inputs(dtype)
    targets = torch.randint(0, V, (M,))
    weights = torch.rand(M) if weighted else None
    loss_sum, token_losses = linear_cross_entropy(
        hidden, weight, targets, weights, bias=bias, label_smoothing=e
    )
    expected_sum, expected = _oracle(hidden, weight, bias, targets, e, weights)
    torch.testing.assert_close(loss_sum, expected_sum, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(token_losses, expected, rtol=1e-6, atol=1e-5)
    assert not token_losses.requires_grad
    found = torch.autograd.grad(loss_sum / M, inputs)
    for ours, theirs in zip(found, torch.autograd.grad(expected_sum / M, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 / M)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("e", [0.0, 0.1])
def test_z_loss_equals_its_formula_and_is_not_in_each_loss(e: float, weighted: bool) -> None:
    hidden, weight, bias = inputs = _inputs(torch.float64)
    targets = torch.randint(0, V, (M,))
    weights = torch.rand(M) if weighted else None
    z = 0.03
    loss_sum, token_losses = linear_cross_entropy(
        hidden, weight, targets, weights, bias=bias, label_smoothing=e, z_loss=z
    )
    expected_sum, expected = _oracle(hidden, weight, bias, targets, e, weights)
    squares = F.linear(hidden, weight, bias).logsumexp(1) ** 2
    expected_sum = expected_sum + z * (squares if weights is None else squares * weights).sum()
    torch.testing.assert_close(loss_sum, expected_sum, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(token_losses, expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(loss_sum, inputs)
    for ours, theirs in zip(found, torch.autograd.grad(expected_sum, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("e", [0.0, 0.1])
def test_loss_gradients_are_those_of_finite_differences(e: float, weighted: bool) -> None:
    targets = torch.randint(0, 13, (7,))
    weights = torch.rand(7, dtype=torch.float64) if weighted else None
    shapes = (7, 5), (13, 5), (13,)
    inputs = [torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]

    def loss_sum(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_cross_entropy(
            hidden, weight, targets, weights, bias=bias, label_smoothing=e
        )[0]  # fmt: skip

    found = torch.autograd.grad(loss_sum(*inputs), inputs)
    with torch.no_grad():
        for values, gradient in zip(inputs, found, strict=True):
            for index in np.ndindex(*values.shape):
                losses = []
                for step in (1e-5, -2e-5):  # leads to the value + 1e-5, then - 1e-5
                    values[index] += step
                    losses.append(float(loss_sum(*inputs)))
                values[index] += 1e-5
                difference = (losses[0] - losses[1]) / 2e-5
                assert float(gradient[index]) == pytest.approx(difference, rel=1e-5, abs=1e-7)


def test_loss_by_hand_bias_and_smoothing() -> None:
    # Logits 0 + bias (ln 3, 0): p = (3/4, 1/4). With e = 0.2 the target's share is 0.9, the other's
    # 0.1: loss 0.9 ln(4/3) + 0.1 ln 4; gradient of the bias p - (0.9, 0.1).
    bias = torch.tensor([3.0, 1.0]).log().requires_grad_()
    loss_sum, _ = linear_cross_entropy(
        torch.zeros(1, 1), torch.ones(2, 1), torch.tensor([0]), bias=bias, label_smoothing=0.2
    )
    loss_sum.backward()
    expected = 0.9 * torch.tensor(4 / 3).log() + 0.1 * torch.tensor(4.0).log()
    torch.testing.assert_close(loss_sum.detach(), expected)
    torch.testing.assert_close(bias.grad, torch.tensor([-0.15, 0.15]))


def test_loss_under_autocast_is_near_float32() -> None:
    hidden, weight, bias = inputs = _inputs()
    targets = torch.randint(0, V, (M,))
    with torch.autocast("cpu", torch.bfloat16):
        loss_sum, _ = linear_cross_entropy(
            hidden, weight, targets, bias=bias, label_smoothing=0.1
        )  # fmt: skip
    expected_sum, _ = _oracle(hidden, weight, bias, targets, 0.1, None)
    assert loss_sum.dtype == torch.float32
    assert loss_sum.item() == pytest.approx(expected_sum.item(), rel=5e-3)
    found = torch.autograd.grad(loss_sum, inputs)
    for ours, theirs in zip(found, torch.autograd.grad(expected_sum, inputs), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()


def test_loss_of_a_frozen_layer_gives_the_bias_its_gradient() -> None:
    hidden, weight, bias = _inputs()
    targets = torch.randint(0, V, (M,))
    loss_sum, _ = linear_cross_entropy(hidden.detach(), weight.detach(), targets, bias=bias)
    expected, _ = _oracle(hidden, weight, bias, targets, 0.0, None)
    (found,) = torch.autograd.grad(loss_sum, bias)
    torch.testing.assert_close(found, torch.autograd.grad(expected, bias)[0], rtol=1e-5, atol=1e-4)


class _Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation gives."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_loss_with_bias_and_smoothing_never_holds_all_logits() -> None:
    m = 4 * CHUNK
    hidden, weight, bias = _inputs(m=m)
    targets = torch.randint(0, V, (m,))
    with _Largest() as largest:
        linear_cross_entropy(
            hidden, weight, targets, torch.rand(m), bias=bias, label_smoothing=0.1
        )[0].backward()  # fmt: skip
    assert largest.elements == max(CHUNK * V, m * C)


def _without_bias_and_smoothing(
    hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, ...]:
    """Return sum, losses and both gradients as the loss computed them before it took a bias."""
    losses = torch.empty(len(targets), dtype=torch.float32)
    hidden_grad = torch.empty_like(hidden)
    weight_grad = torch.zeros_like(weight, dtype=torch.float32)
    compute = weight.to(hidden.dtype)
    for start in range(0, len(targets), CHUNK):
        rows = slice(start, start + CHUNK)
        logits = (hidden[rows] @ compute.T).float()
        chosen = targets[rows, None]
        normalizer = logits.logsumexp(1, keepdim=True)
        losses[rows] = (normalizer - logits.gather(1, chosen)).squeeze(1)
        probabilities = logits.sub_(normalizer).exp_()
        probabilities.scatter_add_(1, chosen, -torch.ones_like(normalizer))
        if weights is not None:
            probabilities *= weights[rows, None]
        grad = probabilities.to(hidden.dtype)
        hidden_grad[rows] = grad @ compute
        weight_grad += grad.T @ hidden[rows]
    weighted = losses if weights is None else losses * weights
    loss_sum = weighted.sum(dtype=torch.float64).float()
    return loss_sum, losses, hidden_grad, weight_grad.to(weight.dtype)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("hidden_type", "weight_type"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_loss_without_bias_and_smoothing_is_what_it_was_but_for_rounding(
    hidden_type: torch.dtype, weight_type: torch.dtype, weighted: bool
) -> None:
    hidden = torch.randn(M, C).to(hidden_type).requires_grad_()
    weight = torch.randn(V, C).to(weight_type).requires_grad_()
    targets = torch.randint(0, V, (M,))
    weights = torch.rand(M) if weighted else None
    loss_sum, token_losses = linear_cross_entropy(hidden, weight, targets, weights)
    found = loss_sum, token_losses, *torch.autograd.grad(loss_sum, (hidden, weight))
    with torch.no_grad():
        expected = _without_bias_and_smoothing(hidden, weight, targets, weights)
    for ours, before in zip(found, expected, strict=True):
        assert ours.dtype == before.dtype
        limit = 1e-6 if hidden_type == torch.float32 or ours.ndim < 2 else 2**-8
        assert (ours - before).norm() <= limit * before.norm()
