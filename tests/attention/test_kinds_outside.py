"""CPM-Ant's attention against `transformers`, the choice of a backend, layouts and masks."""

from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from pydantic import ValidationError

from nlpkit import recipe, registry
from nlpkit.attention.backends import cpu_flash, flash, flex, varlen
from nlpkit.attention.choice import AttentionChoice, load_kind
from nlpkit.attention.forms.buckets import bucket
from nlpkit.attention.kinds import cpm_ant
from nlpkit.attention.masks import dense_mask
from nlpkit.checkpoints import changes
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.contracts.kind import Tokens, Visibility
from nlpkit.contracts.request import Layout, Request
from nlpkit.errors import Unsupported, UsageError
from tests import _tiny
from tests._attention import HEADS, ON_CPU, SETTINGS, WIDTH, fields_of, inputs, prepare

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
    assert torch.equal(bucket(distance.long(), num_buckets, max_distance), expected.long())
    # And through the table in the buffers, which clamps the distance.
    settings = {"num_buckets": num_buckets, "max_distance": max_distance, "segment_types": 2}
    config = cpm_ant.Config(**settings)
    position = torch.arange(5001)
    fields = {"position": position, "segment": torch.zeros(5001, dtype=torch.long)}
    first, each = (Tokens(fields, i) for i in (torch.zeros(1, dtype=torch.long), position))
    forward = cpm_ant.bias_index(config, cpm_ant.buffers(config), first, each)
    backward = cpm_ant.bias_index(config, cpm_ant.buffers(config), each, first)
    assert torch.equal(forward, expected[5000:].long())
    assert torch.equal(backward.flip(0), expected[:5001].long())


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 1000)])
def test_t5_bucket_equals_transformers(num_buckets, max_distance, bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-3000, 3001)
    settings = (bidirectional, num_buckets, max_distance)
    expected = T5Attention._relative_position_bucket(distance, *settings)
    assert torch.equal(bucket(distance, num_buckets, max_distance, bidirectional), expected)


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
    fields = fields_of([length])
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
    layout = Layout([length]).with_fields(fields)
    assert torch.equal(dense_mask(AttentionChoice.of("cpm_ant"), layout), mask[0])
    hidden = torch.randn(1, length, 24)
    expected, _ = layer(hidden, hidden, mask, bias)

    projections = layer.project_q, layer.project_k, layer.project_v
    qkv = [project(hidden[0]).view(length, HEADS, WIDTH) for project in projections]
    table = embedding.relative_attention_bias
    attend = prepare("cpm_ant", backend, [length], fields, table, torch.float32)
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


def _request(name="causal", device="cuda", **changes):
    layout = Layout([3, 4], device)
    facts = {
        "kind": registry.load("attention/kinds", name),
        "config": None,
        "layout": layout,
        "keys": layout,
        "fields": {},
        "key_fields": {},
        "tensors": {"table": torch.zeros(32, HEADS)} if name == "cpm_ant" else {},
        "buffers": {},
        "heads": HEADS,
        "key_heads": HEADS,
        "head_dim": 64,
        "dtype": torch.bfloat16,
        "training": True,
        "dropout": 0.0,
        "scale": 0.125,
    }
    return Request(**(facts | changes))


