"""Grouped queries (Ainslie et al. 2023, arXiv:2305.13245): fewer heads of keys than of queries.

Oracle: the same attention with each head of keys and values repeated for its queries.
"""

import pytest
import torch

from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.request import Layout
from nlpkit.errors import Unsupported
from tests._attention import SETTINGS, TILED, attend_of, fields_of
from tests.parts.grouped import Config
from tests.parts.grouped.model import Model

HEADS, KEY_HEADS, WIDTH = 6, 3, 8
LENGTHS = [5, 1, 17, 9]
CASES = {
    "causal": AttentionChoice.of("causal"),
    "a learned bias": AttentionChoice.of("cpm_ant", **SETTINGS),
    "ranges": AttentionChoice.of("strided", stride=4),
    "groups of heads": AttentionChoice.of("strided", stride=4, pattern="split"),
    "own computation": AttentionChoice.of("linear"),
}
BACKENDS = ["reference", "sdpa", "cpu_flash", "sparse", TILED]


def _inputs(total: int, key_heads: int = KEY_HEADS, dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(total, HEADS, WIDTH, generator=draw).to(dtype)
    k, v = torch.randn(2, total, key_heads, WIDTH, generator=draw).to(dtype)
    return [x.clone().requires_grad_() for x in (q, k, v)]


def _attend(choice: AttentionChoice, layout: Layout, key_heads: int | None, backend="auto", **more):
    learned = choice.tensors(HEADS, WIDTH)
    draw = torch.Generator().manual_seed(1)
    options = {"dtype": torch.float64, "training": True} | more
    tensors = {
        n: torch.randn(t.shape, generator=draw).to(options["dtype"]) for n, t in learned.items()
    }
    return attend_of(
        choice, layout, heads=HEADS, head_dim=WIDTH, key_heads=key_heads, backend=backend,
        tensors=tensors, **options,
    )  # fmt: skip


def _repeated(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(HEADS // x.shape[1], dim=1)


@pytest.mark.parametrize("key_heads", [1, 2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_grouped_heads_equal_repeated_keys(name: str, backend: str, key_heads: int) -> None:
    choice = CASES[name]
    if choice.is_custom:
        backend = "auto"
    elif backend == "sparse" and choice.module.ranges is None:
        pytest.skip("the mask is not made of ranges")
    if choice.head_groups and key_heads == 3:
        pytest.skip("two groups of heads do not share three heads of keys")
    layout, more = Layout(LENGTHS), {"fields": fields_of(LENGTHS)}
    q, k, v = _inputs(sum(LENGTHS), key_heads)
    out = _attend(choice, layout, key_heads, backend, **more)(q, k, v)
    expected = _attend(choice, layout, None, backend, **more)(q, _repeated(k), _repeated(v))
    torch.testing.assert_close(out, expected, atol=1e-9, rtol=0)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).double()
    for ours, theirs in zip(
        *(torch.autograd.grad(each, (q, k, v), grad) for each in (out, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("name", ["causal", "a learned bias", "ranges", "groups of heads"])
def test_cache_keeps_the_heads_of_keys_alone(name: str, new: int) -> None:
    choice, heads = CASES[name], 2  # that the two groups of heads can share
    layers = [_inputs(40, heads, torch.float32) for _ in range(2)]
    fields = {n: x for n, x in fields_of([40], "tail").items() if x is not None}

    def feed(cache: Cache | None, key_heads: int | None, start: int, stop: int):
        layout = Layout([stop - start], "cpu", cache.begin([stop - start]) if cache else ())
        own = {n: x[start:stop] for n, x in fields.items()}
        options = {"fields": own, "cache": cache, "training": False, "dtype": torch.float32}
        attend = _attend(choice, layout, key_heads, **options)
        cut = [[x[start:stop].detach() for x in layer] for layer in layers]
        if key_heads is None:
            cut = [[q, _repeated(k), _repeated(v)] for q, k, v in cut]
        return [attend(*each) for each in cut]

    caches = Cache(), Cache()
    for start, stop in [(0, 25), *((at, at + new) for at in range(25, 40 - new, new))]:
        found, expected = (
            feed(cache, key_heads, start, stop)
            for cache, key_heads in zip(caches, (heads, None), strict=True)
        )
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    small, large = (
        sum(k.numel() for kept in cache._key_values.values() for k, _ in kept._layers)
        for cache in caches
    )
    assert small * HEADS == large * heads


def test_model_from_outside_generates_as_without_a_cache() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_positions": 64}
    rates = dict.fromkeys(("embedding_dropout", "attention_dropout", "residual_dropout"), 0.0)
    model = Model(Config(**sizes, **rates, num_key_heads=2), 50).eval()
    ids, cache = torch.randint(50, (20,)), Cache()
    with torch.no_grad():
        states = [model((7,), ids[:7], cache=cache)]
        states += [model((1,), ids[i : i + 1], cache=cache) for i in range(7, 20)]
        torch.testing.assert_close(torch.cat(states), model((20,), ids), atol=1e-6, rtol=1e-5)
    (kept,) = cache._key_values.values()
    assert {keys.shape[1] for keys, _ in kept._layers} == {2}


def test_heads_of_keys_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="4 heads of keys for 6 of queries"):
        _attend(CASES["causal"], Layout([2]), 4)
    with pytest.raises(Unsupported, match="2 kinds; the number of heads is 6, that of keys 3"):
        _attend(CASES["groups of heads"], Layout([2]), 3)
