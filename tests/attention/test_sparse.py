"""The kinds that are made of ranges: masks by their formulas, backends, heads.

The masks are built here by loops over positions, from Child et al. 2019 (sec. 4.3), from Beltagy et
al. 2020 (sec. 3.1) and from `spec/attention.md`. Attention is torch's softmax over these masks,
each document by itself.
"""

import math
import random

import pytest
import torch

from nlpkit import attention, recipe
from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.kernels.cuts import make_cuts
from nlpkit.attention.masks import count_pairs, dense_mask
from nlpkit.contracts.request import Heads, Layout, Request
from nlpkit.errors import RecipeError, Unsupported
from nlpkit.models.gpt2 import Config
from nlpkit.models.gpt2.model import Model
from tests._attention import TILED, WIDTH, attend_of

HEADS = 4
BACKENDS = ["sparse", "sdpa", "cpu_flash", TILED]
RAGGED = [5, 1, 17, 2, 33, 9]
CHOICES = [
    *(
        AttentionChoice.of("strided", stride=s, pattern=p)
        for s in (1, 4)
        for p in ("sa1", "sa2", "both")
    ),
    *(AttentionChoice.of("fixed", stride=6, summary=2, pattern=p) for p in ("fa1", "fa2", "both")),
    AttentionChoice.of("fixed", stride=4, summary=4),
    *(AttentionChoice.of("block_local", block=b, causal=c) for b in (1, 7) for c in (True, False)),
    *(AttentionChoice.of("group", groups=g) for g in (2, 3, 8)),
    *(
        AttentionChoice.of("longformer", window=w, dilation=d, global_tokens=g, causal=c)
        for w, d, g, c in (
            (2, 1, "none", False), (6, 1, "first", False), (4, 3, "first", False),
            (6, 2, "none", True), (4, 1, "first", True),
        )
    ),
]  # fmt: skip
SPLIT = [
    AttentionChoice.of("strided", stride=4, pattern="split"),
    AttentionChoice.of("fixed", stride=6, summary=2, pattern="split"),
    AttentionChoice.of("longformer", window=4, dilation=(1, 3), causal=True),
]


def _name(value):
    if isinstance(value, AttentionChoice):
        return "-".join([value.kind, *(str(setting) for _, setting in value.config)])
    return str(value)


all_choices = pytest.mark.parametrize("choice", CHOICES, ids=_name)


