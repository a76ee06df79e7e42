"""Denoising: each damage by hand, infilling as fairseq draws it, the text comes back, proofs."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from nlpkit import selftest
from nlpkit.contracts.batch import FlaggedIds, bit
from nlpkit.data.pack import pack_examples
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.t5 import Config as ModelConfig
from nlpkit.models.t5.model import Model
from nlpkit.objectives import denoising
from nlpkit.objectives.denoising import DAMAGE, MASK, count, infill, permute_sentences, shuffled
from nlpkit.objectives.examples.text import forward
from nlpkit.tokenizers import bpe
from tests import _provable, _tiny

SIZES = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, head_dim=8, intermediate_size=24)
TOKENIZER = bpe.Tokenizer.train(["a be cat"], bpe.Config(vocab_size=258)).extended(
    ["</s>", "[MASK]"]
)
END, HOLE = (TOKENIZER.special_id(token) for token in ("</s>", "[MASK]"))
NONE = dict.fromkeys(DAMAGE, 0.0)
RECIPE = """\
name: tiny
model: {family: t5, hidden_size: 32, num_layers: 2, num_heads: 4, head_dim: 8,
  intermediate_size: 48, attention_dropout: 0.0}
tokenizer: {kind: bpe, vocab_size: 400}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: denoising, max_length: 48, delete: 0.1}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""


def _objective(**settings) -> denoising.Objective:
    config = denoising.Config(**{"max_length": 64, **settings})
    return denoising.Objective(config, TOKENIZER, SIZES)


def _flagged(size: int, *starts: int) -> FlaggedIds:
    flags = np.zeros(size, np.uint8)
    flags[[*starts]] = bit("sentence_start")
    return FlaggedIds(np.arange(size) + 2, flags)


class Fixed:
    """A generator whose numbers are written down."""

    def __init__(self, *orders: list[int], lengths: list[int] | None = None, start: int = 0):
        self.orders, self.lengths, self.start = [*orders], lengths, start

    def permutation(self, of) -> np.ndarray:
        order = self.orders.pop(0)
        size = of if isinstance(of, int) else len(of)
        assert sorted(order) == list(range(size))
        return np.array(order) if isinstance(of, int) else of[order]

    def poisson(self, mean: float, size: int) -> np.ndarray:
        drawn, self.lengths = self.lengths[:size], self.lengths[size:]
        return np.array(drawn)

    def random(self) -> float:
        return 0.0

    def integers(self, high: int) -> int:
        return self.start


def _source(settings: dict, rng: Fixed, size: int = 8, starts: tuple[int, ...] = ()) -> list[int]:
    return _objective(**{**NONE, **settings}).damage(size, np.array(starts), rng).tolist()


def test_each_damage_by_hand() -> None:
    order = [5, 1, 6, 0, 7, 2, 3, 4]
    # A share of 0.3 of 8 tokens is 2.4: 3 of them, 5, 1 and 6.
    assert _source({"mask": 0.3}, Fixed(order)) == [0, MASK, 2, 3, 4, MASK, MASK, 7]
    assert _source({"delete": 0.3}, Fixed(order)) == [0, 2, 3, 4, 7]
    # 5, 1, 6 become the second, the third, the first of themselves.
    assert _source({"shuffle": 0.3}, Fixed(order, [1, 2, 0])) == [0, 6, 2, 3, 4, 1, 5, 7]
    assert _source({"rotate": 1.0}, Fixed(start=3)) == [3, 4, 5, 6, 7, 0, 1, 2]
    # Sentences 0 1 2 | 3 4 | 5 6 7, all three in the order 2 0 1.
    sentences = {"permute_sentences": 1.0}
    found = _source(sentences, Fixed([0, 1, 2], [2, 0, 1]), starts=(0, 3, 5))
    assert found == [5, 6, 7, 0, 1, 2, 3, 4]
    # Half of three are two: the first and the last change places.
    found = _source({"permute_sentences": 0.5}, Fixed([2, 0, 1], [1, 0]), starts=(0, 3, 5))
    assert found == [5, 6, 7, 3, 4, 0, 1, 2]


