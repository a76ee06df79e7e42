"""Dropout on CPUs: its definition, and torch's own where the definition is the same."""

import math

import pytest
import torch
from torch.nn import functional as F

from nlpkit.models.layers.packs import dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_output_and_gradient_are_those_of_the_drawn_mask(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(999, 33, dtype=dtype).requires_grad_()  # no multiple of 4 elements
    out = dropout(x, p, True)
    kept = out != 0
    # The definition in torch.nn.Dropout: kept elements are scaled by 1 / (1 - p).
    expected = torch.where(kept, x / (1 - p), 0)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-4  # p is a multiple of 1 / 65,536
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=0)
    grad = torch.randn_like(x)
    (found,) = torch.autograd.grad(out, x, grad)
    torch.testing.assert_close(found, kept * grad / (1 - p), rtol=tolerance, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_elements_are_dropped_independently_with_probability_p(p: float) -> None:
    torch.manual_seed(0)
    count = 1 << 18
    dropped = (dropout(torch.ones(count), p, True) == 0).double()
    # Five standard deviations of a binomial distribution.
    assert abs(dropped.mean() - p) < 5 * math.sqrt(p * (1 - p) / count)
    # Elements from one random number, and from different ones: no correlation.
    for lag in (1, 2, 3, 4, 32, 256):
        both = dropped[lag:] * dropped[:-lag]
        assert abs(both.mean() - p**2) < 5 * math.sqrt(p**2 * (1 - p**2) / count)


def test_the_seed_decides_the_mask() -> None:
    x = torch.ones(64, 64)

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return dropout(x, 0.5, True)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_views_and_empty_tensors() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 10).T
    out = dropout(x, 0.5, True)
    torch.testing.assert_close(out, torch.where(out != 0, 2 * x, 0))
    assert dropout(torch.empty(0, 4), 0.5, True).shape == (0, 4)


def test_without_training_or_probability_it_is_the_identity_as_in_torch() -> None:
    x = torch.randn(4, 4)
    assert torch.equal(dropout(x, 0.5, False), F.dropout(x, 0.5, False))
    assert dropout(x, 0.0, True) is x
