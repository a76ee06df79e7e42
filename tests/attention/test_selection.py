"""Which backend `auto` takes, by device, type, kind, dropout and machine, and why no other one.

The expected words are written by hand, from what the kernels' own documentation says they can do.
No backend runs here, so no GPU is needed; only their refusals count.
"""

import sys
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nlpkit import attention, registry
from nlpkit.attention.backends import flex
from nlpkit.attention.choice import AttentionChoice, load_kind
from nlpkit.contracts.request import Layout
from nlpkit.errors import Unsupported
from tests._attention import KIND_SETTINGS, attend_of

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
TYPE = "made for float16 and bfloat16, not for float32"
MASK = "a mask that is neither full, causal nor a window"
BIAS = "learned bias"
DROPOUT = "dropout on the probabilities"
ABSENT = "flash-attn is not installed (pip install flash-attn)"
OLD = "needs an Ampere GPU or newer"
WIDTH = "head width 12 is not a multiple of 8 up to 256"
WIDE = "head width 264 is not a multiple of 8 up to 256"
NO_TRITON = "triton is not installed (pip install triton)"
LENGTHS = [3, 1, 6]


class _Machine:
    """Sets what the machine has; asks which backend it takes."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self._patch = patch
        for name in registry.names("attention/kinds"):  # constants need a real device
            patch.setattr(load_kind(name), "buffers", lambda config: {})
        for name in registry.names("attention/backends"):
            module = registry.load("attention/backends", name)
            patch.setattr(module, "prepare", lambda request: lambda q, k, v: q)

    def chosen(
        self,
        kind: str,
        dtype: torch.dtype,
        *,
        device: str = "cuda",
        flash: bool = False,
        triton: bool = True,
        capability: tuple[int, int] = (8, 0),
        cross: bool = False,
        lengths: list[int] = LENGTHS,
        **options: Any,
    ) -> attention.Attend:
        package = SimpleNamespace(__spec__=SimpleNamespace()) if flash else None
        self._patch.setitem(sys.modules, "flash_attn", package)
        self._patch.setattr(flex, "_has_triton", lambda: triton)
        self._patch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        choice = AttentionChoice.of(kind, **KIND_SETTINGS.get(kind, {}))
        options = {"heads": 2, "head_dim": 32, "training": True} | options
        learned = choice.module.tensors(choice.config, options["heads"], options["head_dim"])
        fields = {name: torch.zeros(sum(lengths)) for name in choice.module.FIELDS}
        other = {"keys": Layout(lengths, device), "key_fields": fields} if cross else {}
        return attend_of(
            choice, Layout(lengths, device), dtype=dtype, device=device, fields=fields,
            tensors={name: torch.zeros(about.shape) for name, about in learned.items()},
            **options, **other,
        )  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _Machine:
    return _Machine(monkeypatch)


def _all(flash: str, varlen: str | None = None, flex: str | None = None) -> str:
    """Return the refusals in order; without more, all have the first one's."""
    found = {"flash": flash, "varlen": varlen or flash} | ({"flex": flex} if flex else {})
    return "; ".join(f"{name} refused: {why}" for name, why in found.items())


ON_CUDA = [
    # The kinds of fused kernels, in half precision.
    *(
        (kind, dtype, {"flash": True, "training": training}, "flash")
        for kind in ("causal", "full", "local_window")
        for dtype in (BF16, FP16)
        for training in (True, False)
    ),
    *(
        (kind, dtype, {"training": training}, f"varlen (flash refused: {ABSENT})")
        for kind in ("causal", "full", "local_window")
        for dtype in (BF16, FP16)
        for training in (True, False)
    ),
    # In float32, on an old GPU, with a width that they do not have.
    *(
        (kind, FP32, {"flash": installed, "training": training}, f"flex ({_all(TYPE)})")
        for kind in ("causal", "full", "local_window")
        for installed in (True, False)
        for training in (True, False)
    ),
    ("causal", FP16, {"flash": True, "capability": (7, 5)}, f"flex ({_all(OLD)})"),
    (
        "causal", FP16, {"capability": (6, 1)},
        f"sdpa ({_all(OLD, OLD, 'needs a Volta GPU or newer')})",
    ),
    ("causal", BF16, {"flash": True, "head_dim": 256}, "flash"),
    ("causal", BF16, {"flash": True, "head_dim": 264}, f"flex ({_all(WIDE)})"),
    ("causal", BF16, {"head_dim": 12}, f"sdpa ({_all(WIDTH, WIDTH, 'head width below 16')})"),
    # Dropout: flash-attn and torch's own have it, in training.
    ("causal", BF16, {"flash": True, "dropout": 0.1}, "flash"),
    ("causal", BF16, {"dropout": 0.1}, f"sdpa ({_all(ABSENT, DROPOUT, DROPOUT)})"),
    ("full", FP32, {"dropout": 0.1}, f"sdpa ({_all(TYPE, TYPE, DROPOUT)})"),
    ("cpm_ant", BF16, {"dropout": 0.1}, f"sdpa ({_all(BIAS, BIAS, DROPOUT)})"),
    ("causal", BF16, {"dropout": 0.1, "training": False}, f"varlen (flash refused: {ABSENT})"),
    # A learned bias, with or without gradients, in every type, flash-attn installed or not.
    *(
        (kind, dtype, {"flash": installed, "training": training}, f"flex ({_all(BIAS)})")
        for kind in ("cpm_ant", "relative_bias", "relative_bias_causal")
        for dtype in (BF16, FP16, FP32)
        for installed in (True, False)
        for training in (True, False)
    ),
    ("cpm_ant", BF16, {"triton": False}, f"sdpa ({_all(BIAS, BIAS, NO_TRITON)})"),
    # Other masks.
    *(
        (kind, dtype, {"flash": True, "training": training}, f"flex ({_all(MASK)})")
        for kind in ("strided", "fixed", "block_local", "group", "seen_range")
        for dtype in (BF16, FP32)
        for training in (True, False)
    ),
    # Keys of other sequences: all of them are for fused kernels, part of them are a mask.
    ("full", BF16, {"flash": True, "cross": True}, "flash"),
    ("causal", BF16, {"flash": True, "cross": True}, f"flex ({_all(MASK)})"),
]  # fmt: skip