@pytest.mark.parametrize(
    ("lengths", "order", "more", "expected"),
    [
        # 4 of 8 tokens: a span of 3 at 1, and one of 2, cut to 1, at 6.
        ([3, 2, 9, 9], [1, 6, 0, 2, 3, 4, 5, 7], [*range(6)], [0, MASK, 4, 5, MASK, 7]),
        # An empty span is a mask between others: here the first of 6 places is drawn for it.
        ([3, 0, 1, 9], [1, 6, 0, 2, 3, 4, 5, 7], [2, *range(2), *range(3, 7)],
         [0, MASK, MASK, 4, 5, MASK, 7]),
        # A span that begins inside another has no mask, and less is lost: 3 at 2, 1 at 3.
        ([3, 1, 9, 9], [2, 3, 0, 1, 4, 5, 6, 7], [*range(6)], [0, 1, MASK, 5, 6, 7]),
        # Spans that touch have a mask each; one at the end is cut by it.
        ([2, 2, 9, 9], [5, 7, 0, 1, 2, 3, 4, 6], [*range(7)], [0, 1, 2, 3, 4, MASK, MASK]),
        # Where the lengths drawn at first are too few, others are drawn.
        ([0, 0, 0, 1, 4, 9, 9, 9], [1, 4, 0, 2, 3, 5, 6, 7], [5, 0, 1, 2, 3, 4, 6, 7],
         None),
    ],
)  # fmt: skip
def test_infilling_by_hand(lengths, order, more, expected) -> None:
    rng = Fixed(order, more, lengths=lengths)
    if expected is None:
        # Spans of 1 at 1 and 3 at 4: 6 tokens, and only two of three empty spans find room.
        found = infill(
            np.arange(8), 0.5, 3.0, Fixed(order, [0, 1, 2, 3, 4, 5, 7, 6], lengths=lengths)
        )
        assert found.tolist() == [MASK, MASK, 0, MASK, 2, 3, MASK, 7]
        return
    size = len(expected)
    rng.orders[1] = rng.orders[1][:size]
    assert infill(np.arange(8), 0.5, 3.0, rng).tolist() == expected


def _fairseqs(size: int, share: float, mean: float, rng: np.random.Generator) -> list[int]:
    """Return a text with holes, token by token as fairseq's `add_whole_word_mask` makes it."""
    wanted = int(np.ceil(size * share))
    lengths = rng.poisson(mean, wanted).tolist()
    while sum(lengths) < wanted:
        lengths += rng.poisson(mean, wanted).tolist()
    kept: list[int] = []
    for length in lengths:
        kept.append(min(length, wanted - sum(kept)))
        if sum(kept) == wanted:
            break
    spans = [length for length in kept if length]
    source: dict[int, int] = {place: place for place in range(size)}
    starts = rng.permutation(size)[: len(spans)].tolist()
    source.update(dict.fromkeys(starts, MASK))
    for start, length in zip(starts, spans, strict=True):
        for place in range(start + 1, min(start + length, size)):
            source.pop(place, None)
    text = [source[place] for place in sorted(source)]
    for place in np.sort(
        rng.permutation(len(text) + len(kept) - len(spans))[: len(kept) - len(spans)]
    ):
        text.insert(int(place), MASK)
    return text


@pytest.mark.parametrize("times", [3_000, pytest.param(12_000, marks=pytest.mark.slow)])
def test_infilling_has_the_distribution_of_fairseq(times: int) -> None:
    rng = np.random.default_rng(0)
    made = [infill(np.arange(40), 0.3, 3.0, rng).tolist() for _ in range(times)]
    theirs = [_fairseqs(40, 0.3, 3.0, rng) for _ in range(times)]
    for figure in (
        len,
        lambda source: source.count(MASK),
        lambda source: len({*range(40)} - {*source}),
        lambda source: source.index(MASK) // 4,
        lambda source: source[::-1].index(MASK) // 4,
        lambda source: sum(a == b == MASK for a, b in pairwise(source)),
    ):
        ours, expected = Counter(map(figure, made)), Counter(map(figure, theirs))
        for value in {*ours, *expected}:
            spread = (ours[value] + expected[value]) ** 0.5
            assert abs(ours[value] - expected[value]) <= 4.5 * spread, value
    # By hand: 12 of 40 tokens are drawn, and overlaps and the end of the text take some of them.
    lost = np.mean([len({*range(40)} - {*source}) for source in made])
    assert 10 < lost < 12


