"""The readable FlashAttention: its page, its memory, and an example that is computed by hand."""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nlpkit import attention
from nlpkit.attention.choice import AttentionChoice
from tests._attention import TILED, attend_of
from tests.parts import tiled

PAGE = (Path(__file__).parents[2] / "docs" / "flash_attention.md").read_text(encoding="utf-8")
HEADS, WIDTH = 2, 4


class _Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation gives."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def _attend(kind: str, lengths: list[int], backend: str, **sizes: int) -> attention.Attend:
    return attend_of(
        AttentionChoice.of(kind), attention.layout_of(lengths, "cpu"), dtype=torch.float32,
        device="cpu", training=True, backend=backend, **sizes,
    )  # fmt: skip


def _largest(backend: str, total: int) -> int:
    """Return the elements of the largest tensor of a forward and a backward pass."""
    qkv = [torch.randn(total, HEADS, WIDTH, requires_grad=True) for _ in range(3)]
    with _Largest() as largest:
        attend = _attend("causal", [total], backend, heads=HEADS, head_dim=WIDTH)
        attend(*qkv).sum().backward()
    return largest.elements


@pytest.mark.slow
def test_memory_is_that_of_the_page() -> None:
    table = re.findall(r"^\| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    assert len(table) == 4
    for total, *expected in table:
        found = [f"{_largest(backend, int(total)):,}" for backend in (TILED, "reference")]
        assert found == expected, total


def test_code_of_the_page_is_that_of_the_listing() -> None:
    source = [line.split("  #")[0].strip() for line in inspect.getsource(tiled).splitlines()]
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        lines = [line.strip() for line in block.splitlines()]
        assert any(source[at : at + len(lines)] == lines for at in range(len(source))), block


def test_example_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    # (2 * 1 + 1 * 4 + 8 * 10 + 4 * 7) / 15 = 7.6, in two tiles of two keys.
    monkeypatch.setattr(tiled, "_TILE", 2)
    scores = torch.tensor([math.log(2), 0.0, math.log(8), math.log(4)])
    attend = _attend("full", [4], TILED, heads=1, head_dim=1)
    values = torch.tensor([1.0, 4.0, 10.0, 7.0])
    out = attend(torch.ones(4, 1, 1), scores.view(4, 1, 1), values.view(4, 1, 1))
    torch.testing.assert_close(out.flatten(), torch.full((4,), 7.6))
