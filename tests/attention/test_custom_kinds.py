"""Kinds that compute themselves: the fast forms against the formulas, and who influences whom.

The expected numbers come from the formulas of the papers, written here or in the kinds'
`_attention_formulas`, which `test_reference_is_the_formula_of_the_paper` checks.
"""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.forms import aft, chunks, compressed
from nlpkit.attention.kinds import relative
from nlpkit.attention.masks import dense_mask
from nlpkit.contracts.request import Layout
from nlpkit.errors import Unsupported
from nlpkit.models.layers.embeddings import sinusoids
from tests._attention import HEADS, PACKS, WIDTH, attend_of
from tests._attention_formulas import reference

CASES = {
    "linear": AttentionChoice.of("linear"),
    "linear both ways": AttentionChoice.of("linear", causal=False),
    "cosformer": AttentionChoice.of("cosformer", max_length=300),
    "cosformer both ways": AttentionChoice.of("cosformer", max_length=300, causal=False),
    "aft full": AttentionChoice.of("aft", max_length=300, rank=4),
    "aft full both ways": AttentionChoice.of("aft", max_length=300, rank=4, causal=False),
    "aft local": AttentionChoice.of("aft", form="local", window=5, max_length=300, rank=4),
    "aft local both ways": AttentionChoice.of(
        "aft", form="local", window=5, max_length=300, rank=4, causal=False
    ),
    "aft simple": AttentionChoice.of("aft", form="simple"),
    "aft simple both ways": AttentionChoice.of("aft", form="simple", causal=False),
    "memory_compressed": AttentionChoice.of("memory_compressed"),
    "memory_compressed both ways": AttentionChoice.of("memory_compressed", causal=False),
    "relative_keys": AttentionChoice.of("relative_keys", max_distance=4),
    "relative_keys both ways": AttentionChoice.of("relative_keys", max_distance=4, causal=False),
    "disentangled": AttentionChoice.of("disentangled", buckets=8, max_distance=30),
    "disentangled both ways": AttentionChoice.of(
        "disentangled", buckets=0, max_distance=9, causal=False
    ),
    "disentangled both ways, c2p": AttentionChoice.of("disentangled", terms="c2p", causal=False),
    "lsh": AttentionChoice.of("lsh", chunk=4, buckets=6, rounds=3),
    "lsh both ways": AttentionChoice.of("lsh", chunk=4, buckets=6, rounds=3, causal=False),
    "relative_keys without values": AttentionChoice.of("relative_keys", values=False),
}
OF_ALL_PAIRS = (
    "disentangled",
    "lsh",
    "memory",
    "relative",
)  # whose reference is no sum of weights, one by one
CAUSAL = [name for name in CASES if "both ways" not in name]