def test_lengths_of_spans_are_poisson() -> None:
    rng, found = np.random.default_rng(0), Counter()
    for _ in range(10):
        # So few spans in so long a text hardly meet, and only the last is cut.
        source = infill(np.arange(100_000), 0.01, 3.0, rng)
        for hole in np.flatnonzero(source == MASK)[1:-1]:
            found[int(source[hole + 1] - source[hole - 1]) - 1] += 1
    total = sum(found.values())
    assert 3_000 < total < 3_700  # 10 · 1,000 / 3
    chances = [math.exp(-3) * 3**length / math.factorial(length) for length in range(7)]
    for length, chance in enumerate(chances):
        assert found[length] / total == pytest.approx(chance, abs=0.025), length


@pytest.mark.slow
def test_shares_are_exact_and_rounded_up() -> None:
    # 0.3 · 30 and 0.1 · 30 are 9 and 3, whatever their floats are.
    assert [int(count(30, share)) for share in (0.3, 0.1, 0.31, 0.0, 1.0)] == [9, 3, 10, 0, 30]
    assert count(np.array([1, 2, 3]), 0.5).tolist() == [1, 1, 2]
    rng = np.random.default_rng(0)
    found = Counter(tuple(shuffled(3, 1.0, rng).tolist()) for _ in range(6_000))
    assert len(found) == 6
    assert all(times == pytest.approx(1_000, abs=150) for times in found.values())
    firsts = Counter(
        int(permute_sentences(np.arange(6), np.array([0, 2, 4]), 1.0, rng)[0]) for _ in range(3_000)
    )
    assert {*firsts} == {0, 2, 4}
    assert all(times == pytest.approx(1_000, abs=120) for times in firsts.values())
    begins = Counter(_objective(**NONE | {"rotate": 0.5}).damage(4, np.empty(0), rng)[0]
                     for _ in range(8_000))  # fmt: skip
    # Half of the texts are rotated, to each of 4 tokens as often: 5/8 of all begin as they were.
    assert begins[0] / 8_000 == pytest.approx(5 / 8, abs=0.025)
    assert all(begins[place] / 8_000 == pytest.approx(1 / 8, abs=0.02) for place in (1, 2, 3))


def test_example_has_the_damaged_text_and_the_text() -> None:
    example = _objective(**NONE | {"mask": 0.5}).example(np.arange(4) + 2, np.random.default_rng(0))
    (holes,) = np.nonzero(example["source_ids"] == HOLE)
    assert len(holes) == 2
    assert example["source_ids"][-1] == END
    assert example["labels"].tolist() == [2, 3, 4, 5, END]
    assert example["input_ids"].tolist() == [TOKENIZER.pad_id, 2, 3, 4, 5]
    assert np.flatnonzero(example["hidden"]).tolist() == holes.tolist()


COMBINED = [
    {},
    {"contiguous": True},
    {**NONE, "mask": 0.15},
    {**NONE, "delete": 0.15},
    {**NONE, "shuffle": 1.0},
    {**NONE, "permute_sentences": 0.5, "rotate": 1.0},
    {"infill": 1.0},
    {"mean_span": 0.5},
    {"shuffle": 0.2, "mask": 0.1, "delete": 0.3, "rotate": 0.5},
    {**NONE, "delete": 1.0, "infill": 0.3, "rotate": 1.0},
]


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("settings", COMBINED)
def test_text_comes_back_and_no_example_is_longer_than_planned(settings: dict) -> None:
    objective, rng = _objective(**settings), np.random.default_rng(0)
    spans = objective.spans(np.array([64, 1, 70, 193]))
    assert (spans.stop - spans.start).max() == 63  # with its end, 64
    for length in (*range(1, 20), 63):
        for _ in range(20):
            piece = _flagged(length, *range(0, length, 5))
            example = objective.example(piece if objective.token_flags else piece.ids, rng)
            (back,) = objective.restore(example)
            assert np.array_equal(back, piece.ids)
            sizes = len(example["source_ids"]), len(example["labels"])
            planned = int(objective.length(np.array([length]))[0])
            assert 0 <= planned - sum(sizes) <= objective.max_shrink
            assert max(sizes) <= 64
            left = {*example["source_ids"].tolist()} - {END, HOLE}
            is_hidden = ~np.isin(piece.ids, [*left])
            assert np.array_equal(example["hidden"], [*is_hidden, 0])
            assert objective.shown(example).tolist() == [*~is_hidden, False]
    if not {"infill", "mean_span"} & {*settings} and settings.get("infill", 1) == 0:
        assert objective.max_shrink == 0


