"""A training step for a GPU on fake tensors: which backend, and that all tensors are on `cuda`."""

from typing import Any

import pytest

from tests import _fake_cuda
from tests._steps_on_fake_cuda import INPUTS, SIZES, TOTAL

_NO_FLASH = "flash refused: flash-attn is not installed (pip install nlpkit[flash])"
_FLOAT32 = "made for float16 and bfloat16, not for float32"


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    return _fake_cuda.run("tests._steps_on_fake_cuda")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", INPUTS)
def test_forward_and_backward_stay_on_the_gpu(
    steps: dict[str, Any], family: str, precision: str
) -> None:
    # A tensor made on the CPU would have been an error in the process, as it is on a GPU.
    step = steps[f"{family} {precision}"]
    assert step["hidden"] == [[TOTAL, SIZES["hidden_size"]], "cuda"]
    assert step["gradients"] == ["torch.float32 cuda"]
    # BERT's pooler and next-sentence layer take no part in this loss.
    assert step["without"] == (4 if family == "bert" else 0)


@pytest.mark.parametrize("family", INPUTS)
def test_backend_is_chosen_by_the_type_of_autocast(steps: dict[str, Any], family: str) -> None:
    if family == "cpm_ant":
        why = "flex (flash refused: learned bias; varlen refused: learned bias)"
        expected = {"fp32": why, "bf16": why}
    else:
        expected = {
            "fp32": f"flex (flash refused: {_FLOAT32}; varlen refused: {_FLOAT32})",
            "bf16": f"varlen ({_NO_FLASH})",
        }
    found = {name: steps[f"{family} {name}"]["reason"] for name in expected}
    assert found == expected
