"""FlexAttention for a GPU, on fake tensors on `cuda`: forward, backward, number of graphs."""

from typing import Any

import pytest

from tests import _fake_cuda
from tests._attention import KINDS
from tests._flex_on_fake_cuda import BIASED, HEADS, LENGTHS, WIDTH

_OWN = ("causal", "full", "local_window")  # of which fused kernels need no mask
_EXPLICIT = "a mask that is neither full, causal nor a window"


@pytest.fixture(scope="module")
def calls() -> dict[str, Any]:
    return _fake_cuda.run("tests._flex_on_fake_cuda", "calls")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, "float32") for kind in KINDS), *((kind, "bfloat16") for kind in BIASED)],
)
def test_flex_takes_the_pack_and_gives_its_gradients(
    calls: dict[str, Any], kind: str, dtype: str
) -> None:
    found = calls[f"{kind} {dtype}"]
    assert found["backend"] == "flex"
    packed = [[sum(LENGTHS), HEADS, WIDTH], dtype, "cuda"]
    assert found["out"] == packed
    # Of q, k and v in their own type; of a learned bias in float32, whatever theirs is.
    learned = [[shape, "float32", "cuda"] for shape in found["tensors"]]
    assert len(learned) == (kind in BIASED)
    assert found["gradients"] == [packed] * 3 + learned


@pytest.mark.parametrize("kind", KINDS)
def test_reason_says_why_no_fused_kernel_takes_the_kind(calls: dict[str, Any], kind: str) -> None:
    why = "learned bias" if kind in BIASED else _EXPLICIT
    if kind in _OWN:
        why = "made for float16 and bfloat16, not for float32"
    reason = calls[f"{kind} float32"]["reason"]
    assert reason == f"flex (flash refused: {why}; varlen refused: {why})"


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_that_is_not_deterministic_is_said(calls: dict[str, Any], kind: str) -> None:
    # The process has deterministic algorithms on, as a run has by default.
    assert calls[f"{kind} float32"]["warned"] == (kind in BIASED)


@pytest.mark.slow
def test_flex_is_compiled_whole_and_no_longer_after_some_packs() -> None:
    # In the process, a second graph for one call is an error, and so is one more than torch allows
    # (from there on it would compute all pairs). Ten packs are trained on, ten are evaluated.
    graphs = _fake_cuda.run("tests._flex_on_fake_cuda", "graphs")["graphs"]
    assert graphs[0] >= 8  # two kinds, trained and evaluated, mask and attention
    assert graphs[6:] == [graphs[6]] * 4