def test_loss_of_what_the_source_lacks_is_a_part() -> None:
    objective = _objective(max_length=32)
    torch.manual_seed(0)
    model = Model(SIZES, TOKENIZER.vocab_size).eval()
    rng = np.random.default_rng(0)
    batch = pack_examples(objective, [objective.example(_flagged(20, 0, 9), rng) for _ in range(3)])
    fields = {
        name: torch.as_tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.fields.items()
    }
    batch.fields = fields
    with torch.no_grad():
        states = forward(objective, model, batch)
        loss = objective.loss(model, states, batch)
        each = torch.nn.functional.cross_entropy(
            model.logits(states), fields["labels"], reduction="none"
        )
    total, number = loss.parts["hidden"]
    assert number == int(fields["hidden"].sum()) > 3
    torch.testing.assert_close(total, each[fields["hidden"] == 1].sum())
    torch.testing.assert_close(loss.parts["denoising"][0], each.sum())
    assert batch.num_targets == {"denoising": 63}
    # What hides nothing has no such part.
    assert _objective(**NONE | {"shuffle": 1.0}).parts == ("denoising",)


def test_mask_tokens_are_read_in_an_input_and_never_written() -> None:
    objective = _objective()
    encode = TOKENIZER.encode
    # A space before a mask is the hidden word's, as in the examples of training.
    assert objective.encode_input("a [MASK] cat[MASK]") == [
        *encode("a"), HOLE, *encode(" cat"), HOLE,
    ]  # fmt: skip
    assert {TOKENIZER.pad_id, HOLE} <= {*objective.suppress_tokens}
    model = Model(SIZES, TOKENIZER.vocab_size).eval()
    writer = Writer(model, TOKENIZER, objective, Settings(max_new_tokens=4, min_new_tokens=4))
    (answer,) = writer.write(["a [MASK] cat"])
    assert answer.outputs[0].tokens == 4


def test_settings_that_damage_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing damages the text; set one of permute_sentences"):
        denoising.Config(**NONE)
    unused = denoising.Config(infill=0, mean_span=2.0).without_effect()
    assert unused == {"mean_span": "without infill"}


class Intact(denoising.Objective):
    """Its source has the whole text."""

    def made(self, source, target):
        return super().made(np.append(source, target), target)


class Cut(denoising.Objective):
    """Its target lacks its first token."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        return made | {n: made[n][1:] for n in ("input_ids", "labels", "hidden")}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("denoising"), documents=60, text=RECIPE)


@pytest.mark.slow
def test_selftest_proves_examples_and_finds_planted_defects(recipe: Path) -> None:
    _provable.check_defects(recipe, intact=Intact, cut=Cut)


@pytest.mark.slow
def test_selftest_proves_all(recipe: Path) -> None:
    _provable.check_all(recipe)


@pytest.mark.slow
def test_selftest_proves_a_shuffled_text_which_hides_nothing(tmp_path: Path) -> None:
    settings = "max_length: 48, permute_sentences: 0, infill: 0, shuffle: 1.0"
    text = RECIPE.replace("max_length: 48, delete: 0.1", settings)
    with _provable.of_recipe(_tiny.write(tmp_path, documents=60, text=text)) as bench:
        found = list(selftest.prove(bench))
    # Nothing is hidden, so nothing can leak.
    assert not {"noise floor", "no leak"} & {proof.name for proof in found}
    assert {"unmasking", "shown targets", "batches"} <= {proof.name for proof in found}
    assert [(proof.name, proof.figure) for proof in found if not proof.passed] == []