def _learned(choice: AttentionChoice, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    wanted = choice.module.tensors(choice.config, HEADS, WIDTH)
    return {
        name: torch.randn(each.shape, generator=draw).to(dtype).requires_grad_()
        for name, each in wanted.items()
    }


def _inputs(total: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return q, k, v and a gradient."""
    draw = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, total, HEADS, WIDTH, generator=draw).to(dtype)
    return [*(x.clone().requires_grad_() for x in drawn[:3]), drawn[3]]


def _prepare(choice: AttentionChoice, lengths: list[int], dtype=torch.float64, **options):
    return attend_of(
        choice, Layout(lengths), heads=HEADS, head_dim=WIDTH, dtype=dtype, device="cpu",
        **{"training": True, **options},
    )  # fmt: skip


def _reference(choice: AttentionChoice, lengths: list[int], q, k, v, learned) -> Tensor:
    parts = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    return torch.cat([reference(choice, *part, learned) for part in parts])


# --- the formulas ----------------------------------------------------------------------------


def _tolerance(name: str, dtype: torch.dtype) -> float:
    if dtype == torch.float64:
        return 1e-9
    # With ReLU features a sum of weights may be near 0, and its gradient far from exact.
    return 4e-5 if "cosformer" in name else 1e-5


@pytest.mark.fast_cases(24)
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("name", CASES)
def test_fast_form_equals_reference(name: str, pack: str, dtype, monkeypatch) -> None:
    # Small tiles and groups, so that several of them are met.
    monkeypatch.setattr(compressed, "_TILE", 40)
    monkeypatch.setattr(chunks, "_GROUP", 2 * chunks.CHUNK * HEADS * WIDTH)
    monkeypatch.setattr(aft, "_CHUNK", 16)
    monkeypatch.setattr(aft, "_LARGE_CHUNK", 64)
    choice, lengths = CASES[name], PACKS[pack]
    q, k, v, grad = _inputs(sum(lengths), dtype)
    learned = _learned(choice, dtype)
    wanted = [q, k, v, *learned.values()]
    out = _prepare(choice, lengths, dtype)(q, k, v, learned)
    expected = _reference(choice, lengths, q, k, v, learned)
    found = [out, *torch.autograd.grad(out, wanted, grad)]
    right = [expected, *torch.autograd.grad(expected, wanted, grad)]
    for ours, theirs in zip(found, right, strict=True):
        largest = theirs.abs().max().clamp(min=1).item()
        torch.testing.assert_close(ours, theirs, atol=_tolerance(name, dtype) * largest, rtol=0)


def _weight(name: str, choice: AttentionChoice, w: Tensor | None, q, k, i: int, j: int) -> Tensor:
    """Return the weight of key j for query i in a head, one or (D,): the formula of the paper."""
    if name.startswith("linear"):
        return (F.elu(q[i]) + 1) @ (F.elu(k[j]) + 1)
    if name.startswith("cosformer"):
        cosine = math.cos(math.pi / 2 * (i - j) / choice.config.max_length)
        return F.relu(q[i]) @ F.relu(k[j]) * cosine
    near = "local" not in name or abs(i - j) < choice.config.window
    return torch.exp(k[j] + (w[i, j] if w is not None and near else 0))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(OF_ALL_PAIRS)])
def test_reference_is_the_formula_of_the_paper(name: str) -> None:
    # Katharopoulos et al. 2020, eq. 4; Qin et al. 2022, sec. 3; Zhai et al. 2021, eq. 2.
    choice, n = CASES[name], 11
    q, k, v, _ = _inputs(n)
    learned = _learned(choice)
    w = learned["query_bias"] @ learned["key_bias"].T if learned else None
    found = reference(choice, q, k, v, learned)
    for head in range(HEADS):
        for i in range(n):
            seen = range(i + 1) if name in CAUSAL else range(n)
            own, keys = q[:, head], k[:, head]
            weights = [_weight(name, choice, w, own, keys, i, j) for j in seen]
            # The authors of cosFormer keep the sum of weights, which may be 0, at 1e-6 or more.
            total = sum(weights).clamp(min=1e-6)
            right = sum(a * v[j, head] for a, j in zip(weights, seen, strict=True)) / total
            gate = own[i].sigmoid() if name.startswith("aft") else 1
            torch.testing.assert_close(found[i, head], gate * right)


@pytest.mark.parametrize("causal", [True, False])
def test_memory_compressed_is_a_convolution_of_torch_and_full_attention(causal: bool) -> None:
    choice, n = AttentionChoice.of("memory_compressed", causal=causal), 11
    q, k, v, _ = _inputs(n)
    learned = _learned(choice)
    kept = n // 3 * 3 if causal else n

    def shortened(x: Tensor, kernel: Tensor) -> Tensor:
        # torch: (channels, length), weight (out, in of the group, kernel); zeros fill the end.
        filled = F.pad(x[:kept].flatten(1).T, (0, -kept % 3))
        weight = kernel.permute(0, 3, 2, 1).flatten(0, 1)
        return F.conv1d(filled, weight, stride=3, groups=HEADS).T.unflatten(1, (HEADS, WIDTH))

    keys, values = shortened(k, learned["key_kernel"]), shortened(v, learned["value_kernel"])
    out = _prepare(choice, [n])(q, k, v, learned)
    for i in range(n):
        seen = (i + 1) // 3 if causal else len(keys)
        own_keys, own_values = keys[:seen], values[:seen]
        if causal:  # Also the start, which is all that the first two tokens see.
            own_keys = torch.cat([learned["start_key"][None], own_keys])
            own_values = torch.cat([learned["start_value"][None], own_values])
        weights = (torch.einsum("hd,jhd->jh", q[i], own_keys) / WIDTH**0.5).softmax(0)
        torch.testing.assert_close(out[i], torch.einsum("jh,jhd->hd", weights, own_values))
        if causal and i < 2:
            torch.testing.assert_close(out[i], learned["start_value"])


@pytest.mark.parametrize("width", [12, 15])
def test_distances_of_relative_are_sinusoids_of_any_width(width: int) -> None:
    one = torch.eye(width).view(width, 3, -1)
    rows = relative._make_distance_keys(SimpleNamespace(dropout=0.0), torch.arange(9), one)
    torch.testing.assert_close(rows.flatten(1), sinusoids(9, width))  # Vaswani et al. 2017


@pytest.mark.parametrize("causal", [True, False])
def test_relative_keys_are_added_by_the_clipped_distance(causal: bool) -> None:
    # Shaw et al. 2018, eq. 3-5, pair by pair; w_k of the paper is row k + max_distance.
    choice = AttentionChoice.of("relative_keys", max_distance=2, causal=causal)
    q, k, v, _ = _inputs(6)
    learned = _learned(choice)
    assert learned["key_table"].shape == (3 if causal else 5, WIDTH)
    out = _prepare(choice, [6])(q, k, v, learned)
    for head in range(HEADS):
        for i in range(6):
            seen = range(i + 1) if causal else range(6)
            rows = [max(-2, min(2, j - i)) + 2 for j in seen]
            keys = [
                k[j, head] + learned["key_table"][row] for j, row in zip(seen, rows, strict=True)
            ]
            values = [
                v[j, head] + learned["value_table"][row] for j, row in zip(seen, rows, strict=True)
            ]
            weights = (torch.stack(keys) @ q[i, head] / WIDTH**0.5).softmax(0)
            torch.testing.assert_close(out[i, head], weights @ torch.stack(values))


@pytest.mark.parametrize("causal", [True, False])
def test_lsh_with_one_bucket_and_one_chunk_is_full_attention_of_shared_vectors(causal) -> None:
    # Vectors near one direction share their bucket in every round. Oracle: torch's attention.
    choice = AttentionChoice.of("lsh", chunk=20, buckets=8, rounds=2, causal=causal)
    drawn, _, v, grad = _inputs(20)
    x = (10 + 0.1 * drawn.detach()).requires_grad_()
    out = _prepare(choice, [20])(x / 2**0.5, x / 2**0.5, v)
    keys = x * WIDTH**0.5 / x.norm(dim=2, keepdim=True)
    mask = torch.ones(20, 20).tril().bool() if causal else torch.ones(20, 20).bool()
    mask = mask & ~torch.eye(20).bool()
    mask[0, 0] |= causal  # the first token sees nothing else
    heads = (each.transpose(0, 1) for each in (x, keys, v))
    right = F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(0, 1)
    torch.testing.assert_close(out, right, atol=1e-6, rtol=1e-6)
    found, wanted = (torch.autograd.grad(each, (x, v), grad) for each in (out, right))
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)


def test_lsh_follows_its_seed_and_computes_few_pairs_of_a_long_text() -> None:
    q, k, v, _ = (x.detach() for x in _inputs(300))
    outs = [
        _prepare(AttentionChoice.of("lsh", chunk=8, seed=seed), [300])(q, k, v)
        for seed in (0, 0, 1)
    ]
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    choice = AttentionChoice.of("lsh", chunk=8, rounds=2)
    assert choice.module.pairs(choice.config, [16384]) == 16384 * 2 * 3 * 8


def test_causal_linear_attention_is_the_recurrence_that_carries_its_sums() -> None:
    # Katharopoulos et al. 2020, eq. 18-20, in each document from zero.
    lengths = [150, 3, 70]
    q, k, v, _ = _inputs(sum(lengths))
    out = _prepare(CASES["linear"], lengths)(q, k, v)
    starts = Layout(lengths).starts
    for i in range(sum(lengths)):
        if i in starts:
            S, Z = torch.zeros(HEADS, WIDTH, WIDTH).double(), torch.zeros(HEADS, WIDTH).double()
        phi_q, phi_k = F.elu(q[i]) + 1, F.elu(k[i]) + 1
        S, Z = S + torch.einsum("hd,he->hde", phi_k, v[i]), Z + phi_k
        expected = torch.einsum("hd,hde->he", phi_q, S) / (phi_q * Z).sum(-1, keepdim=True)
        torch.testing.assert_close(out[i], expected)


# --- who influences whom ---------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_changed_future_token_never_changes_the_past(name: str) -> None:
    choice, lengths = CASES[name], [90, 31]
    learned = _learned(choice, torch.float32)
    given = [x.detach() for x in _inputs(121, torch.float32)[:3]]
    attend = _prepare(choice, lengths, torch.float32)
    before = attend(*given, learned)
    for x in given:
        x[70:90] += 20.0
    after = attend(*given, learned)
    if name == "lsh":  # later tokens move others to other places of a product, which rounds so
        torch.testing.assert_close(before[:70], after[:70], atol=1e-6, rtol=1e-5)
    else:
        assert torch.equal(before[:70], after[:70])
    assert torch.equal(before[90:], after[90:])
    assert not torch.equal(before[70:90], after[70:90])


@pytest.mark.parametrize("name", CASES)
def test_changed_document_leaves_its_neighbours_bitwise(name: str) -> None:
    choice, lengths = CASES[name], [80, 21, 70]
    learned = _learned(choice, torch.float32)
    q, k, v, grad = _inputs(171, torch.float32)
    attend = _prepare(choice, lengths, torch.float32)

    def run(shift: float) -> list[Tensor]:
        changed = [x.detach().clone() for x in (q, k, v)]
        for x in changed:
            x[80:101] += shift
            x.requires_grad_()
        out = attend(*changed, learned)
        return [out.detach(), *torch.autograd.grad(out, changed, grad)]

    for a, b in zip(run(0.0), run(1.0), strict=True):
        assert torch.equal(a[:80], b[:80])
        assert torch.equal(a[101:], b[101:])
        assert not torch.equal(a[80:101], b[80:101])


@pytest.mark.parametrize(
    ("name", "drawing"),
    [
        ("linear", ["x....", "xx...", "xxx..", "xxxx.", "....x"]),
        ("aft simple both ways", ["xxxx.", "xxxx.", "xxxx.", "xxxx.", "....x"]),
        ("memory_compressed", [".....", ".....", "xxx..", "xxx..", "....."]),
    ],
)
def test_mask_that_is_drawn_shows_which_tokens_count(name: str, drawing: list[str]) -> None:
    mask = dense_mask(CASES[name], Layout([4, 1]))
    assert ["".join("x" if seen else "." for seen in row) for row in mask.tolist()] == drawing


def test_pairs_of_memory_compressed_are_those_of_queries_and_what_they_see() -> None:
    choice = CASES["memory_compressed"]
    by_hand = sum(1 + (i + 1) // 3 for n in (1, 2, 3, 11) for i in range(n))
    assert choice.module.pairs(choice.config, [1, 2, 3, 11]) == by_hand


@pytest.mark.parametrize(
    ("name", "pairs"),
    # The pairs of 3 and 9 tokens; or, for each of 12 tokens, window or nothing and its sum.
    [("aft full", 6 + 45), ("aft full both ways", 9 + 81), ("aft local", 72), ("aft simple", 12)],
)
def test_pairs_of_aft_are_those_with_weights_and_a_sum_a_token(name: str, pairs: int) -> None:
    choice = CASES[name]
    assert choice.module.pairs(choice.config, [3, 9]) == pairs


def test_pairs_of_local_aft_are_no_more_than_there_are_tokens() -> None:
    choice = CASES["aft local"]
    assert choice.module.pairs(choice.config, [3, 2]) == (3 + 1) * 5


# --- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["aft full", "aft local", "aft simple", "aft simple both ways"])
def test_aft_with_keys_far_apart_is_exact(name: str) -> None:
    # exp(400) is no float32: without its maximum a sum would be infinite or 0.
    choice, lengths = CASES[name], [70, 5]
    q, k, v, _ = (x.detach() for x in _inputs(75, torch.float32))
    learned = _learned(choice, torch.float32)
    out = _prepare(choice, lengths, torch.float32)(q, 100 * k, v, learned)
    expected = _reference(choice, lengths, q, 100 * k, v, learned)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_aft_that_writes_with_keys_far_apart_is_exact() -> None:
    # As above: one token after the other, after a first key of 0.
    k = torch.tensor([[0.0], [400.0], [-400.0], [399.0], [401.0]])
    v = torch.arange(1.0, 6.0)[:, None]
    found, _ = aft.continue_means(k[1:], v[1:], aft.weigh(k[:1], v[:1]))
    weights = (k.view(-1).repeat(5, 1) + torch.full((5, 5), -torch.inf).triu(1)).softmax(1)
    torch.testing.assert_close(found.float(), (weights @ v)[1:])


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_inputs_are_summed_in_float32(name: str) -> None:
    # A sum in bfloat16 stops at 256: 256 + 1 is 256 there. Values are 0 first, then 1.
    choice, n = CASES[name], 300
    q, k = torch.zeros(2, n, HEADS, WIDTH) + 0.5
    v = (torch.arange(n) >= n // 2).float()[:, None, None].expand(n, HEADS, WIDTH)
    learned = _learned(choice, torch.float32)
    learned = {name: tensor.detach() / 10 for name, tensor in learned.items()}
    out = _prepare(choice, [n], torch.bfloat16)(q.bfloat16(), k.bfloat16(), v.bfloat16(), learned)
    assert out.dtype == torch.bfloat16
    expected = _reference(choice, [n], q, k, v, learned)
    torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", ["linear", "cosformer", "cosformer both ways"])
def test_query_without_any_weight_gets_zeros_and_finite_gradients(name: str) -> None:
    # relu(-50) is 0, elu(-200) + 1 is 0 in float32.
    q, k, v, grad = _inputs(20, torch.float32)
    low = q - 200
    out = _prepare(CASES[name], [20], torch.float32)(low, k, v)
    assert torch.equal(out, torch.zeros_like(out))
    assert all(x.isfinite().all() for x in torch.autograd.grad(out, [q, k, v], grad))


@pytest.mark.parametrize("name", ["cosformer", "cosformer both ways"])
def test_sum_of_weights_below_the_least_is_a_constant(name: str) -> None:
    # Products of 1e-4 and 1e-4 are less than the least sum, 1e-6; so is their sum.
    given = _inputs(20)
    q, k, v = ((x * scale).detach().requires_grad_()
               for x, scale in zip(given, (1e-4, 1e-4, 1), strict=False))  # fmt: skip
    out = _prepare(CASES[name], [20])(q, k, v)
    expected = _reference(CASES[name], [20], q, k, v, {})
    for each in (q, k, v):
        (ours,) = torch.autograd.grad(out, each, given[3], retain_graph=True)
        (theirs,) = torch.autograd.grad(expected, each, given[3], retain_graph=True)
        torch.testing.assert_close(ours, theirs)


def test_dropout_of_memory_compressed_follows_the_seed_and_has_the_expectation_of_none() -> None:
    choice = CASES["memory_compressed both ways"]
    q, k, v, _ = (x.detach() for x in _inputs(12))
    learned = {name: tensor.detach() for name, tensor in _learned(choice).items()}
    plain = _prepare(choice, [12])(q, k, v, learned)
    attend = _prepare(choice, [12], dropout=0.3)
    torch.manual_seed(3)
    draws = torch.stack([attend(q, k, v, learned) for _ in range(2000)])
    torch.manual_seed(3)
    assert torch.equal(draws[0], attend(q, k, v, learned))
    bound = 5 * draws.std(0) / math.sqrt(len(draws)) + 1e-6  # five standard errors
    assert ((draws.mean(0) - plain).abs() <= bound).all()


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_cross_attention_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=r"is for self-attention, not for cross attention"):
        _prepare(CASES[name], [2], keys=Layout([3]))


@pytest.mark.parametrize("name", ["linear", "cosformer", "aft full"])
def test_dropout_is_refused_where_there_are_no_probabilities(name: str) -> None:
    with pytest.raises(Unsupported, match="has no probabilities for dropout"):
        _prepare(CASES[name], [2], dropout=0.1)


@pytest.mark.parametrize("name", ["cosformer", "aft full", "aft local both ways"])
def test_sequence_longer_than_max_length_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=r"a sequence of 301 tokens; .* for max_length 300"):
        _prepare(CASES[name], [4, 301])


def test_kind_without_the_length_that_a_family_gives_it_is_refused() -> None:
    with pytest.raises(Unsupported, match="attention kind cosformer is made for max_length None"):
        _prepare(AttentionChoice.of("cosformer"), [2])
