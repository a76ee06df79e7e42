"""Every kind on every backend against the formula: outputs, gradients, who influences whom."""

import math
from functools import cache

import pytest
import torch

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.kinds import full
from nlpkit.contracts.kind import MaskKind
from nlpkit.contracts.request import Layout
from tests._attention import (
    HEADS,
    KINDS,
    ON_CPU,
    PACKS,
    TILED,
    TOLERANCE,
    WIDTH,
    attend_of,
    fields_of,
    inputs,
    prepare,
    rows_of,
)


def _results(kind, backend, lengths, dtype=torch.float32, contexts="mixed", device="cpu", **more):
    """Return out and the gradients of q, k, v (and the table) after two layers."""
    fields = fields_of(lengths, contexts) | more
    qkv, table, grad = inputs(sum(lengths), dtype, device)
    attend = prepare(kind, backend, lengths, fields, table, dtype, device)
    first = attend(*qkv)
    second = attend(first, qkv[1], qkv[2])
    wanted = [*qkv, table] if rows_of(kind) else qkv
    return [first.detach(), second.detach(), *torch.autograd.grad(second, wanted, grad)]


@cache
def _expected(kind, pack, dtype):
    """Return the results of the reference, which all backends are compared with."""
    return _results(kind, "reference", PACKS[pack], dtype)


def _assert_near(got, expected, tolerance):
    for a, b in zip(got, expected, strict=True):
        largest = b.abs().max().clamp(min=1).item()
        torch.testing.assert_close(a, b, atol=tolerance * largest, rtol=0)


# --- every kind on every backend -------------------------------------------------------------

# Packs that are like others, or parts of them.
COVERED = ("one document", "equal", "many")


@pytest.mark.fast_cases(40)
@pytest.mark.parametrize(
    ("pack", "dtype"),
    [
        *(
            pytest.param(pack, torch.float32, marks=[pytest.mark.slow] * (pack in COVERED))
            for pack in PACKS
        ),
        ("ragged", torch.bfloat16),
        *(
            pytest.param(pack, torch.bfloat16, marks=pytest.mark.slow)
            for pack in PACKS
            if pack != "ragged"
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_random_pack_equals_reference(kind, backend, pack, dtype):
    if backend == TILED and pack == "long":
        pytest.skip("the readable form is slow; the other packs cover it")
    got = _results(kind, backend, PACKS[pack], dtype)
    _assert_near(got, _expected(kind, pack, dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("size", [-10.0, 10.0])
@pytest.mark.parametrize(
    ("backend", "kind"), [*((each, "causal") for each in ON_CPU), ("sparse", "strided")]
)
def test_attention_scores_far_from_zero_are_exact(backend, kind, size):
    # About -140 and 140: exp of them is 0 and infinite in float32.
    (q, k, v), table, _ = inputs(40)
    q, k = (0.1 * q.detach() + size, 0.1 * k.detach() + 5.0)
    found, expected = (
        prepare(kind, name, [37, 3], fields_of([37, 3]), table, torch.float32)(q, k, v)
        for name in (backend, "reference")
    )
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("contexts", ["all", "none", "tail"])
@pytest.mark.parametrize("backend", ON_CPU)
def test_attention_cpm_ant_extreme_contexts_equal_reference(backend, contexts):
    expected = _results("cpm_ant", "reference", PACKS["ragged"], contexts=contexts)
    got = _results("cpm_ant", backend, PACKS["ragged"], contexts=contexts)
    _assert_near(got, expected, 1e-5)


@pytest.mark.parametrize("backend", ["reference", *ON_CPU])
def test_attention_cpm_ant_spans_equal_separate_documents(backend):
    # Hand argument: two spans in one sequence, each with positions from 0, are two documents.
    lengths = [9, 14]
    joined = fields_of(lengths)
    span = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    qkv, table, _ = inputs(23)
    apart = prepare("cpm_ant", backend, lengths, joined, table, torch.float32)(*qkv)
    fields = joined | {"span": span}
    together = prepare("cpm_ant", backend, [23], fields, table, torch.float32)(*qkv)
    torch.testing.assert_close(together, apart, atol=1e-6, rtol=0)


# To flex they are a mask or a bias like the others'.
ALIKE = ("block_local", "causal", "fixed", "full", "group", "local_window", "relative_bias",
         "relative_bias_causal")  # fmt: skip


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "pack", ["ragged", *(pytest.param(p, marks=pytest.mark.slow) for p in ("equal", "one token"))]
)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind in ALIKE)) for kind in KINDS],
)
def test_attention_flex_on_cpu_forward_equals_reference(kind, pack):
    lengths = PACKS[pack]
    qkv, table, _ = inputs(sum(lengths))
    fields = fields_of(lengths)
    run = [
        prepare(kind, name, lengths, fields, table, torch.float32, training=False)
        for name in ("reference", "flex")
    ]
    with torch.no_grad():
        expected, got = (attend(*(x.detach() for x in qkv)) for attend in run)
    _assert_near([got], [expected], 1e-5)


