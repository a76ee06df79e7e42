"""The chunked projection with cross entropy, against `torch.nn.functional.cross_entropy`.

Tolerances: softmax and sums are at least float32, so that a loss or gradient is good to some units
of 1.2e-7 (float32's epsilon); 1e-5 covers sums over a thousand terms. bfloat16 keeps 8 bits: its
logits, probabilities and gradients are off by 2**-9 each, relative; 2 % of the largest covers the
sums.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nlpkit.models.layers import vocabulary_head
from nlpkit.models.layers.vocabulary_head import CHUNK, CHUNK_OF_LARGE_HALF, linear_cross_entropy

C, V = 24, 97


def _inputs(m: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.randn(m, C).to(dtype).requires_grad_()
    weight = torch.randn(V, C).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, V, (m,))


def _plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden, weight)
    each = F.cross_entropy(logits, targets, reduction="none")
    return each.sum(), each.detach()


@pytest.mark.parametrize("m", [1, 7, CHUNK, CHUNK + 1, 3 * CHUNK - 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradients_equal_cross_entropy(m: int, dtype: torch.dtype) -> None:
    hidden, weight, targets = _inputs(m, dtype)
    total, each = linear_cross_entropy(hidden, weight, targets)
    found = torch.autograd.grad(total / m, (hidden, weight))
    expected_total, expected_each = _plain(hidden, weight, targets)
    expected = torch.autograd.grad(expected_total / m, (hidden, weight))
    assert total.dtype == each.dtype == dtype
    torch.testing.assert_close(total.to(dtype), expected_total, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(each.to(dtype), expected_each, rtol=1e-6, atol=1e-5)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 / m)


def test_loss_of_equal_logits_is_log_of_vocabulary() -> None:
    total, each = linear_cross_entropy(torch.zeros(5, C), torch.randn(V, C), torch.arange(5))
    assert float(total) == pytest.approx(5 * math.log(V), rel=1e-6)
    torch.testing.assert_close(each, torch.full((5,), math.log(V)))


def test_loss_by_hand_two_words() -> None:
    # logits (ln 3, 0): the first word has 3/4, so the losses are ln(4/3) and ln 4; the gradient of
    # the first target is (3/4 - 1) * row 0 + 1/4 * row 1, of the second 3/4 and 1/4 - 1.
    hidden = torch.ones(2, 1, requires_grad=True)
    weight = torch.tensor([[math.log(3)], [0.0]], requires_grad=True)
    total, each = linear_cross_entropy(hidden, weight, torch.tensor([0, 1]))
    total.backward()
    assert each.tolist() == pytest.approx([math.log(4 / 3), math.log(4)])
    assert hidden.grad.flatten().tolist() == pytest.approx([-math.log(3) / 4, 3 * math.log(3) / 4])
    assert weight.grad.flatten().tolist() == pytest.approx([0.5, -0.5])


def test_loss_of_huge_logits_is_finite() -> None:
    hidden = torch.tensor([[1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]])
    total, _ = linear_cross_entropy(hidden, weight, torch.tensor([1]))
    total.backward()
    assert float(total.detach()) == 2e4
    assert float(hidden.grad) == 2.0


def test_loss_without_targets_is_zero_with_zero_gradients() -> None:
    hidden, weight, targets = _inputs(0)
    total, each = linear_cross_entropy(hidden, weight, targets)
    total.backward()
    assert float(total.detach()) == 0
    assert each.shape == (0,)
    assert hidden.grad.shape == (0, C)
    assert not weight.grad.any()


@pytest.mark.parametrize("m", [40, 2 * CHUNK + 3])
def test_loss_in_bfloat16_is_near_float32(m: int) -> None:
    hidden, weight, targets = _inputs(m, torch.bfloat16)
    total, _ = linear_cross_entropy(hidden, weight, targets)
    total.backward()
    exact = [x.detach().float().requires_grad_() for x in (hidden, weight)]
    expected, _ = _plain(*exact, targets)
    expected.backward()
    assert total.item() == pytest.approx(expected.item(), rel=5e-3)
    for ours, theirs in zip((hidden, weight), exact, strict=True):
        assert ours.grad.dtype == torch.bfloat16
        assert (ours.grad.float() - theirs.grad).abs().max() < 0.02 * theirs.grad.abs().max()


def test_loss_with_float32_weights_and_bfloat16_hidden_keeps_each_type() -> None:
    hidden, weight, targets = _inputs(30)
    half = hidden.detach().bfloat16().requires_grad_()
    linear_cross_entropy(half, weight, targets)[0].backward()
    assert half.grad.dtype == torch.bfloat16
    assert weight.grad.dtype == torch.float32


@pytest.mark.parametrize("m", [90, CHUNK_OF_LARGE_HALF, 2 * CHUNK_OF_LARGE_HALF + 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_of_a_large_vocabulary_is_that_of_small_chunks(
    m: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, targets = _inputs(m, dtype)
    table = weight.detach().float().requires_grad_()  # sums in float32
    inputs, weights = (hidden, table), torch.rand(m)
    found = []
    for large in (vocabulary_head.LARGE, V - 1):
        monkeypatch.setattr(vocabulary_head, "LARGE", large)
        total, each = linear_cross_entropy(hidden, table, targets, weights)
        found.append((total.detach(), each, *torch.autograd.grad(total, inputs)))
    assert vocabulary_head.chunk_size(V, dtype) == (
        256 if dtype == torch.float32 else CHUNK_OF_LARGE_HALF
    )
    small, large = found
    torch.testing.assert_close(large[:2], small[:2], rtol=1e-6, atol=1e-6)
    # A product is rounded to the compute type: 2**-9 in bfloat16, of each summand.
    eps = 1e-6 if dtype == torch.float32 else 2**-8
    for ours, theirs in zip(large[2:], small[2:], strict=True):
        assert (ours - theirs).abs().max() <= eps * theirs.abs().max()


def test_loss_under_autocast_is_that_of_its_type_with_wide_gradients() -> None:
    hidden, weight, targets = _inputs(2 * CHUNK + 3)
    half = hidden.detach().bfloat16().requires_grad_()
    expected, expected_each = linear_cross_entropy(half, weight, targets)
    wanted = torch.autograd.grad(expected, (half, weight))
    with torch.autocast("cpu", torch.bfloat16):
        total, each = linear_cross_entropy(hidden, weight, targets)
        found = torch.autograd.grad(total, (hidden, weight))
    assert torch.equal(total, expected)
    assert torch.equal(each, expected_each)
    assert found[0].dtype == torch.float32
    assert torch.equal(found[0].bfloat16(), wanted[0])
    assert torch.equal(found[1], wanted[1])


def test_loss_under_autocast_converts_the_table_once() -> None:
    hidden, weight, targets = _inputs(4 * CHUNK)
    with torch.autocast("cpu", torch.bfloat16), _Converted(weight.shape) as converted:
        linear_cross_entropy(hidden, weight, targets)
    assert converted.times == 1


def test_loss_scale_is_exact_in_bfloat16() -> None:
    # 1/300 is 0.2 % off in bfloat16; a hidden gradient scaled by that would be off as a whole.
    hidden, weight, targets = _inputs(200, torch.bfloat16)
    total, _ = linear_cross_entropy(hidden, weight, targets)
    (whole,) = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets)[0], hidden)
    (scaled,) = torch.autograd.grad(total / 300, hidden)
    ratio = float(scaled.float().abs().sum() / whole.float().abs().sum())
    assert abs(float(torch.tensor(1 / 300).bfloat16()) * 300 - 1) > 1e-3
    assert ratio * 300 == pytest.approx(1, abs=2e-4)


def test_loss_upstream_gradient_scales_both_gradients() -> None:
    hidden, weight, targets = _inputs(CHUNK + 9)
    total, _ = linear_cross_entropy(hidden, weight, targets)
    plain = torch.autograd.grad(total, (hidden, weight))
    total, _ = linear_cross_entropy(hidden, weight, targets)
    scaled = torch.autograd.grad(-3.5 * total, (hidden, weight))
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, -3.5 * one)


def test_loss_second_backward_of_one_graph_is_refused() -> None:
    hidden, weight, targets = _inputs(CHUNK + 9)
    total, _ = linear_cross_entropy(hidden, weight, targets)
    torch.autograd.grad(total / 7, (hidden, weight), retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(total / 7, (hidden, weight))


def test_loss_gradient_of_the_gradient_is_refused() -> None:
    hidden, weight, targets = _inputs(4)
    total, _ = linear_cross_entropy(hidden, weight, targets)
    (grad,) = torch.autograd.grad(total**2, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_loss_of_each_target_carries_no_gradient() -> None:
    hidden, weight, targets = _inputs(4)
    total, each = linear_cross_entropy(hidden, weight, targets)
    assert total.requires_grad
    assert not each.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_leaves_its_inputs_alone(dtype: torch.dtype) -> None:
    inputs = _inputs(CHUNK + 9, dtype)
    copies = [x.detach().clone() for x in inputs]
    linear_cross_entropy(*inputs)[0].backward()
    for now, before in zip(inputs, copies, strict=True):
        assert torch.equal(now.detach(), before)


def _products(hidden: Tensor, weight: Tensor, targets: Tensor) -> int:
    """Return how many matrix products a call makes."""
    with torch.profiler.profile() as profile:
        linear_cross_entropy(hidden, weight, targets)
    return sum(event.count for event in profile.key_averages() if event.key == "aten::mm")


def test_loss_makes_only_the_gradients_that_are_wanted() -> None:
    hidden, weight, targets = _inputs(20)
    assert _products(hidden, weight, targets) == 3
    assert _products(hidden, weight.detach(), targets) == 2
    assert _products(hidden.detach(), weight, targets) == 2
    with torch.no_grad():
        assert _products(hidden, weight, targets) == 1


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_loss_with_one_input_frozen_gives_the_same_other_gradient(frozen: str) -> None:
    hidden, weight, targets = _inputs(33)
    both = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets)[0], (hidden, weight))
    if frozen == "hidden":
        total, other, expected = (
            linear_cross_entropy(hidden.detach(), weight, targets)[0], weight, both[1],
        )  # fmt: skip
    else:
        total, other, expected = (
            linear_cross_entropy(hidden, weight.detach(), targets)[0], hidden, both[0],
        )  # fmt: skip
    assert torch.equal(torch.autograd.grad(total, other)[0], expected)


def test_loss_without_grad_is_the_same_value() -> None:
    hidden, weight, targets = _inputs(CHUNK + 9)
    total, each = linear_cross_entropy(hidden, weight, targets)
    with torch.no_grad():
        alone, each_alone = linear_cross_entropy(hidden, weight, targets)
    assert torch.equal(total, alone)
    assert torch.equal(each, each_alone)
    assert not alone.requires_grad


def _largest_saved(function, m: int) -> int:
    """Return the elements of the largest tensor that is kept for the backward pass."""
    saved = [0]
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (saved.append(tensor.numel()), tensor)[1], lambda tensor: tensor
    )
    with hooks:
        function(*_inputs(m))
    return max(saved)


def test_loss_keeps_no_logits_for_backward() -> None:
    m = 4 * CHUNK
    assert _largest_saved(_plain, m) >= m * V  # the measure sees what it should
    assert _largest_saved(linear_cross_entropy, m) == max(m * C, V * C)


def test_loss_scales_the_gradient_of_the_table_in_place() -> None:
    hidden, weight, targets = _inputs(9)
    total, _ = linear_cross_entropy(hidden, weight, targets)
    with _Scaled(weight.shape) as scaled:
        torch.autograd.grad(total, weight)
    assert not scaled.copies


class _Scaled(TorchDispatchMode):
    """Counts the products with a number that give a new tensor of this shape."""

    def __init__(self, shape: torch.Size):
        super().__init__()
        self.shape, self.copies = shape, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.copies += function is torch.ops.aten.mul.Tensor and result.shape == self.shape
        return result


class _Converted(TorchDispatchMode):
    """Counts how often a tensor of this shape, or its transpose, is converted to bfloat16."""

    def __init__(self, shape: torch.Size):
        super().__init__()
        self.shapes, self.times = (shape, shape[::-1]), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and result.shape in self.shapes:
            self.times += result.dtype == torch.bfloat16
        return result


class _Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation gives."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_loss_never_holds_all_logits() -> None:
    m = 4 * CHUNK
    found = []
    for function in (linear_cross_entropy, _plain):
        inputs = _inputs(m)
        with _Largest() as largest:
            function(*inputs)[0].backward()
        found.append(largest.elements)
    assert found == [max(CHUNK * V, m * C), m * V]