def _sees(choice, i, j, n):
    """Whether position i of n sees position j, by the formulas."""
    c = choice.config
    if choice.kind == "strided":
        # A1 = {i - l + 1 .. i}, A2 = {j <= i: (i - j) mod l = 0}
        near, in_step = 0 <= i - j < c.stride, j <= i and (i - j) % c.stride == 0
        return {"sa1": near, "sa2": in_step, "both": near or in_step}[c.pattern]
    if choice.kind == "fixed":
        # A1 = {j <= i: floor(j / l) = floor(i / l)}, A2 = {j mod l in l - c .. l - 1} of earlier
        # blocks: "if the stride is 128 and c = 8, all positions beyond 128 see 120 to 128".
        own = j <= i and j // c.stride == i // c.stride
        summary = j // c.stride < i // c.stride and j % c.stride in range(
            c.stride - c.summary, c.stride
        )
        return {"fa1": own, "fa2": summary, "both": own or summary}[c.pattern]
    if choice.kind == "longformer":
        # w / 2 tokens to each side, d apart; a global token sees all, and all see it.
        half = c.window // 2 * c.dilation
        window = range(i - half, i + half + 1, c.dilation)
        seen = j in window or (c.global_tokens == "first" and 0 in (i, j))
        return seen and (not c.causal or j <= i)
    if choice.kind == "block_local":
        return i // c.block == j // c.block and (not c.causal or j <= i)
    # Group i sees group (i + 1) mod M, M the number of groups that hold tokens.
    size = math.ceil(n / c.groups)
    parts = [range(start, min(start + size, n)) for start in range(0, n, size)]
    return j in parts[(i // size + 1) % len(parts)]


def _mask(choice, lengths):
    """The mask of a pack, by loops."""
    blocks = [torch.tensor([[_sees(choice, i, j, n) for j in range(n)] for i in range(n)])
              for n in lengths]  # fmt: skip
    return torch.block_diag(*blocks)


def _inputs(total, seed=0):
    rng = torch.Generator().manual_seed(seed)
    q, k, v, grad = torch.randn(4, total, HEADS, WIDTH, generator=rng)
    return [x.clone().requires_grad_() for x in (q, k, v)], grad


def _prepare(choice, layout, backend="auto", **more):
    facts = {"heads": HEADS, "training": "cache" not in more, "dtype": torch.float32} | more
    return attend_of(
        choice, layout, head_dim=WIDTH, device="cpu", backend=backend, **facts
    )  # fmt: skip


def _softmax(mask, q, k, v):
    """torch's softmax over a mask; the output of a row that sees nothing is zero."""
    scores = torch.einsum("qhd,khd->hqk", q, k) / WIDTH**0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    weights = torch.where(mask.any(-1)[:, None], weights, 0.0)
    return torch.einsum("hqk,khd->qhd", weights, v)


def _with_gradients(out, qkv, grad):
    return [out.detach(), *torch.autograd.grad(out, qkv, grad)]


# --- masks -----------------------------------------------------------------------------------


@all_choices
def test_mask_is_the_formula_and_its_pairs_are_counted(choice) -> None:
    for lengths in (RAGGED, [1], [2], [3], [12], [13], [4, 6, 8]):
        expected = _mask(choice, lengths)
        assert torch.equal(dense_mask(choice, Layout(lengths)), expected)
        assert count_pairs(choice, lengths) == expected.sum()


def test_masks_equal_drawings() -> None:
    drawings = {
        AttentionChoice.of("strided", stride=3, pattern="sa2"):
            ["x......", ".x.....", "..x....", "x..x...", ".x..x..", "..x..x.", "x..x..x"],
        AttentionChoice.of("fixed", stride=3, summary=1):
            ["x......", "xx.....", "xxx....", "..xx...", "..xxx..", "..xxxx.", "..x..xx"],
        AttentionChoice.of("block_local", block=3, causal=False):
            ["xxx....", "xxx....", "xxx....", "...xxx.", "...xxx.", "...xxx.", "......x"],
        AttentionChoice.of("group", groups=3):
            ["...xxx.", "...xxx.", "...xxx.", "......x", "......x", "......x", "xxx...."],
    }  # fmt: skip
    for choice, drawing in drawings.items():
        mask = dense_mask(choice, Layout([7])).tolist()
        assert ["".join("x" if seen else "." for seen in row) for row in mask] == drawing


def test_group_whose_padding_would_be_a_whole_part_sees_a_part_with_tokens() -> None:
    # 5 tokens in 4 parts of 2: the fourth would be padding, so the third part sees the first.
    mask = dense_mask(AttentionChoice.of("group", groups=4), Layout([5]))
    assert mask[4].tolist() == [True, True, False, False, False]
    assert dense_mask(AttentionChoice.of("group"), Layout([1])).item()


@pytest.mark.parametrize("choice", SPLIT, ids=_name)
def test_pairs_of_split_heads_are_the_mean_of_the_shares(choice) -> None:
    counted = [_mask(share, RAGGED).sum() for share in choice.head_groups]
    assert count_pairs(choice, RAGGED) == sum(counted) / 2


@all_choices
def test_pieces_have_each_visible_pair_once(choice) -> None:
    layout = Layout(RAGGED)
    seen = torch.zeros(layout.total, layout.total, dtype=torch.int64)
    for cut in make_cuts(_request(choice, layout)):
        queries, keys = (
            torch.arange(layout.total) if order.tokens is None else order.tokens
            for order in (cut.queries, cut.keys)
        )
        for block in cut.blocks:
            for tile in block.tiles:
                visible = torch.ones(
                    block.rows.stop - block.rows.start, tile.keys.stop - tile.keys.start
                )
                for columns, hidden in tile.hidden:
                    visible[:, columns] *= hidden == 0
                index = queries[block.rows][:, None], keys[tile.keys][None, :]
                seen[index] += visible.long()
    assert torch.equal(seen, _mask(choice, RAGGED).long())


# --- backends --------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@all_choices
def test_backend_equals_torchs_softmax_with_gradients(choice, backend) -> None:
    qkv, grad = _inputs(sum(RAGGED))
    expected = _with_gradients(_softmax(_mask(choice, RAGGED), *qkv), qkv, grad)
    layout = Layout(RAGGED)
    found = _with_gradients(_prepare(choice, layout, backend)(*qkv), qkv, grad)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(15))
def test_sparse_equals_reference_over_random_packs_and_settings(seed) -> None:
    # Documents and settings that fill several tiles, which the short packs above do not.
    rng = random.Random(seed)
    stride = rng.choice([1, 3, 16, 64, 100, 200])
    choice = [
        AttentionChoice.of(
            "strided", stride=stride, pattern=rng.choice(["sa1", "sa2", "both", "split"])
        ),
        AttentionChoice.of("fixed", stride=stride, summary=rng.randint(1, stride)),
        AttentionChoice.of("block_local", block=stride, causal=rng.random() < 0.5),
        AttentionChoice.of("group", groups=rng.randint(2, 9)),
        AttentionChoice.of(
            "longformer",
            window=2 * stride,
            dilation=rng.choice([1, 3, (1, 2)]),
            global_tokens=rng.choice(["none", "first"]),
            causal=rng.random() < 0.5,
        ),
    ][seed % 5]
    lengths = [rng.choice([1, 2, 30, 130, 260, 300]) for _ in range(rng.randint(1, 4))]
    qkv, grad = _inputs(sum(lengths), seed)
    layout = Layout(lengths)
    found, expected = (
        _with_gradients(_prepare(choice, layout, name)(*qkv), qkv, grad)
        for name in ("sparse", "reference")
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_sparse_splits_long_ranges_of_keys(monkeypatch) -> None:
    monkeypatch.setattr("nlpkit.attention.kernels.cuts._KEYS", 48)
    choice = AttentionChoice.of("fixed", stride=128, summary=40)
    qkv, grad = _inputs(700)
    found, expected = (
        _with_gradients(_prepare(choice, Layout([600, 100]), name)(*qkv), qkv, grad)
        for name in ("sparse", "reference")
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.fast_cases(15)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@all_choices
def test_sparse_passes_gradcheck(choice, dropout) -> None:
    rng = torch.Generator().manual_seed(0)
    layout = Layout([7, 1, 4])
    prepared = _prepare(choice, layout, "sparse", dtype=torch.float64, dropout=dropout)

    def attend(*qkv):
        torch.manual_seed(1)  # finite differences need the same mask each time
        return prepared(*qkv)

    qkv = [
        torch.randn(12, HEADS, WIDTH, generator=rng, dtype=torch.float64).requires_grad_()
        for _ in range(3)
    ]
    assert torch.autograd.gradcheck(attend, qkv, fast_mode=True)


def test_sparse_in_bfloat16_is_the_reference_of_the_same_inputs() -> None:
    qkv, grad = _inputs(sum(RAGGED))
    half = [x.detach().bfloat16().requires_grad_() for x in qkv]
    layout, choice = Layout(RAGGED), AttentionChoice.of("strided", stride=4)
    found, expected = (
        _with_gradients(_prepare(choice, layout, n, dtype=torch.bfloat16)(*half), half, grad)
        for n in ("sparse", "reference")
    )
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a, b, atol=3e-2, rtol=3e-2)


def test_sparse_computes_for_queries_that_are_some_of_the_tokens() -> None:
    # As encoders do in their last layer: only the masked tokens ask.
    rows = torch.tensor([0, 4, 5, 9, 20, 30])
    keys, layout = Layout([10, 25]), Layout([4, 2])
    qkv, _ = _inputs(35)
    for choice in CHOICES:
        if choice.visibility != "bidirectional":
            continue
        mask = _mask(choice, [10, 25])[rows]
        fields = {"position": keys.positions[rows], "length": keys.token_lengths[rows]}
        attend = _prepare(choice, layout, "sparse", fields=fields, keys=keys, key_fields={})
        q = qkv[0][rows]
        expected = _softmax(mask, q, *qkv[1:])
        torch.testing.assert_close(attend(q, *qkv[1:]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "choice",
    [CHOICES[5], *(pytest.param(c, marks=pytest.mark.slow) for c in (CHOICES[7], SPLIT[0]))],
    ids=_name,
)
def test_sparse_dropout_has_the_expectation_of_none_and_follows_the_seed(choice) -> None:
    qkv, grad = _inputs(15)
    layout = Layout([6, 9])
    dropping = _prepare(choice, layout, "sparse", dropout=0.4)
    with torch.no_grad():
        plain = _prepare(choice, layout, "sparse")(*qkv)
        torch.manual_seed(1)
        draws = torch.stack([dropping(*qkv) for _ in range(600)])
        torch.manual_seed(1)
        assert torch.equal(draws[0], dropping(*qkv))
        # Five standard errors of a mean of 600.
        bound = 5 * draws.std(0) / math.sqrt(len(draws)) + 1e-6
        assert ((draws.mean(0) - plain).abs() <= bound).all()
    # Backward draws what forward has drawn: the output is linear in v.
    torch.manual_seed(2)
    out = dropping(*qkv)
    (of_v,) = torch.autograd.grad(out, qkv[2], grad)
    assert (of_v * qkv[2]).sum().item() == pytest.approx((out * grad).sum().item(), rel=1e-4)


def _request(choice, layout, **changes) -> Request:
    fields = {"position": layout.positions, "length": layout.token_lengths}
    facts = {
        "kind": choice.module, "config": choice.config, "layout": layout, "keys": layout,
        "fields": fields, "key_fields": fields, "tensors": {}, "buffers": {}, "heads": HEADS,
        "key_heads": HEADS, "head_dim": WIDTH, "dtype": torch.float32, "training": True,
        "dropout": 0.0, "scale": 1.0,
    }  # fmt: skip
    return Request(**(facts | changes))


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("choice", "most"),
    [
        # A class of positions is a triangle of 64 tokens: 64 keys a row instead of 32.5.
        (AttentionChoice.of("strided", stride=128, pattern="sa2"), 2.0),
        # Blocks of 64 rows see the window and 63 tokens more.
        (AttentionChoice.of("strided", stride=430, pattern="sa1"), 1.2),
        (AttentionChoice.of("fixed", stride=128, summary=12), 1.4),
        (AttentionChoice.of("block_local", block=256), 1.5),
        (AttentionChoice.of("group", groups=20), 1.1),
        (AttentionChoice.of("longformer", window=512, causal=False), 1.4),
    ],
    ids=_name,
)  # fmt: skip
def test_sparse_computes_few_pairs_that_are_hidden(choice, most) -> None:
    # Counted, not timed: the pairs of the tiles over those of the mask, at 8,192 tokens.
    found = sum(
        (block.rows.stop - block.rows.start) * (tile.keys.stop - tile.keys.start)
        for cut in make_cuts(_request(choice, Layout([8192])))
        for block in cut.blocks
        for tile in block.tiles
    )
    assert found <= most * count_pairs(choice, [8192])


def test_auto_takes_sparse_on_cpus_and_windows_go_to_fused_kernels() -> None:
    layout = Layout([9])
    assert all(_prepare(choice, layout).reason == "sparse" for choice in CHOICES)
    assert _prepare(AttentionChoice.of("local_window"), layout).backend == "cpu_flash"  # as it was
    window = AttentionChoice.of("strided", stride=5, pattern="sa1")
    assert _request(window, layout).window == (4, 0)
    assert _request(AttentionChoice.of("strided", stride=5), layout).window is None


def test_sparse_refuses_with_the_reason() -> None:
    layout = Layout([3])
    with pytest.raises(Unsupported, match="sparse cannot do kind full: its mask is not made of"):
        _prepare(AttentionChoice.of("full"), layout, "sparse")
    with pytest.raises(Unsupported, match="flash cannot do kind strided: a mask that is neither"):
        _prepare(SPLIT[0].head_groups[1], layout, "flash")


# --- who may influence whom ------------------------------------------------------------------


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("choice", [*CHOICES, *SPLIT], ids=_name)
def test_changed_token_moves_only_those_that_see_it(choice, backend) -> None:
    lengths = [30, 21, 40]
    (q, k, v), _ = _inputs(91)
    attend = _prepare(choice, Layout(lengths), backend)
    changed = [x.detach().clone() for x in (q, k, v)]
    for x in changed:
        x[30 + 8 : 30 + 21] += 1.0
    before, after = attend(q, k, v), attend(*changed)
    assert torch.equal(before[:30], after[:30])
    assert torch.equal(before[51:], after[51:])
    if choice.visibility == "causal":
        assert torch.equal(before[:38], after[:38])
    assert not torch.equal(before[38:51], after[38:51])


# --- shares of heads -------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "reference", *BACKENDS])
@pytest.mark.parametrize("choice", SPLIT, ids=_name)
def test_halves_of_the_heads_see_their_own_patterns(choice, backend) -> None:
    qkv, grad = _inputs(sum(RAGGED))
    masks = [_mask(share, RAGGED) for share in choice.head_groups]
    halves = [
        _softmax(mask, *(x[:, own] for x in qkv))
        for mask, own in zip(masks, (slice(0, 2), slice(2, 4)), strict=True)
    ]
    expected = _with_gradients(torch.cat(halves, dim=1), qkv, grad)
    attend = _prepare(choice, Layout(RAGGED), backend)
    for a, b in zip(_with_gradients(attend(*qkv), qkv, grad), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_heads_that_cannot_be_halved_are_refused() -> None:
    with pytest.raises(
        Unsupported, match="shares the heads among 2 kinds; the number of heads is 3"
    ):
        _prepare(SPLIT[0], Layout([4]), heads=3)
    config = Config(hidden_size=24, num_heads=3)
    assert "the number of heads is 3" in str(config.refuses_attention(SPLIT[0]))
    assert Config(hidden_size=24, num_heads=4).refuses_attention(SPLIT[0]) is None


def test_backend_for_groups_of_heads_must_do_each_of_them() -> None:
    def check(backend: str) -> None:
        heads = Heads(4, 64, torch.float32, training=True, backend=backend)
        attention.check_backend(SPLIT[0], heads, torch.device("cpu"))

    check("sparse")
    with pytest.raises(Unsupported, match="flash cannot do kind strided"):
        check("flash")


# --- models ----------------------------------------------------------------------------------


def _model(*choices) -> Model:
    torch.manual_seed(0)
    config = Config(
        hidden_size=16, num_layers=4, num_heads=4, max_positions=64, attention=tuple(choices),
        attention_dropout=0.0,
    )  # fmt: skip
    model = Model(config, 40, "auto")
    model.reset_parameters()
    for parameter in model.parameters():  # so that attention matters
        parameter.data.mul_(6.0)
    return model.double().eval()  # so that rounding does not hide a difference


@pytest.mark.fast_cases(7)
@pytest.mark.parametrize(
    "choices",
    [
        [choice] for choice in CHOICES if choice.visibility == "causal"
    ] + [
        [choice] for choice in SPLIT
    ] + [
        [AttentionChoice.of("strided", stride=4, pattern=p) for p in ("sa1", "sa2")],
        # The first share of the second layer has the kind and settings of the first layer.
        [AttentionChoice.of("strided", stride=4, pattern="sa1"), SPLIT[0]],
        [
            AttentionChoice.of("causal"), SPLIT[1],
            AttentionChoice.of("fixed", stride=6, summary=2, pattern="fa2"),
        ],
    ],
    ids=lambda choices: "+".join(map(_name, choices)),
)  # fmt: skip
def test_generation_with_a_cache_equals_without(choices) -> None:
    model = _model(*choices)
    rng = torch.Generator().manual_seed(3)
    first, second = (torch.randint(40, (size,), generator=rng) for size in (19, 11))
    with torch.no_grad():
        whole = model([19, 11], torch.cat([first, second]))
        cache, at = Cache(), (10, 2)
        found = model(at, torch.cat([first[:10], second[:2]]), cache=cache)
        expected = torch.cat([whole[:10], whole[19:21]])
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
        for step in range(9):
            ids = torch.stack([first[10 + step], second[2 + step]])
            found = model([1, 1], ids, cache=cache)
            expected = torch.stack([whole[10 + step], whole[19 + 2 + step]])
            torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    "choice", [c for c in CHOICES if c.visibility == "bidirectional"], ids=_name
)
def test_generation_with_a_kind_that_looks_ahead_is_refused(choice) -> None:
    with pytest.raises(ValueError, match="tokens see later tokens in this attention"):
        _model(choice)([3], torch.arange(3), cache=Cache())


def test_block_local_looks_to_the_side_that_the_family_looks_to() -> None:
    from nlpkit.models import bert

    plain = AttentionChoice.of("block_local", block=4)
    (gpt,) = Config(attention=(plain,)).kinds
    (encoder,) = bert.Config(attention=(plain,)).kinds
    assert (gpt.visibility, encoder.visibility) == ("causal", "bidirectional")
    assert gpt == AttentionChoice.of("block_local", block=4, causal=True)


# --- recipes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt1", "gpt2", "gpt3_small", "t5", "transformer"])
@pytest.mark.parametrize("pattern", ["sa1", "split"])
def test_recipes_take_a_kind_from_the_command_line(name, pattern) -> None:
    sets = ["attention.kind=strided", f"attention.pattern={pattern}"]
    if name == "gpt3_small":  # has kinds for its layers
        sets = [f"attention.layers=[{{kind: strided, pattern: {pattern}}}]"]
    loaded = recipe.load(name, sets).recipe
    assert loaded.attention.choices == (AttentionChoice.of("strided", pattern=pattern),)


@pytest.mark.parametrize(
    ("name", "sets", "said"),
    [
        ("gpt2", ["attention.kind=group"], "group is bidirectional, and clm needs causal"),
        ("bert", ["attention.kind=fixed"], "fixed is causal, and mlm needs bidirectional"),
        ("t5", ["attention.kind=group"], "the decoder needs a kind that sees nothing to the right"),
        ("cpm_ant", ["attention.kind=strided"], "settings of model; kinds that fit: cpm_ant"),
        ("gpt2", ["attention.kind=fixed", "attention.summary=129"],
         "129 is more than the 128 tokens of a block (stride)"),
        ("gpt2", ["attention.kind=strided", "attention.pattern=split", "model.num_heads=1"],
         "it shares the heads among 2 kinds; the number of heads is 1"),
    ],
)  # fmt: skip
def test_recipe_that_cannot_have_a_kind_is_refused_with_the_reason(name, sets, said) -> None:
    with pytest.raises(RecipeError) as error:
        recipe.load(name, sets)
    problem = next(p for p in error.value.problems if said in p)
    assert problem.startswith("--set attention.")


def test_layer_that_does_not_fit_is_refused_with_its_line(tmp_path) -> None:
    text = recipe.packaged()["gpt3_small"].read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("{kind: local_window, window: 32}", "{kind: group}"), "utf-8")
    with pytest.raises(RecipeError) as error:
        recipe.load(str(path))
    (problem,) = error.value.problems
    line = 1 + text[: text.index("layers: [")].count("\n")
    assert problem.startswith(f"{path}:{line}:")
    assert "attention.layers.1.kind: group is bidirectional, and clm needs causal" in problem
    fitting = problem.split("kinds that fit: ")[1].split(", ")
    assert {"block_local", "causal", "fixed", "linear"} <= {*fitting}
    assert not {"full", "group", "relative"} & {*fitting}
