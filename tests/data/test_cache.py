"""The cache of keys and values against computing every sequence anew, whole.

B sequences, T tokens, H heads, D width of a head.
"""

import random

import pytest
import torch
from torch import Tensor

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.request import Layout
from tests._attention import attend_of

HEADS, WIDTH, LAYERS = 3, 8, 2
SETTINGS = {"num_buckets": 16, "max_distance": 20, "segment_types": 3}
CASES = {"causal": {}, "cpm_ant": SETTINGS, "relative_bias_causal": {"num_buckets": 8}}
LENGTHS = (5, 1, 33, 12)  # one crosses the cache's first capacity


def _table(kind: str) -> Tensor | None:
    generator = torch.Generator().manual_seed(5)
    rows = {"cpm_ant": 16 + 9, "relative_bias_causal": 8}.get(kind)
    return None if rows is None else torch.randn(rows, HEADS, generator=generator)


def _attend(
    kind: str,
    lengths: tuple[int, ...],
    fields: dict[str, Tensor],
    cache: Cache | None,
    dtype: torch.dtype = torch.float32,
):
    table = _table(kind)
    return attend_of(
        AttentionChoice.of(kind, **CASES[kind]),
        attention.layout_of(lengths, "cpu", cache),
        fields=fields,
        heads=HEADS,
        head_dim=WIDTH,
        dtype=dtype,
        device="cpu",
        training=False,
        tensors={} if table is None else {"table": table},
        backend="auto" if cache is not None else "reference",
        cache=cache,
    )


class _Sequence:
    """A sequence of random tokens: the first `given` context, the others targets; q, k, v."""

    def __init__(self, number: int, given: int):
        draw = torch.Generator().manual_seed(number)
        size = 80
        self.given = given
        self.qkv = torch.randn(LAYERS, 3, size, HEADS, WIDTH, generator=draw)
        place = torch.arange(size)
        self.fields = {
            "context": place < given,
            "position": place,
            "segment": torch.where(place < min(given, 3), 0, 1 + number % 2),
        }

    def whole(self, kind: str, layer: int, length: int) -> Tensor:
        """Return the attention of the first `length` tokens, by the formula."""
        fields = {name: value[:length] for name, value in self.fields.items()}
        return _attend(kind, (length,), fields, None)(*self.qkv[layer, :, :length])


def _feed(
    kind: str,
    sequences: list[_Sequence],
    old: list[int],
    new: list[int],
    cache: Cache,
    dtype: torch.dtype = torch.float32,
):
    """Return the output of each layer for tokens `old` to `new` of each sequence, as lists."""
    spans = list(zip(sequences, old, new, strict=True))
    fields = {n: torch.cat([s.fields[n][a:b] for s, a, b in spans]) for n in sequences[0].fields}
    sizes = tuple(b - a for _, a, b in spans)
    attend = _attend(kind, sizes, fields, cache, dtype)
    outs = []
    for layer in range(LAYERS):
        qkv = (torch.cat([s.qkv[layer, i, a:b] for s, a, b in spans]) for i in range(3))
        q, k, v = (each.to(dtype) for each in qkv)
        outs.append(attend(q, k, v).split(sizes))
    return outs


def _assert_equal_to_whole(kind, sequences, old, new, outs) -> None:
    for layer, parts in enumerate(outs):
        for sequence, a, b, part in zip(sequences, old, new, parts, strict=True):
            expected = sequence.whole(kind, layer, b)[a:]
            torch.testing.assert_close(part, expected, atol=2e-6, rtol=1e-5)


def _started(kind: str) -> tuple[list[_Sequence], list[int], Cache]:
    sequences = [_Sequence(i, length) for i, length in enumerate(LENGTHS)]
    cache = Cache()
    outs = _feed(kind, sequences, [0] * len(LENGTHS), list(LENGTHS), cache)
    _assert_equal_to_whole(kind, sequences, [0] * len(LENGTHS), list(LENGTHS), outs)
    return sequences, list(LENGTHS), cache


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("new", [1, 3])
def test_cache_new_tokens_of_ragged_sequences_equal_whole(kind: str, new: int) -> None:
    sequences, old, cache = _started(kind)
    for _ in range(12):
        ends = [length + new for length in old]
        outs = _feed(kind, sequences, old, ends, cache)
        _assert_equal_to_whole(kind, sequences, old, ends, outs)
        old = ends
    assert cache.lengths == old


