"""Backends for a GPU, as far as a machine without one can show them.

Fake tensors say they are on `cuda` and have shapes and types, but no values; a torch without CUDA
can neither index them nor take their gradients, so these calls are the ones of fused kernels
(flex: `test_fake_gpu.py`, in a process with a device that computes nothing).
FlexAttention is compiled here for the CPU, where torch compiles its forward pass.
"""

import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention
from torch._subclasses.fake_tensor import FakeTensorMode

from nlpkit import attention
from nlpkit.attention.backends import flex
from nlpkit.attention.choice import AttentionChoice
from tests._attention import KINDS, PACKS, attend_of, fields_of, inputs, prepare

LENGTHS, HEADS, WIDTH = [5, 1, 17, 2, 33, 9], 4, 16
FUSED = {"causal": {}, "full": {}, "local_window": {"window": 5}}  # kinds without an explicit mask


def _attend(kind: str, backend: str, dtype: torch.dtype = torch.bfloat16) -> attention.Attend:
    return attend_of(
        AttentionChoice.of(kind, **FUSED[kind]), attention.layout_of(LENGTHS, "cuda"), heads=HEADS,
        head_dim=WIDTH, dtype=dtype, device="cuda", training=True, backend=backend,
        fields={"position": torch.empty(sum(LENGTHS), dtype=torch.int64, device="cuda")},
    )  # fmt: skip


def _called(kind: str, backend: str, dtype: torch.dtype = torch.bfloat16) -> str:
    """Call the backend on fake tensors; check what it gives, and return which one it was."""
    with torch.no_grad(), FakeTensorMode():
        attend = _attend(kind, backend, dtype)
        q, k, v = (
            torch.empty(sum(LENGTHS), HEADS, WIDTH, dtype=dtype, device="cuda") for _ in "qkv"
        )
        out = attend(q, k, v)
        assert (out.shape, out.dtype, out.device.type) == (q.shape, dtype, "cuda")
    return attend.backend


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # not installed


@pytest.mark.parametrize("kind", FUSED)
def test_torchs_kernel_takes_the_pack_as_it_is(ampere, kind: str) -> None:
    assert _called(kind, "varlen") == "varlen"


@pytest.mark.parametrize("kind", FUSED)
def test_flash_attn_takes_the_pack_as_it_is(ampere, monkeypatch, kind: str) -> None:
    def kernel(q, k, v, cu_q, cu_k, max_q, max_k, **options):
        # As flash-attn 2 documents: (total, heads, width), cumulative lengths int32 on the device.
        assert q.shape == k.shape == v.shape == (sum(LENGTHS), HEADS, WIDTH)
        assert cu_q.shape == cu_k.shape == (len(LENGTHS) + 1,)
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert cu_q.device.type == "cuda"
        assert max_q == max_k == max(LENGTHS)
        return torch.empty_like(q)

    package = SimpleNamespace(flash_attn_varlen_func=kernel, __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    assert _called(kind, "auto") == "flash"


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_to_torchs_kernel(ampere, kind: str, dtype: torch.dtype) -> None:
    assert _called(kind, "auto", dtype) == "varlen"


@pytest.mark.parametrize("kind", ["causal", "full"])
def test_sdpa_takes_float32(ampere, kind: str) -> None:
    assert _called(kind, "sdpa", torch.float32) == "sdpa"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_flex_on_cpu_equals_reference(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Shapes are static: torch 2.13 does not compile FlexAttention with dynamic ones for a CPU.
    torch._dynamo.reset()
    for name in ("flex_attention", "create_block_mask"):
        function = getattr(flex_attention, name)
        monkeypatch.setattr(flex, name, torch.compile(function, dynamic=False, fullgraph=False))
    lengths = PACKS["long"]
    qkv, table, _ = inputs(sum(lengths))
    qkv, fields = [x.detach() for x in qkv], fields_of(lengths)
    with torch.no_grad():
        expected, found = (
            prepare(kind, name, lengths, fields, table, torch.float32, training=False)(*qkv)
            for name in ("reference", "flex")
        )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
