"""FlexAttention and training steps for a GPU, on fake tensors: backends, gradients, graphs.

All tensors are on a `cuda` that computes nothing, in a process of its own.
"""

import functools
from typing import Any

import pytest

from tests import _fake_cuda
from tests._attention import KINDS
from tests._flex_on_fake_cuda import BIASED, HEADS, LENGTHS, WIDTH
from tests._steps_on_fake_cuda import INPUTS, SIZES, TOTAL

_OWN = ("causal", "full", "hybrid", "local_window")  # of which fused kernels need no mask
_EXPLICIT = "a mask that is neither full, causal nor a window"
_NO_FLASH = "flash refused: flash-attn is not installed (pip install flash-attn)"
_FLOAT32 = "made for float16 and bfloat16, not for float32"


pytestmark = pytest.mark.slow  # torch with its compiler, in a process of its own


@functools.cache
def _uncompiled() -> dict[str, dict[str, Any]]:
    chosen = (",".join(names) for names in (INPUTS, KINDS))
    return _fake_cuda.run("tests._flex_on_fake_cuda", "uncompiled", *chosen)


def _call(kind: str, dtype: str = "float32") -> dict[str, Any]:
    return _uncompiled()["calls"][f"{kind} {dtype}"]


def _step(family: str, precision: str) -> dict[str, Any]:
    return _uncompiled()["steps"][f"{family} {precision}"]


@pytest.mark.parametrize("kind", KINDS)
def test_flex_takes_the_pack_and_gives_its_gradients(kind: str) -> None:
    _check_call(kind, "float32")


@pytest.mark.parametrize("kind", BIASED)
def test_flex_takes_a_pack_in_half_precision_and_its_bias_in_float32(kind: str) -> None:
    _check_call(kind, "bfloat16")


def _check_call(kind: str, dtype: str) -> None:
    found = _call(kind, dtype)
    assert found["backend"] == "flex"
    packed = [[sum(LENGTHS), HEADS, WIDTH], dtype, "cuda"]
    assert found["out"] == packed
    # Of q, k and v in their own type; of a learned bias in float32, whatever theirs is.
    learned = [[shape, "float32", "cuda"] for shape in found["tensors"]]
    assert len(learned) == (kind in BIASED)
    assert found["gradients"] == [packed] * 3 + learned


@pytest.mark.parametrize("kind", KINDS)
def test_reason_says_why_no_fused_kernel_takes_the_kind(kind: str) -> None:
    why = "learned bias" if kind in BIASED else _EXPLICIT
    if kind in _OWN:
        why = _FLOAT32
    reason = _call(kind)["reason"]
    assert reason == f"flex (flash refused: {why}; varlen refused: {why})"


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_that_is_not_deterministic_is_said(kind: str) -> None:
    # The process has deterministic algorithms on, as a run has by default.
    assert _call(kind)["warned"] == (kind in BIASED)


def test_flex_is_compiled_whole_and_no_longer_after_some_packs() -> None:
    # In the process, a second graph for one call is an error, and so is one more than torch allows
    # (from there on it would compute all pairs). Ten packs are trained on, ten are evaluated.
    graphs = _fake_cuda.run("tests._flex_on_fake_cuda", "graphs")["graphs"]
    assert graphs[0] >= 8  # two kinds, trained and evaluated, mask and attention
    assert graphs[6:] == [graphs[6]] * 4


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", INPUTS)
def test_forward_and_backward_stay_on_the_gpu(family: str, precision: str) -> None:
    # A tensor made on the CPU would have been an error in the process, as it is on a GPU.
    step = _step(family, precision)
    assert step["hidden"] == [[TOTAL, SIZES["hidden_size"]], "cuda"]
    assert step["gradients"] == ["torch.float32 cuda"]
    # BERT's pooler and next-sentence layer take no part in this loss.
    assert step["without"] == (4 if family == "bert" else 0)


@pytest.mark.parametrize("family", INPUTS)
def test_backend_is_chosen_by_the_type_of_autocast(family: str) -> None:
    if family == "cpm_ant":
        why = "flex (flash refused: learned bias; varlen refused: learned bias)"
        expected = {"fp32": why, "bf16": why}
    else:
        expected = {
            "fp32": f"flex (flash refused: {_FLOAT32}; varlen refused: {_FLOAT32})",
            "bf16": f"varlen ({_NO_FLASH})",
        }
    found = {name: _step(family, name)["reason"] for name in expected}
    assert found == expected