@pytest.mark.parametrize("kind", CASES)
def test_cache_in_bfloat16_equals_whole_as_closely_as_its_output_is_rounded(kind: str) -> None:
    sequences = [_Sequence(i, length) for i, length in enumerate(LENGTHS)]
    for sequence in sequences:
        sequence.qkv = sequence.qkv.bfloat16().float()
    old, cache = list(LENGTHS), Cache()
    _feed(kind, sequences, [0] * len(old), old, cache, torch.bfloat16)
    for _ in range(3):
        ends = [length + 1 for length in old]
        for layer, parts in enumerate(_feed(kind, sequences, old, ends, cache, torch.bfloat16)):
            for sequence, end, part in zip(sequences, ends, parts, strict=True):
                assert part.dtype == torch.bfloat16
                expected = sequence.whole(kind, layer, end)[-1:]
                torch.testing.assert_close(part.float(), expected, atol=2**-9, rtol=2**-8)
        old = ends


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("indices", [[2, 0], [3, 3, 1, 0, 0], [0, 2, 1, 3], [0, 1], [1]])
def test_cache_selected_sequences_go_on_as_themselves(kind: str, indices: list[int]) -> None:
    sequences, old, cache = _started(kind)
    cache.select(indices)
    sequences = [sequences[i] for i in indices]
    old = [old[i] for i in indices]
    for _ in range(2):
        ends = [length + 1 for length in old]
        outs = _feed(kind, sequences, old, ends, cache)
        _assert_equal_to_whole(kind, sequences, old, ends, outs)
        old = ends


@pytest.mark.parametrize("kind", CASES)
def test_cache_appended_sequences_go_on_beside_the_others(kind: str) -> None:
    sequences, old, cache = _started(kind)
    for start, lengths in ((10, (2,)), (20, (40, 7, 9))):  # more rows, then more tokens
        added = [_Sequence(start + i, length) for i, length in enumerate(lengths)]
        other = Cache()
        _feed(kind, added, [0] * len(lengths), list(lengths), other)
        cache.append(other)
        sequences, old = sequences + added, old + list(lengths)
        ends = [length + 1 for length in old]
        outs = _feed(kind, sequences, old, ends, cache)
        _assert_equal_to_whole(kind, sequences, old, ends, outs)
        old = ends


def test_cache_emptied_and_refilled_starts_anew() -> None:
    _, _, cache = _started("cpm_ant")
    cache.select([])
    assert len(cache) == 0
    sequences, old, other = _started("cpm_ant")
    cache.append(other)
    ends = [length + 1 for length in old]
    outs = _feed("cpm_ant", sequences, old, ends, cache)
    _assert_equal_to_whole("cpm_ant", sequences, old, ends, outs)


def test_cache_position_decides_not_the_order_of_arrival() -> None:
    # A target at place 2 arrives after the context at places 0, 1, 3, 4: as in blank filling.
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, HEADS, WIDTH, generator=draw) for _ in range(3))
    position = torch.tensor([0, 1, 3, 4, 2])
    fields = {
        "position": position,
        "context": position != 2,
        "segment": torch.ones(5, dtype=torch.int64),
    }
    cache = Cache()
    first = {name: value[:4] for name, value in fields.items()}
    _attend("cpm_ant", (4,), first, cache)(q[:4], k[:4], v[:4])
    last = {name: value[4:] for name, value in fields.items()}
    out = _attend("cpm_ant", (1,), last, cache)(q[4:], k[4:], v[4:])
    order = position.argsort()
    ordered = {name: value[order] for name, value in fields.items()}
    whole = _attend("cpm_ant", (5,), ordered, None)(q[order], k[order], v[order])
    torch.testing.assert_close(out[0], whole[2], atol=2e-6, rtol=1e-5)


def test_cache_unequal_numbers_of_new_tokens_are_refused() -> None:
    sequences, old, cache = _started("causal")
    with pytest.raises(ValueError, match=r"4 sequences is given new tokens \(1, 1, 1, 2\)"):
        _feed(
            "causal", sequences, old, [o + n for o, n in zip(old, (1, 1, 1, 2), strict=True)], cache
        )


def test_cache_of_full_attention_or_in_training_is_refused() -> None:
    def prepare(kind: str, training: bool) -> None:
        attend_of(
            AttentionChoice.of(kind), Layout([3]), heads=1, head_dim=4, dtype=torch.float32,
            device="cpu", training=training, cache=Cache(),
        )  # fmt: skip

    with pytest.raises(ValueError, match="see later tokens"):
        prepare("full", False)
    with pytest.raises(ValueError, match="evaluation mode"):
        prepare("causal", True)


def test_layout_positions_go_on_after_the_cache() -> None:
    layout = Layout([2, 2], past=[5, 0])
    assert layout.positions.tolist() == [5, 6, 0, 1]
    assert layout.longest == 7


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_cache_after_any_order_of_operations_equals_whole(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    sequences, old, cache = _started(kind)
    for step in range(25):
        what = draw.choice(["select", "append", "feed", "feed", "feed"])
        if what == "select" and len(old) > 1:
            size = draw.randint(1, min(len(old) + 1, 9))
            indices = [draw.randrange(len(old)) for _ in range(size)]
            cache.select(indices)
            sequences, old = [sequences[i] for i in indices], [old[i] for i in indices]
        elif what == "append":
            lengths = [draw.randint(1, 20) for _ in range(draw.randint(1, 3))]
            added = [_Sequence(100 * step + i, length) for i, length in enumerate(lengths)]
            other = Cache()
            _feed(kind, added, [0] * len(added), lengths, other)
            cache.append(other)
            sequences, old = sequences + added, old + lengths
        new = draw.choice([1, 1, 2])
        ends = [length + new for length in old]
        if max(ends) > 80:
            break
        outs = _feed(kind, sequences, old, ends, cache)
        _assert_equal_to_whole(kind, sequences, old, ends, outs)
        old = ends