ELSEWHERE = [
    ("causal", FP32, {"device": "cpu"}, "sdpa"),
    ("full", FP32, {"device": "cpu", "training": False}, "sdpa"),
    ("causal", BF16, {"device": "cpu"}, "cpu_flash"),
    ("cpm_ant", FP32, {"device": "cpu"}, "cpu_flash"),
    ("cpm_ant", BF16, {"device": "cpu", "dropout": 0.1}, "cpu_flash"),
    ("strided", FP32, {"device": "cpu"}, "sparse"),
    ("strided", BF16, {"device": "cpu", "dropout": 0.1}, "sparse"),
    ("causal", FP32, {"device": "mps"}, "sdpa"),
    ("cpm_ant", BF16, {"device": "mps"}, "sdpa"),
]


@pytest.mark.parametrize(("kind", "dtype", "options", "reason"), [*ON_CUDA, *ELSEWHERE])
def test_auto_takes_the_first_that_can_and_says_why(
    machine: _Machine, kind: str, dtype: torch.dtype, options: dict[str, Any], reason: str
) -> None:
    attend = machine.chosen(kind, dtype, **options)
    assert attend.reason == reason
    assert attend.backend == reason.split()[0]


@pytest.mark.parametrize(
    ("dtype", "lengths", "options", "taken"),
    [
        (BF16, [1024, 30], {}, "cpu_flash"),
        (BF16, [1025, 30], {}, "sdpa"),
        (BF16, [1025, 30], {"dropout": 0.1}, "cpu_flash"),
        (FP32, [1024, 30], {}, "sdpa"),
        (FP32, [383, 383], {}, "sdpa"),
        (FP32, [384, 384], {}, "cpu_flash"),
        (FP32, [1024], {}, "cpu_flash"),
        (FP32, [1025, 1025], {}, "sdpa"),
        (FP32, [30, 40], {"dropout": 0.1}, "cpu_flash"),
    ],
)
def test_on_a_cpu_the_lengths_decide(
    machine: _Machine,
    dtype: torch.dtype,
    lengths: list[int],
    options: dict[str, Any],
    taken: str,
) -> None:
    def backend(kind: str) -> str:
        return machine.chosen(kind, dtype, device="cpu", lengths=lengths, **options).backend

    assert backend("causal") == taken
    # Full rows of one length are torch's as well; where there is a mask, its kernel is slow.
    assert backend("full") == ("sdpa" if dtype == FP32 and not options else taken)
    assert backend("local_window") == "cpu_flash"


def test_auto_asks_every_backend_on_some_device_and_the_reference_last() -> None:
    assert {*chain(*attention.AUTO.values())} == {*registry.names("attention/backends")}
    assert {names[-2:] for names in attention.AUTO.values()} == {("sdpa", "reference")}


@pytest.mark.parametrize("kind", ["causal", "full", "local_window", "cpm_ant", "strided"])
@pytest.mark.parametrize("backend", ["flash", "varlen", "flex", "sdpa", "reference"])
def test_backend_asked_for_is_taken_or_refused(machine: _Machine, kind: str, backend: str) -> None:
    options = {"backend": backend, "flash": True}
    fused = {"cpm_ant": BIAS, "strided": MASK}
    if backend in ("flash", "varlen") and kind in fused:
        with pytest.raises(Unsupported) as error:
            machine.chosen(kind, BF16, **options)
        why = f"attention backend {backend} cannot do kind {kind}: {fused[kind]}"
        assert str(error.value) == why
        return
    attend = machine.chosen(kind, BF16, **options)
    assert (attend.backend, attend.reason) == (backend, f"{backend} (asked for)")


@pytest.mark.parametrize(
    ("backend", "dtype", "options", "why"),
    [
        ("flash", BF16, {}, ABSENT),
        ("flash", FP32, {"flash": True}, TYPE),
        ("flash", BF16, {"flash": True, "capability": (7, 5)}, OLD),
        ("flash", BF16, {"flash": True, "head_dim": 12}, WIDTH),
        ("flash", BF16, {"flash": True, "device": "cpu"}, "made for CUDA, not for cpu"),
        ("varlen", BF16, {"dropout": 0.1}, DROPOUT),
        ("varlen", BF16, {"device": "mps"}, "made for CUDA, not for mps"),
        ("flex", BF16, {"dropout": 0.1}, DROPOUT),
        ("flex", BF16, {"triton": False}, NO_TRITON),
        ("flex", BF16, {"device": "mps"}, "made for CUDA, not for mps"),
        ("flex", BF16, {"device": "cpu"}, "no backward pass on CPU"),
        ("cpu_flash", BF16, {}, "made for CPUs"),
        ("sparse", BF16, {}, "its mask is not made of ranges"),
    ],
)
def test_backend_asked_for_that_cannot_is_refused_with_the_reason(
    machine: _Machine, backend: str, dtype: torch.dtype, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unsupported) as error:
        machine.chosen("causal", dtype, backend=backend, **options)
    assert str(error.value) == f"attention backend {backend} cannot do kind causal: {why}"
