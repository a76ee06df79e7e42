"""RMS norms on CPUs: torch's own in value and gradients."""

import pytest
import torch
from torch import nn

from nlpkit.models.layers.packs import RMSNorm


def _both(width: int) -> tuple[RMSNorm, nn.RMSNorm]:
    ours, theirs = RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs.double()


@pytest.mark.parametrize("rows", [0, 1, 513])
@pytest.mark.parametrize("width", [1, 33, 256])
def test_norm_and_gradients_are_torchs_in_float64(rows: int, width: int) -> None:
    torch.manual_seed(0)
    ours, theirs = _both(width)
    # Rows of many sizes, such as embeddings and the last layer have, and one of zeros.
    x = (torch.randn(rows, width) * torch.logspace(-3, 3, rows)[:, None]).requires_grad_()
    if rows:
        x.data[0] = 0
    grad = torch.randn_like(x)
    out = ours(x)
    exact = x.detach().double().requires_grad_()
    wanted = theirs(exact)
    torch.testing.assert_close(out, wanted.float(), rtol=1e-5, atol=1e-6)
    found = torch.autograd.grad(out, (x, ours.weight), grad)
    for each, right in zip(
        found, torch.autograd.grad(wanted, (exact, theirs.weight), grad.double()), strict=True
    ):
        close = 1e-5 * float(right.abs().amax(-1).max()) if right.numel() else 0.0
        torch.testing.assert_close(each, right.float(), rtol=1e-4, atol=close)


def test_norm_has_fewer_passes_than_torchs() -> None:
    norm, x = RMSNorm(8, 1e-6), torch.randn(3, 8)
    assert type(norm(x).grad_fn).__name__ == "_RMSNormBackward"


def test_frozen_weight_gets_no_gradient() -> None:
    ours, theirs = _both(16)
    ours.weight.requires_grad_(False)
    x = torch.randn(5, 16, requires_grad=True)
    (found,) = torch.autograd.grad(ours(x).square().sum(), x)
    exact = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(theirs(exact).square().sum(), exact)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(dtype: torch.dtype) -> None:
    ours, theirs = _both(16)
    x = torch.randn(5, 16, dtype=dtype)
    torch.testing.assert_close(ours.to(dtype)(x), theirs.to(dtype)(x))


def test_autocast_keeps_the_states_in_float32() -> None:
    ours, _ = _both(16)
    x = torch.randn(5, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = ours(x)
        (inside,) = torch.autograd.grad(out.sum(), x)
    (wanted,) = torch.autograd.grad(ours(x).sum(), x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(inside, wanted)
