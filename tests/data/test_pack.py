"""Packing by lengths alone: every item once, no bin over the budget, hardly any room left."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlpkit.contracts.batch import Field
from nlpkit.data.loader import Examples, Stream
from nlpkit.data.pack import FULL_ENOUGH, MAX_CARRIED, Bins, best_fit, collate, plan_bins
from nlpkit.errors import UsageError
from nlpkit.models.cpm_ant import Config as ModelConfig
from nlpkit.objectives.cpm_ant import Config, Objective
from nlpkit.tokenizers import cpm_ant
from tests.conftest import REAL_DATA


def _plan(sizes, budget: int, seed: int | None = 0, **options) -> Bins:
    sizes = np.asarray(sizes, np.int64)
    rng = None if seed is None else np.random.default_rng(seed)
    return plan_bins(np.arange(len(sizes)) + 1000, sizes, budget, rng, **options)


def _contents(bins: Bins) -> list[list[int]]:
    return [(bins[b] - 1000).tolist() for b in range(len(bins))]


def test_best_fit_by_hand() -> None:
    # In bins of 10: 7; 6; 5; 4 in the 6's room (4 < 5); 3 in the 7's; 2 nowhere but in the 5's.
    sizes = np.array([7, 6, 5, 4, 3, 2])
    bins = best_fit(sizes, 10)
    assert sorted(sorted(sizes[b].tolist()) for b in bins) == [[2, 5], [3, 7], [4, 6]]


def test_best_fit_takes_the_fullest_bin_that_has_room() -> None:
    # 6 and 8 are open when 2 comes; best fit puts it with 8, first fit would with 6.
    sizes = np.array([6, 8, 2])
    assert sorted(sorted(sizes[b].tolist()) for b in best_fit(sizes, 10)) == [[2, 8], [6]]
    sizes = np.array([7, 6, 4, 3])
    assert sorted(sorted(sizes[b].tolist()) for b in best_fit(sizes, 10)) == [[3, 7], [4, 6]]


def test_plan_of_nothing_has_no_bins() -> None:
    bins = _plan([], 10)
    assert len(bins) == 0
    assert bins.offsets.tolist() == [0]
    assert len(_plan([], 10, allow_leftover=True).leftover) == 0


@pytest.mark.parametrize("size", [1, 9, 10])
def test_plan_of_one_item_is_one_bin(size: int) -> None:
    assert _contents(_plan([size], 10)) == [[0]]
    assert _contents(_plan([size], 10, allow_leftover=True)) == [[0]]


def test_plan_item_over_budget_is_refused_naming_the_settings() -> None:
    with pytest.raises(UsageError) as caught:
        _plan([5, 11, 3], 10)
    assert str(caught.value) == (
        "train.tokens_per_batch: a sequence of 11 tokens does not fit in a batch of 10; raise it "
        "or lower objective.max_length"
    )


def test_plan_of_equal_items_fills_as_many_as_fit() -> None:
    bins = _plan([3] * 1000, 10)
    assert Counter(len(b) for b in _contents(bins)) == {3: 333, 1: 1}


def test_plan_of_items_of_the_budget_gives_each_its_bin() -> None:
    assert sorted(_contents(_plan([10] * 300, 10))) == [[i] for i in range(300)]


def test_plan_is_the_same_for_the_same_generator() -> None:
    sizes = np.random.default_rng(1).integers(1, 300, 5000)
    one, again, other = _plan(sizes, 1024, 7), _plan(sizes, 1024, 7), _plan(sizes, 1024, 8)
    assert np.array_equal(one.items, again.items)
    assert np.array_equal(one.offsets, again.offsets)
    assert not np.array_equal(one.items, other.items)
    assert sorted(map(sorted, _contents(one))) == sorted(map(sorted, _contents(other)))


def test_plan_without_generator_is_always_the_same() -> None:
    sizes = np.random.default_rng(1).integers(1, 300, 5000)
    assert _contents(_plan(sizes, 1024, None)) == _contents(_plan(sizes, 1024, None))


def test_plan_batches_have_mixed_lengths() -> None:
    # Packed in random order, a batch of n items is nearly a random sample: its mean length varies
    # by sd / sqrt(n). Best fit decreasing, which batches like lengths, comes to about 0.95 sd.
    sizes = np.random.default_rng(1).integers(1, 300, 8000)
    means = [sizes[b].mean() for b in _contents(_plan(sizes, 1024)) if len(b) > 1]
    assert np.std(means) < 1.3 * sizes.std() / np.sqrt(1024 / sizes.mean())


def test_plan_hands_half_empty_bins_on_to_the_next_window() -> None:
    sizes = np.random.default_rng(1).integers(1, 100, 20_000)  # 15 windows
    full = np.array([sizes[b].sum() for b in _contents(_plan(sizes, 1000))]) >= FULL_ENOUGH * 1000
    assert (~full).sum() <= 2
    assert len(full) <= math.ceil(sizes.sum() / 1000) + 1


def test_plan_keeps_to_the_order_of_the_items_window_by_window() -> None:
    # Windows of 64 bins or little more, shuffled inside: no item moves further than two of them.
    sizes = np.full(64_000, 100)
    where = np.concatenate([np.array(b) for b in _contents(_plan(sizes, 1000))])
    assert np.abs(where - np.arange(64_000)).max() < 2 * 64 * 10


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 64), max_size=400),
    budget=st.integers(64, 200),
    seed=st.one_of(st.none(), st.integers(0, 99)),
    allow_leftover=st.booleans(),
)
def test_plan_packs_every_item_once_within_the_budget(
    sizes: list[int], budget: int, seed: int | None, allow_leftover: bool
) -> None:
    bins = _plan(sizes, budget, seed, allow_leftover=allow_leftover)
    contents = _contents(bins)
    rest = (bins.leftover - 1000).tolist()
    assert sorted([i for b in contents for i in b] + rest) == list(range(len(sizes)))
    assert all(0 < sum(sizes[i] for i in b) <= budget for b in contents)
    assert bool(contents) == bool(sizes)
    if not allow_leftover:
        assert not rest
    assert sum(sizes[i] for i in rest) < MAX_CARRIED * FULL_ENOUGH * budget
    # Best fit: of two bins of a window, at most one is half empty; there are 6 windows at most.
    assert sum(2 * sum(sizes[i] for i in b) <= budget for b in contents) <= 6


def test_plan_rest_is_what_fills_the_emptiest_bins() -> None:
    # Four full bins of 10 and one of 4.
    bins = _plan([10, 10, 4, 10, 10], 10, allow_leftover=True)
    assert bins.leftover.tolist() == [1002]
    assert len(bins) == 4


def test_collate_is_the_concatenation_in_order() -> None:
    examples = [
        {"ids": np.arange(n), "flag": np.zeros(n, np.bool_), "task": np.array(n, np.int64)}
        for n in (3, 1, 4)
    ]
    fields = {"ids": Field(np.int64), "flag": Field(np.bool_), "task": Field(np.int64, "sequence")}
    batch = collate(examples, fields)
    assert batch.fields["ids"].tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert batch.fields["task"].tolist() == [3, 1, 4]
    assert {name: a.dtype for name, a in batch.fields.items()} == {
        "ids": np.int64, "flag": np.bool_, "task": np.int64,
    }  # fmt: skip
    assert batch.lengths == (3, 1, 4)
    assert batch.tokens == 8 == len(batch.fields["flag"])


class _Lengths:
    """A corpus of which only the lengths are asked."""

    def __init__(self, lengths: np.ndarray):
        self.lengths = lengths
        self.starts = np.array([0, len(lengths)])
        self.weights = np.ones(1)


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Tokens of each document of the real sets, unknown ones left out."""
    directory = tmp_path_factory.mktemp("vocabulary")
    shutil.copy(REAL_DATA / "zh_lm" / "vocab_ant.txt", directory / "vocab.txt")
    tokenizer = cpm_ant.Tokenizer.load(directory)

    def count(path: Path) -> np.ndarray:
        rows = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        texts = [json.loads(row)["text"] for row in rows] if path.suffix == ".jsonl" else rows
        ids = tokenizer.encode_batch(texts)
        return np.array([len(i) - i.count(tokenizer.unk_id) for i in ids])

    songci = count(REAL_DATA / "zh_lm" / "poetry_songci.txt")
    tang = count(REAL_DATA / "zh_lm" / "poetry_tang.jsonl")
    clue = count(REAL_DATA / "zh_lm" / "clue_small.txt")
    return {"clue": clue, "songci": songci, "tang": tang, "poems": np.concatenate([songci, tang])}


class _Tokenizer:
    vocab_size, bos_id, eos_id = 100, 6, 7


@pytest.mark.real_data
@pytest.mark.parametrize("budget", [4096, 16384])
@pytest.mark.parametrize("prompt_length", [8, 32])
@pytest.mark.parametrize("name", ["clue", "songci", "tang", "poems"])
def test_plan_fills_98_percent_on_real_data(
    lengths: dict[str, np.ndarray], name: str, prompt_length: int, budget: int
) -> None:
    objective = Objective(
        Config(max_length=512), _Tokenizer, ModelConfig(prompt_length=prompt_length)
    )
    examples = Examples(_Lengths(lengths[name]), objective, seed=1)
    stream = Stream(examples, budget=budget, batches_per_step=1)
    epochs = min(2 * stream.round, 40)
    used = bins = 0
    for epoch in range(epochs):
        plan = stream.plan(epoch)
        filled = int(examples.sizes[plan.items % len(examples)].sum())
        # Every epoch but the last of its round, which may end with a half-empty batch.
        if (epoch + 1) % stream.round:
            assert filled >= 0.98 * len(plan) * budget
        used, bins = used + filled, bins + len(plan)
    assert used >= 0.98 * bins * budget
