"""Every kind on every backend against the formula, and the kinds against `transformers`."""

import math
from types import SimpleNamespace

import pytest
import torch

from nlpkit import attention, registry
from nlpkit.attention.backends import flash, flex, recompute, varlen
from nlpkit.attention.kinds import cpm_ant, full
from nlpkit.attention.layout import Layout
from nlpkit.errors import Unsupported, UsageError

HEADS, WIDTH = 3, 8
SETTINGS = {"num_buckets": 16, "max_distance": 40, "segment_types": 4}
KINDS = registry.names("attention/kinds")
ON_CPU = ["sdpa", "recompute", "tiled"]
# Against the reference, which is float32 inside: rounding of inputs to bfloat16 is the same for
# both, so what is left is bfloat16 products and outputs (2^-8 relative, sums of a few).
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
PACKS = {
    "ragged": [5, 1, 17, 2, 33, 9],
    "one document": [37],
    "one token": [1],
    "equal": [12, 12, 12],
    "many": [1 + 7 * i % 11 for i in range(40)],
    "long": [300, 30, 150, 1, 290],
}


def _fields(lengths, contexts="mixed", seed=0):
    """Prompt of 2 in segment 0, text in segment 1 or 2; targets drawn by `contexts`."""
    rng = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    position = torch.cat([torch.arange(n) for n in lengths])
    text = torch.cat([torch.full((n,), 1 + i % 2) for i, n in enumerate(lengths)])
    context = {
        "mixed": torch.rand(total, generator=rng) < 0.5,
        "all": torch.ones(total, dtype=torch.bool),
        "none": torch.zeros(total, dtype=torch.bool),
        "tail": position < torch.cat([torch.full((n,), n // 2) for n in lengths]),
    }[contexts]
    return {
        "context": context,
        "segment": torch.where(position < 2, 0, text),
        "position": position,
        "span": None,
    }


def _inputs(total, dtype=torch.float32, device="cpu", seed=0):
    rng = torch.Generator().manual_seed(seed)
    shape = (4, total, HEADS, WIDTH)
    q, k, v, grad = torch.randn(shape, generator=rng).to(device=device, dtype=dtype)
    table = torch.randn(cpm_ant.rows(cpm_ant.Config(**SETTINGS)), HEADS, generator=rng)
    qkv = [x.clone().requires_grad_() for x in (q, k, v)]
    return qkv, table.to(device).requires_grad_(), grad


def _prepare(kind, backend, lengths, fields, table, dtype, device="cpu", **options):
    biased = kind == "cpm_ant"
    options = {"training": True} | options
    return attention.prepare(
        kind,
        Layout.of(lengths, device),
        fields={k: None if v is None else v.to(device) for k, v in fields.items()},
        table=table if biased else None,
        settings=SETTINGS if biased else None,
        heads=HEADS,
        head_dim=WIDTH,
        dtype=dtype,
        device=device,
        backend=backend,
        **options,
    )


def _results(kind, backend, lengths, dtype=torch.float32, contexts="mixed", device="cpu", **more):
    """Return out and the gradients of q, k, v (and the table) after two layers."""
    fields = _fields(lengths, contexts) | more
    qkv, table, grad = _inputs(sum(lengths), dtype, device)
    attend = _prepare(kind, backend, lengths, fields, table, dtype, device)
    first = attend(*qkv)
    second = attend(first, qkv[1], qkv[2])
    wanted = [*qkv, table] if kind == "cpm_ant" else qkv
    return [first.detach(), second.detach(), *torch.autograd.grad(second, wanted, grad)]


def _assert_near(got, expected, tolerance):
    for a, b in zip(got, expected, strict=True):
        largest = b.abs().max().clamp(min=1).item()
        torch.testing.assert_close(a, b, atol=tolerance * largest, rtol=0)


# --- every kind on every backend -------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_random_pack_equals_reference(kind, backend, pack, dtype):
    if backend == "tiled" and pack == "long":
        pytest.skip("the readable form is slow; the other packs cover it")
    expected = _results(kind, "reference", PACKS[pack], dtype)
    got = _results(kind, backend, PACKS[pack], dtype)
    _assert_near(got, expected, TOLERANCE[dtype])


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
    joined = _fields(lengths)
    span = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    qkv, table, _ = _inputs(23)
    apart = _prepare("cpm_ant", backend, lengths, joined, table, torch.float32)(*qkv)
    fields = joined | {"span": span}
    together = _prepare("cpm_ant", backend, [23], fields, table, torch.float32)(*qkv)
    torch.testing.assert_close(together, apart, atol=1e-6, rtol=0)


@pytest.mark.parametrize("pack", ["ragged", "equal", "one token"])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_flex_on_cpu_forward_equals_reference(kind, pack):
    lengths = PACKS[pack]
    qkv, table, _ = _inputs(sum(lengths))
    fields = _fields(lengths)
    run = [
        _prepare(kind, name, lengths, fields, table, torch.float32, training=False)
        for name in ("reference", "flex")
    ]
    with torch.no_grad():
        expected, got = (attend(*(x.detach() for x in qkv)) for attend in run)
    _assert_near([got], [expected], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_attention_flex_compiled_forward_equals_reference(kind, monkeypatch):
    # As on CUDA: kinds and layout hold nothing that the compiler refuses.
    for name in ("flex_attention", "create_block_mask"):
        monkeypatch.setattr(flex, name, torch.compile(getattr(flex, name)))
    lengths = PACKS["ragged"]
    qkv, table, _ = _inputs(sum(lengths))
    qkv, table = [x.detach() for x in qkv], table.detach()
    with torch.no_grad():
        expected, got = (
            _prepare(kind, name, lengths, _fields(lengths), table, torch.float32, training=False)(
                *qkv
            )
            for name in ("reference", "flex")
        )
    _assert_near([got], [expected], 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("pack", ["ragged", "equal", "many", "long"])
@pytest.mark.parametrize(
    ("kind", "backend"),
    [(k, b) for k in KINDS for b in ("flash", "varlen", "flex", "sdpa")],
)
def test_attention_on_gpu_equals_reference(kind, backend, pack, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    monkeypatch.setitem(globals(), "WIDTH", 32)
    dtype = torch.bfloat16
    try:
        got = _results(kind, backend, PACKS[pack], dtype, device="cuda")
    except Unsupported as error:
        pytest.skip(str(error))
    _assert_near(got, _results(kind, "reference", PACKS[pack], dtype, device="cuda"), 3e-2)


# --- the formula itself ----------------------------------------------------------------------


def test_attention_reference_two_tokens_equals_hand_arithmetic():
    # Causal, scale 1: row 0 sees itself; row 1 weighs v by softmax(1*0, 1*ln 3) = (1/4, 3/4).
    q = torch.tensor([1.0, 1.0]).view(2, 1, 1)
    k = torch.tensor([0.0, math.log(3)]).view(2, 1, 1)
    v = torch.tensor([4.0, 8.0]).view(2, 1, 1)
    for backend in ("reference", *ON_CPU):
        attend = attention.prepare(
            "causal",
            Layout.of([2]),
            fields={},
            heads=1,
            head_dim=1,
            dtype=torch.float32,
            device="cpu",
            training=False,
            backend=backend,
        )
        assert attend(q, k, v).flatten().tolist() == pytest.approx([4.0, 7.0])


@pytest.mark.parametrize("kind", KINDS)
def test_attention_recompute_and_tiled_pass_gradcheck(kind):
    lengths = [4, 1, 6]
    fields = _fields(lengths)
    qkv, table, _ = _inputs(11, torch.float64)
    for backend in ("recompute", "tiled"):

        def run(q, k, v, table, backend=backend):
            attend = _prepare(kind, backend, lengths, fields, table, torch.float64)
            return attend(attend(q, k, v), k, v)

        assert torch.autograd.gradcheck(run, (*qkv, table.detach().double().requires_grad_()))


def test_attention_recompute_gradient_of_part_leaves_nothing_behind():
    # A backward pass that does not reach the table must not add to the next one's gradient.
    lengths = PACKS["ragged"]
    qkv, table, grad = _inputs(sum(lengths))
    attend = _prepare("cpm_ant", "recompute", lengths, _fields(lengths), table, torch.float32)
    out = attend(*qkv)
    torch.autograd.grad(out, qkv[0], grad, retain_graph=True)
    (after,) = torch.autograd.grad(out, table, grad)
    fresh = _prepare("cpm_ant", "recompute", lengths, _fields(lengths), table, torch.float32)
    assert torch.equal(after, torch.autograd.grad(fresh(*qkv), table, grad)[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_attention_recompute_under_checkpointing_has_same_gradients(reentrant):
    from torch.utils.checkpoint import checkpoint

    lengths = PACKS["ragged"]
    found = []
    for wrap in (False, True):
        qkv, table, grad = _inputs(sum(lengths))
        attend = _prepare("cpm_ant", "recompute", lengths, _fields(lengths), table, torch.float32)
        out = qkv[0]
        for _ in range(3):
            args = (out, qkv[1], qkv[2])
            out = checkpoint(attend, *args, use_reentrant=reentrant) if wrap else attend(*args)
        out.backward(grad)
        found.append([qkv[0].grad, qkv[1].grad, qkv[2].grad, table.grad])
    _assert_near(found[1], found[0], 1e-6)


@pytest.mark.parametrize("backend", ["reference", *ON_CPU, "flex"])
def test_attention_row_that_sees_nothing_gives_zeros(backend, monkeypatch):
    # No shipped kind has such rows; a masked-out first token (as in XLNet) does.
    blind = SimpleNamespace(
        FIELDS=(),
        OPTIONAL=(),
        CAUSAL=False,
        FULL=False,
        BIAS=False,
        LEADING=None,
        Config=full.Config,
        mask=lambda fields, q, k: k < q,
    )
    real = registry.load
    monkeypatch.setattr(
        registry, "load", lambda folder, name: blind if name == "blind" else real(folder, name)
    )
    lengths = [3, 1, 20]
    found = []
    training = backend != "flex"
    for name in ("reference", backend):
        qkv, table, grad = _inputs(24)
        attend = _prepare("blind", name, lengths, {}, table, torch.float32, training=training)
        with torch.set_grad_enabled(training):
            out = attend(*(qkv if training else (x.detach() for x in qkv)))
        assert torch.equal(out[[0, 3, 4]], torch.zeros(3, HEADS, WIDTH))
        found.append([out] + (list(torch.autograd.grad(out, qkv, grad)) if training else []))
    _assert_near(found[1], found[0], 1e-5)
    assert all(x.isfinite().all() for x in found[1])


# --- who may influence whom ------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", *ON_CPU])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_changed_document_leaves_neighbours_bitwise(kind, backend):
    lengths = [30, 21, 40]
    (q, k, v), table, grad = _inputs(91)
    attend = _prepare(kind, backend, lengths, _fields(lengths), table, torch.float32)

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
@pytest.mark.parametrize("kind", ["causal", "cpm_ant"])
def test_attention_changed_future_leaves_past_bitwise(kind, backend):
    # Without context CPM-Ant's mask is causal.
    lengths = [50, 31]
    (q, k, v), table, _ = _inputs(81)
    attend = _prepare(kind, backend, lengths, _fields(lengths, "none"), table, torch.float32)
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


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_attention_dropout_has_the_expectation_of_none_and_follows_the_seed(backend):
    lengths = [6, 9]
    (q, k, v), table, _ = _inputs(15)

    def build(dropout, training=True):
        options = {"dropout": dropout, "training": training}
        fields = _fields(lengths)
        return _prepare("cpm_ant", backend, lengths, fields, table, torch.float32, **options)

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


# --- against transformers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(512, 2048), (32, 128), (16, 40), (64, 1000), (10, 7)]
)
def test_cpm_ant_bucket_equals_transformers(num_buckets, max_distance):
    from transformers.models.cpmant.modeling_cpmant import CpmAntSegmentPositionEmbedding

    config = SimpleNamespace(
        num_attention_heads=1,
        position_bias_num_buckets=num_buckets,
        position_bias_max_distance=max_distance,
        segment_types=2,
    )
    theirs = CpmAntSegmentPositionEmbedding(config)._position_bucket
    distance = torch.arange(-5000, 5001, dtype=torch.int32)
    expected = theirs(distance, num_buckets=num_buckets, max_distance=max_distance)
    assert torch.equal(cpm_ant.bucket(distance.long(), num_buckets, max_distance), expected.long())
    # And through the table of constants, which clamps the distance.
    settings = {"num_buckets": num_buckets, "max_distance": max_distance, "segment_types": 2}
    config = cpm_ant.Config(**settings)
    position = torch.arange(5001)
    fields = {"position": position, "segment": torch.zeros(5001, dtype=torch.long)}
    fields |= cpm_ant.constants(config)
    forward = cpm_ant.bias_index(config, fields, torch.zeros(1, dtype=torch.long), position)
    backward = cpm_ant.bias_index(config, fields, position, torch.zeros(1, dtype=torch.long))
    assert torch.equal(forward, expected[5000:].long())
    assert torch.equal(backward.flip(0), expected[:5001].long())


@pytest.mark.parametrize("backend", ["reference", *ON_CPU])
def test_cpm_ant_attention_equals_transformers(backend):
    from transformers.models.cpmant import modeling_cpmant as theirs
    from transformers.models.cpmant.configuration_cpmant import CpmAntConfig

    torch.manual_seed(0)
    config = CpmAntConfig(
        hidden_size=24,
        num_attention_heads=HEADS,
        dim_head=WIDTH,
        segment_types=SETTINGS["segment_types"],
        position_bias_num_buckets=SETTINGS["num_buckets"],
        position_bias_max_distance=SETTINGS["max_distance"],
        prompt_length=2,
        dropout_p=0.0,
    )
    length = 60
    fields = _fields([length])
    embedding = theirs.CpmAntSegmentPositionEmbedding(config)
    torch.nn.init.normal_(embedding.relative_attention_bias)
    layer = theirs.CpmAntAttention(config)
    position, segment = fields["position"][None], fields["segment"][None]
    bias = embedding(position, position, segment, segment)
    mask = theirs.CpmAntModel._prepare_attention_mask(
        SimpleNamespace(prompt_length=2),
        torch.zeros(1, length),
        torch.zeros(1, length, dtype=torch.long),
        fields["context"][None],
        torch.tensor([length]),
    )
    assert torch.equal(attention.dense_mask("cpm_ant", Layout.of([length]), fields), mask[0])
    hidden = torch.randn(1, length, 24)
    expected, _ = layer(hidden, hidden, mask, bias)

    projections = layer.project_q, layer.project_k, layer.project_v
    qkv = [project(hidden[0]).view(length, HEADS, WIDTH) for project in projections]
    table = embedding.relative_attention_bias
    attend = _prepare("cpm_ant", backend, [length], fields, table, torch.float32)
    got = layer.attention_out(attend(*qkv).reshape(length, -1))
    torch.testing.assert_close(got, expected[0], atol=1e-5, rtol=0)
    grad = torch.randn_like(got)
    torch.testing.assert_close(
        torch.autograd.grad(got, table, grad)[0],
        torch.autograd.grad(expected[0], table, grad)[0],
        atol=1e-5,
        rtol=0,
    )


# --- choice, refusals, mistakes --------------------------------------------------------------


def _request(name="causal", **changes):
    table = torch.zeros(32, HEADS) if name == "cpm_ant" else None
    facts = {
        "kind": registry.load("attention/kinds", name),
        "config": None,
        "layout": Layout.of([3, 4]),
        "fields": {},
        "table": table,
        "heads": HEADS,
        "head_dim": 64,
        "dtype": torch.bfloat16,
        "device": torch.device("cuda"),
        "training": True,
        "dropout": 0.0,
        "scale": 0.125,
    }
    return attention.Request(**(facts | changes))


@pytest.mark.parametrize("backend", [flash, varlen])
def test_attention_gpu_kernels_refuse_with_the_reason(backend, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert backend.refuses(_request("cpm_ant")) == "learned bias"
    cpu = _request(device=torch.device("cpu"))
    assert backend.refuses(cpu) == "made for CUDA, not for cpu"
    wide = _request(dtype=torch.float32)
    assert backend.refuses(wide) == "made for float16 and bfloat16, not for float32"
    odd = _request(head_dim=20)
    assert backend.refuses(odd) == "head width 20 is not a multiple of 8 up to 256"
    assert backend.refuses(_request()) == "needs an Ampere GPU or newer"
    masked = _request(kind=SimpleNamespace(FULL=False, CAUSAL=False))
    assert backend.refuses(masked) == "a mask that is neither full nor causal"


def test_attention_on_ampere_flash_wants_its_package_and_varlen_no_dropout(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(flash.importlib.util, "find_spec", lambda name: None)
    assert flash.refuses(_request()) == "flash-attn is not installed (pip install nlpkit[flash])"
    assert varlen.refuses(_request()) is None
    assert varlen.refuses(_request(dropout=0.1)) == "dropout on the probabilities"


def test_attention_flex_and_recompute_refuse_with_the_reason():
    cpu = torch.device("cpu")
    assert flex.refuses(_request(device=cpu)) == "no backward pass on CPU"
    assert flex.refuses(_request(device=cpu, training=False)) is None
    assert flex.refuses(_request(head_dim=8)) == "head width below 16"
    assert flex.refuses(_request("cpm_ant")) is None
    assert recompute.refuses(_request()) == "made for CPUs"
    assert recompute.refuses(_request(device=cpu, dropout=0.1)) == "dropout on the probabilities"


def test_attention_auto_names_its_choice_and_what_refused():
    _, table, _ = _inputs(1)
    fields = _fields([1])
    chosen = _prepare("cpm_ant", "auto", [1], fields, table, torch.float32)
    assert (chosen.backend, chosen.reason) == ("recompute", "recompute")
    chosen = _prepare("cpm_ant", "auto", [1], fields, table, torch.float32, dropout=0.1)
    assert chosen.backend == "sdpa"
    assert chosen.reason == "sdpa (recompute refused: dropout on the probabilities)"


def test_attention_named_backend_that_cannot_is_an_error():
    _, table, _ = _inputs(1)
    with pytest.raises(Unsupported, match=r"flex cannot do kind full: no backward pass on CPU"):
        _prepare("full", "flex", [1], {}, table, torch.float32)
    with pytest.raises(UsageError, match=r"no 'recompite', did you mean recompute\?"):
        _prepare("full", "recompite", [1], {}, table, torch.float32)


def test_attention_wrong_fields_or_table_are_errors():
    _, table, _ = _inputs(1)
    fields = _fields([1])
    left = {k: fields[k] for k in ("position", "segment")}
    with pytest.raises(ValueError, match="needs the field 'context'; given: position, segment"):
        _prepare("cpm_ant", "auto", [1], left, table, torch.float32)
    with pytest.raises(
        ValueError, match=r"'context' must be \(2,\), one value a token; got \(1,\)"
    ):
        _prepare("cpm_ant", "auto", [2], fields, table, torch.float32)
    with pytest.raises(ValueError, match=r"needs a bias table \(32, 3\); got \(31, 3\)"):
        _prepare("cpm_ant", "auto", [1], fields, table[1:], torch.float32)
    with pytest.raises(
        ValueError, match="max_distance: 16 must be larger than num_buckets // 4 = 16"
    ):
        cpm_ant.Config(num_buckets=64, max_distance=16)


# --- layout and masks ------------------------------------------------------------------------


def test_layout_of_lengths_has_boundaries_ids_and_positions():
    layout = Layout.of([2, 1, 3])
    assert (layout.total, layout.max_length, layout.lengths) == (6, 3, (2, 1, 3))
    assert layout.spans == [(0, 2), (2, 3), (3, 6)]
    assert layout.cu_seqlens.dtype == torch.int32
    assert layout.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert layout.document_ids.tolist() == [0, 0, 1, 2, 2, 2]
    assert layout.positions.tolist() == [0, 1, 0, 0, 1, 2]
    for wrong in ([], [3, 0]):
        with pytest.raises(ValueError, match="at least one token"):
            Layout.of(wrong)


def test_dense_mask_two_documents_equals_drawing():
    # Document 1: context, target, context; document 2: two targets. Rows are queries.
    fields = {
        "context": torch.tensor([1, 0, 1, 0, 0]),
        "segment": torch.zeros(5, dtype=torch.long),
        "position": torch.tensor([0, 1, 2, 0, 1]),
    }
    drawing = ["x.x..", "xxx..", "x.x..", "...x.", "...xx"]
    mask = attention.dense_mask("cpm_ant", Layout.of([3, 2]), fields)
    assert ["".join("x" if seen else "." for seen in row) for row in mask.tolist()] == drawing
    causal = attention.dense_mask("causal", Layout.of([2, 1]), {})
    assert causal.tolist() == [[True, False, False], [True, True, False], [False, False, True]]


def test_attention_every_file_of_the_folders_keeps_the_contract():
    for name in KINDS:
        kind = registry.load("attention/kinds", name)
        assert not (kind.CAUSAL and kind.FULL)
        assert set(kind.OPTIONAL) <= set(kind.FIELDS)
        assert kind.LEADING is None or kind.LEADING in kind.FIELDS
        assert kind.BIAS == hasattr(kind, "bias_index") == hasattr(kind, "rows")
        lengths = [4, 3]
        mask = attention.dense_mask(name, Layout.of(lengths), _fields(lengths))
        assert mask.shape == (7, 7)
        assert not mask[:4, 4:].any()
        assert not mask[4:, :4].any()
        if kind.CAUSAL or kind.FULL:  # what the flags promise to the kernels
            block = torch.ones(4, 4, dtype=torch.bool)
            assert torch.equal(mask[:4, :4], block.tril() if kind.CAUSAL else block)
    for name in registry.names("attention/backends"):
        backend = registry.load("attention/backends", name)
        assert callable(backend.refuses)
        assert callable(backend.prepare)