# --- the formula itself ----------------------------------------------------------------------


def test_attention_reference_two_tokens_equals_hand_arithmetic():
    # Causal, scale 1: row 0 sees itself; row 1 weighs v by softmax(1*0, 1*ln 3) = (1/4, 3/4).
    q = torch.tensor([1.0, 1.0]).view(2, 1, 1)
    k = torch.tensor([0.0, math.log(3)]).view(2, 1, 1)
    v = torch.tensor([4.0, 8.0]).view(2, 1, 1)
    for backend in ("reference", *ON_CPU):
        attend = attend_of(
            AttentionChoice.of("causal"),
            Layout([2]),
            heads=1,
            head_dim=1,
            dtype=torch.float32,
            device="cpu",
            training=False,
            backend=backend,
        )
        assert attend(q, k, v).flatten().tolist() == pytest.approx([4.0, 7.0])


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("fast_mode", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_cpu_flash_and_tiled_pass_gradcheck(kind, fast_mode):
    lengths = [4, 1, 6]
    fields = fields_of(lengths)
    qkv, table, _ = inputs(11, torch.float64)
    for backend in ("cpu_flash", TILED):

        def run(q, k, v, table, backend=backend):
            attend = prepare(kind, backend, lengths, fields, table, torch.float64)
            return attend(attend(q, k, v), k, v)

        given = (*qkv, table.detach().double().requires_grad_())
        assert torch.autograd.gradcheck(run, given, fast_mode=fast_mode)


def test_attention_cpu_flash_gradient_of_part_leaves_nothing_behind():
    # A backward pass that does not reach the table must not add to the next one's gradient.
    lengths = PACKS["ragged"]
    qkv, table, grad = inputs(sum(lengths))
    attend = prepare("cpm_ant", "cpu_flash", lengths, fields_of(lengths), table, torch.float32)
    out = attend(*qkv)
    torch.autograd.grad(out, qkv[0], grad, retain_graph=True)
    (after,) = torch.autograd.grad(out, table, grad)
    fresh = prepare("cpm_ant", "cpu_flash", lengths, fields_of(lengths), table, torch.float32)
    assert torch.equal(after, torch.autograd.grad(fresh(*qkv), table, grad)[0])


def test_attention_cpu_flash_gradient_of_the_table_from_other_layers_is_refused():
    # What the second layer added is not part of the gradient of the first one's output.
    lengths = PACKS["ragged"]
    qkv, table, grad = inputs(sum(lengths))
    attend = prepare("cpm_ant", "cpu_flash", lengths, fields_of(lengths), table, torch.float32)
    first = attend(*qkv)
    second = attend(first, qkv[1], qkv[2])
    torch.autograd.grad(second, first, grad, retain_graph=True)
    with pytest.raises(RuntimeError, match="need one backward pass for both"):
        torch.autograd.grad(first, table, grad)


@pytest.mark.parametrize(("reentrant", "dropout"), [(False, 0.0), (True, 0.0), (False, 0.25)])
def test_attention_cpu_flash_under_checkpointing_has_same_gradients(reentrant, dropout):
    from torch.utils.checkpoint import checkpoint

    lengths = PACKS["ragged"]
    found = []
    for wrap in (False, True):
        qkv, table, grad = inputs(sum(lengths))
        torch.manual_seed(0)
        fields, options = fields_of(lengths), {"dropout": dropout}
        attend = prepare("cpm_ant", "cpu_flash", lengths, fields, table, torch.float32, **options)
        out = qkv[0]
        for _ in range(3):
            args = (out, qkv[1], qkv[2])
            out = checkpoint(attend, *args, use_reentrant=reentrant) if wrap else attend(*args)
        out.backward(grad)
        found.append([qkv[0].grad, qkv[1].grad, qkv[2].grad, table.grad])
    _assert_near(found[1], found[0], 1e-6)


class _Blind(MaskKind):
    """The first token sees nothing. No shipped kind is so; a masked first token (XLNet) is."""

    Config = full.Config
    VISIBILITY = "causal"
    FIELDS = ("position",)
    pairs = staticmethod(full.pairs)

    def mask(self, config, q, k):
        return k["position"] < q["position"]


@pytest.mark.parametrize("backend", ["reference", *ON_CPU, "flex"])
def test_attention_row_that_sees_nothing_gives_zeros(backend, monkeypatch):
    real = registry.load
    monkeypatch.setattr(
        registry, "load", lambda folder, name: _Blind() if name == "blind" else real(folder, name)
    )
    lengths = [3, 1, 20]
    found = []
    training = backend != "flex"
    for name in ("reference", backend):
        qkv, table, grad = inputs(24)
        attend = prepare("blind", name, lengths, {}, table, torch.float32, training=training)
        with torch.set_grad_enabled(training):
            out = attend(*(qkv if training else (x.detach() for x in qkv)))
        assert torch.equal(out[[0, 3, 4]], torch.zeros(3, HEADS, WIDTH))
        found.append([out] + (list(torch.autograd.grad(out, qkv, grad)) if training else []))
    _assert_near(found[1], found[0], 1e-5)
    assert all(x.isfinite().all() for x in found[1])


@pytest.mark.parametrize("backend", ["reference", "cpu_flash", TILED])
def test_attention_inside_autocast_keeps_the_precision_of_its_inputs(backend):
    lengths = PACKS["ragged"]
    expected = _results("cpm_ant", backend, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = _results("cpm_ant", backend, lengths)
    # A backward pass belongs outside of autocast; that of `cpu_flash` is its own.
    same = len(expected) if backend == "cpu_flash" else 1
    assert all(torch.equal(a, b) for a, b in zip(got[:same], expected[:same], strict=True))


# --- who may influence whom ------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", *ON_CPU])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_changed_document_leaves_neighbours_bitwise(kind, backend):
    lengths = [30, 21, 40]
    (q, k, v), table, grad = inputs(91)
    attend = prepare(kind, backend, lengths, fields_of(lengths), table, torch.float32)

    def run(shift):
        changed = [x.detach().clone() for x in (q, k, v)]
        for x in changed:
            x[30:51] += shift
            x.requires_grad_()
        out = attend(*changed)
        return [out.detach(), *torch.autograd.grad(out, changed, grad)]

    for a, b in zip(run(0.0), run(1.0), strict=True):
        assert torch.equal(a[:30], b[:30])
        assert torch.equal(a[51:], b[51:])
        assert not torch.equal(a[30:51], b[30:51])


@pytest.mark.parametrize("backend", ["reference", *ON_CPU])
@pytest.mark.parametrize("kind", ["causal", "cpm_ant", "local_window", "relative_bias_causal"])
def test_attention_changed_future_leaves_past_bitwise(kind, backend):
    # Without context CPM-Ant's mask is causal.
    lengths = [50, 31]
    (q, k, v), table, _ = inputs(81)
    attend = prepare(kind, backend, lengths, fields_of(lengths, "none"), table, torch.float32)
    before = attend(q, k, v).detach()
    later = [x.detach().clone() for x in (q, k, v)]
    for x in later:
        x[20:50] -= 2.0
    after = attend(*later)
    assert torch.equal(before[:20], after[:20])
    assert torch.equal(before[50:], after[50:])
    assert not torch.equal(before[20:50], after[20:50])


@pytest.mark.parametrize("backend", ["reference", *ON_CPU])
def test_attention_repeated_run_is_bitwise_the_same(backend):
    first = _results("cpm_ant", backend, PACKS["many"])
    second = _results("cpm_ant", backend, PACKS["many"])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# --- dropout ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backend",
    [*(pytest.param(b, marks=pytest.mark.slow) for b in ("reference", "sdpa")), "cpu_flash"],
)
def test_attention_dropout_has_the_expectation_of_none_and_follows_the_seed(backend):
    lengths = [6, 9]
    (q, k, v), table, _ = inputs(15)

    def build(dropout, training=True):
        options = {"dropout": dropout, "training": training}
        fields = fields_of(lengths)
        return prepare("cpm_ant", backend, lengths, fields, table, torch.float32, **options)

    with torch.no_grad():
        plain, dropping = build(0.0)(q, k, v), build(0.4)
        torch.manual_seed(1)
        draws = torch.stack([dropping(q, k, v) for _ in range(3000)])
        torch.manual_seed(1)
        assert torch.equal(draws[0], dropping(q, k, v))
        assert not torch.equal(draws[0], draws[1])
        # Five standard errors of a mean of 3000.
        bound = 5 * draws.std(0) / math.sqrt(len(draws)) + 1e-6
        assert ((draws.mean(0) - plain).abs() <= bound).all()
        assert torch.equal(build(0.4, training=False)(q, k, v), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["causal", "cpm_ant"])
def test_attention_cpu_flash_dropout_equals_the_formula_with_the_masks_that_it_drew(kind, dtype):
    lengths, rate = [6, 8, 1, 8], 0.25
    fields, layout = fields_of(lengths), Layout(lengths)
    qkv, table, grad = inputs(layout.total, dtype)
    attend = prepare(kind, "cpu_flash", lengths, fields, table, dtype, dropout=rate)
    # If the values of a document are the rows of the identity, the output is the probabilities.
    identity = torch.eye(WIDTH, dtype=dtype)[layout.positions][:, None].expand(-1, HEADS, -1)
    torch.manual_seed(1)
    drawn = attend(qkv[0], qkv[1], identity)
    # The mask of each pair of the pack, (H, N, N); between documents it is of no effect.
    kept = (drawn[:, :, layout.positions].permute(1, 0, 2) != 0).to(torch.float64)
    q, k, v = (x.detach().double().requires_grad_() for x in qkv)
    rows = table.detach().double().requires_grad_()
    # The formula's probabilities, in the same way: the reference takes values of any width.
    whole = torch.eye(layout.total, dtype=torch.float64)[:, None].expand(-1, HEADS, -1)
    plain = prepare(kind, "reference", lengths, fields, rows, torch.float64)
    probabilities = plain(q, k, whole).permute(1, 0, 2)
    expected = torch.einsum("hqk,khd->qhd", probabilities * kept / (1 - rate), v)
    torch.manual_seed(1)
    got = attend(*qkv)
    wanted = [(*qkv, table), (q, k, v, rows)] if rows_of(kind) else [qkv, (q, k, v)]
    found = [got, *torch.autograd.grad(got, wanted[0], grad)]
    right = [expected, *torch.autograd.grad(expected, wanted[1], grad.double())]
    _assert_near([x.double() for x in found], [x.double() for x in right], TOLERANCE[dtype])
    assert 0.6 < float(kept[:, probabilities[0] > 0].mean()) < 0.9


# --- 16-bit numbers on CPUs --------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", ["causal", "cpm_ant"])
def test_attention_sdpa_computes_documents_of_many_lengths_in_float32(kind, autocast):
    # Kernels of 16-bit products are compiled for each shape; float32 is faster, and exact.
    lengths = PACKS["ragged"]
    narrow = [x.detach().bfloat16().requires_grad_() for x in inputs(sum(lengths))[0]]
    wide = [x.detach().float().requires_grad_() for x in narrow]
    _, table, grad = inputs(sum(lengths))
    found = []
    for qkv, dtype in ((narrow, torch.bfloat16), (wide, torch.float32)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast and dtype != torch.float32):
            attend = prepare(kind, "sdpa", lengths, fields_of(lengths), table, dtype)
            out = attend(*qkv)
        assert out.dtype is dtype
        found.append([out, *torch.autograd.grad(out, qkv, grad.bfloat16().to(dtype))])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b.bfloat16())