@pytest.mark.parametrize("backend", [flash, varlen])
def test_attention_gpu_kernels_refuse_with_the_reason(backend, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert backend.refuses(_request("cpm_ant")) == "learned bias"
    cpu = _request(device="cpu")
    assert backend.refuses(cpu) == "made for CUDA, not for cpu"
    wide = _request(dtype=torch.float32)
    assert backend.refuses(wide) == "made for float16 and bfloat16, not for float32"
    odd = _request(head_dim=20)
    assert backend.refuses(odd) == "head width 20 is not a multiple of 8 up to 256"
    assert backend.refuses(_request()) == "needs an Ampere GPU or newer"
    masked = _request(kind=load_kind("cpm_ant"))
    assert backend.refuses(masked) == "a mask that is neither full, causal nor a window"


def test_attention_cpm_ant_pairs_are_the_mean_over_all_shares_of_context():
    # Its mask rate is uniform; the mean of context + (1 - context)^2 / 2 from 0 to 1 is 2/3.
    n, config = 60, cpm_ant.Config(**SETTINGS)
    seen = []
    for context in range(n + 1):
        fields = fields_of([n]) | {"context": torch.arange(n) < context}
        mask = dense_mask(
            AttentionChoice.of("cpm_ant", **SETTINGS), Layout([n]).with_fields(fields)
        )
        seen.append(float(mask.sum()))
    assert cpm_ant.pairs(config, [n]) == pytest.approx(sum(seen) / len(seen), rel=0.02)


@pytest.mark.parametrize(("kind", "parts"), [("relative_bias", 4), ("relative_bias_causal", 2)])
def test_attention_buckets_of_far_distances_begin_behind_the_exact_ones(kind, parts):
    # One way half of the buckets have a distance of their own, both ways a quarter (T5).
    config = registry.load("attention/kinds", kind).Config
    exact = 32 // parts
    assert config(num_buckets=32, max_distance=exact + 1).max_distance == exact + 1
    with pytest.raises(ValidationError, match=rf"{exact} must be larger than .* = {exact}"):
        config(num_buckets=32, max_distance=exact)


def test_attention_on_ampere_flash_wants_its_package_and_varlen_no_dropout(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(flash.importlib.util, "find_spec", lambda name: None)
    assert flash.refuses(_request()) == "flash-attn is not installed (pip install flash-attn)"
    assert varlen.refuses(_request()) is None
    assert varlen.refuses(_request(dropout=0.1)) == "dropout on the probabilities"


def test_attention_flex_and_cpu_flash_refuse_with_the_reason():
    assert flex.refuses(_request(device="cpu")) == "no backward pass on CPU"
    assert flex.refuses(_request(device="cpu", training=False)) is None
    assert flex.refuses(_request(head_dim=8)) == "head width below 16"
    assert cpu_flash.refuses(_request()) == "made for CPUs"
    assert cpu_flash.refuses(_request(device="cpu", dropout=0.1)) is None


@pytest.mark.parametrize("known", [True, False])
def test_attention_flex_has_more_graphs_where_torch_has_the_setting(known, monkeypatch):
    def older(function):
        return function, None

    def newer(function, *, recompile_limit=None):
        return function, recompile_limit

    monkeypatch.setattr(torch, "compile", newer if known else older)
    limit = flex._MAX_GRAPHS if known else None
    assert flex._compiled.__wrapped__(len) == (len, limit)


def test_attention_auto_names_its_choice_and_what_refused():
    _, table, _ = inputs(1)
    fields = fields_of([1])
    chosen = prepare("cpm_ant", "auto", [1], fields, table, torch.float32)
    assert (chosen.backend, chosen.reason) == ("cpu_flash", "cpu_flash")
    chosen = prepare("causal", "auto", [1], fields, table, torch.float32)
    assert (chosen.backend, chosen.reason) == ("sdpa", "sdpa")
    chosen = prepare("causal", "auto", [1], fields, table, torch.bfloat16)
    assert (chosen.backend, chosen.reason) == ("cpu_flash", "cpu_flash")
    chosen = prepare("cpm_ant", "auto", [1], fields, table, torch.float32, dropout=0.1)
    assert (chosen.backend, chosen.reason) == ("cpu_flash", "cpu_flash")
    # torch's own kernel has no dropout, and computes all pairs of rows of some hundred tokens.
    chosen = prepare("causal", "auto", [1], fields, table, torch.float32, dropout=0.1)
    assert chosen.backend == "cpu_flash"
    expected = {(512, 512): "cpu_flash", (512, 511): "sdpa", (256, 256): "sdpa"}
    for lengths, backend in expected.items():
        assert prepare("causal", "auto", lengths, {}, table, torch.float32).backend == backend
    assert prepare("full", "auto", [512, 512], {}, table, torch.float32).backend == "sdpa"


def test_attention_named_backend_that_cannot_is_an_error():
    _, table, _ = inputs(1)
    with pytest.raises(Unsupported, match=r"flex cannot do kind full: no backward pass on CPU"):
        prepare("full", "flex", [1], {}, table, torch.float32)
    with pytest.raises(UsageError, match=r"no 'cpu_flsh', did you mean cpu_flash\?"):
        prepare("full", "cpu_flsh", [1], {}, table, torch.float32)


def test_attention_wrong_fields_or_table_are_errors():
    _, table, _ = inputs(1)
    fields = fields_of([1])
    left = {k: fields[k] for k in ("position", "segment")}
    with pytest.raises(ValueError, match="needs the field 'context'; given: position, segment"):
        prepare("cpm_ant", "auto", [1], left, table, torch.float32)
    with pytest.raises(ValueError, match=r"needs the tensors .*\(32, 3\).*; given: .*\(31, 3\)"):
        prepare("cpm_ant", "auto", [1], fields, table[1:], torch.float32)
    with pytest.raises(
        ValueError, match="max_distance: 16 must be larger than num_buckets // 4 = 16"
    ):
        cpm_ant.Config(num_buckets=64, max_distance=16)


# --- layout and masks ------------------------------------------------------------------------


def test_layout_of_lengths_has_boundaries_ids_and_positions():
    layout = Layout([2, 1, 3])
    assert (layout.total, layout.max_length, layout.lengths) == (6, 3, (2, 1, 3))
    assert layout.spans == [(0, 2), (2, 3), (3, 6)]
    assert layout.cu_seqlens.dtype == torch.int32
    assert layout.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert layout.document_ids.tolist() == [0, 0, 1, 2, 2, 2]
    assert layout.positions.tolist() == [0, 1, 0, 0, 1, 2]
    for wrong in ([], [3, 0]):
        with pytest.raises(ValueError, match="at least one token"):
            Layout(wrong)


def test_dense_mask_two_documents_equals_drawing():
    # Document 1: context, target, context; document 2: two targets. Rows are queries.
    fields = {
        "context": torch.tensor([1, 0, 1, 0, 0]),
        "segment": torch.zeros(5, dtype=torch.long),
        "position": torch.tensor([0, 1, 2, 0, 1]),
    }
    drawing = ["x.x..", "xxx..", "x.x..", "...x.", "...xx"]
    mask = dense_mask(AttentionChoice.of("cpm_ant"), Layout([3, 2]).with_fields(fields))
    assert ["".join("x" if seen else "." for seen in row) for row in mask.tolist()] == drawing
    causal = dense_mask(AttentionChoice.of("causal"), Layout([2, 1]))
    assert causal.tolist() == [[True, False, False], [True, True, False], [False, False, True]]


def test_attention_every_file_of_the_folders_keeps_the_contract():
    for name in registry.names("attention/kinds"):
        kind = registry.load("attention/kinds", name)
        assert kind.VISIBILITY in get_args(Visibility)
        assert kind.KERNEL in ("causal", "full", None)
        assert set(kind.OPTIONAL) <= set(kind.FIELDS)
        biased = "table" in kind.tensors(kind.Config(), 2, 4)
        assert biased == bool(kind.buffers(kind.Config()))
        if kind.mask is None:
            continue
        assert kind.SORT_FIRST is None or kind.SORT_FIRST in kind.FIELDS
        lengths = [4, 3]
        mask = dense_mask(AttentionChoice.of(name), Layout(lengths).with_fields(fields_of(lengths)))
        assert mask.shape == (7, 7)
        assert not mask[:4, 4:].any()
        assert not mask[4:, :4].any()
        block = torch.ones(4, 4, dtype=torch.bool)
        if kind.KERNEL:  # what it promises to fused kernels
            assert torch.equal(mask[:4, :4], block.tril() if kind.KERNEL == "causal" else block)
        if kind.VISIBILITY == "causal":
            assert not mask[:4, :4].triu(1).any()
    for name in registry.names("attention/backends"):
        backend = registry.load("attention/backends", name)
        assert callable(backend.refuses)
        assert callable(backend.prepare)


def test_backend_by_its_old_name_is_the_same_and_resumes(tmp_path):
    path = _tiny.write(tmp_path)
    old = path.read_text(encoding="utf-8") + "attention: {backend: recompute}\n"
    path.write_text(old, encoding="utf-8")
    assert recipe.load(str(path)).recipe.attention.backend == "cpu_flash"
    sets = ("train.steps=4", "model.dropout=0.0")
    _tiny.pretrain(path, tmp_path / "run", *sets)
    # As a run of an earlier version has written it.
    written = tmp_path / "run" / "recipe.yaml"
    text = written.read_text(encoding="utf-8")
    assert "cpu_flash" in text
    written.write_text(text.replace("cpu_flash", "recompute"), encoding="utf-8")
    resolved = recipe.load(str(path), sets)
    assert changes.check_changes(RunDirectory(tmp_path / "run"), resolved, False) == []
