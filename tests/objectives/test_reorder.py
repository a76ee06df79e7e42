"""Shuffled tokens: which change places, what is predicted, and that the text comes back."""

import numpy as np
import pytest

from nlpkit import registry
from nlpkit.contracts.batch import IGNORE
from nlpkit.models import lstm
from tests._masked import bound, plain, tokenizer


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_moved_tokens_are_the_rate_and_their_places_bring_the_text_back(rate: float) -> None:
    objective = bound("reorder", rate=rate)
    rng = np.random.default_rng(0)
    for size in (2, 3, 20, 60):
        ids = plain(size, rng)
        example = objective.example(ids, rng)
        moved = example["place"] != IGNORE
        assert moved.sum() == max(2, round(rate * size))
        assert not moved[[0, -1]].any()
        assert np.array_equal(objective.unmask(example)["input_ids"][1:-1], ids)
        still = ~moved[1:-1]
        assert np.array_equal(example["input_ids"][1:-1][still], ids[still])
        assert sorted(example["place"][moved].tolist()) == (np.flatnonzero(moved) - 1).tolist()


def test_all_orders_of_a_text_are_equally_likely() -> None:
    objective = bound("reorder")
    rng, ids = np.random.default_rng(0), plain(3, np.random.default_rng(1))
    count, found = 12_000, {}
    for _ in range(count):
        order = tuple(objective.example(ids, rng)["place"][1:-1].tolist())
        found[order] = found.get(order, 0) + 1
    assert len(found) == 6
    for times in found.values():
        assert times / count == pytest.approx(1 / 6, abs=5 * np.sqrt(5 / 36 / count))


def test_layer_has_a_score_for_each_place() -> None:
    objective = bound("reorder", max_length=30)
    assert objective.heads()["places"].weight.shape == (28, 8)


def test_layer_reads_the_states_of_both_directions() -> None:
    module = registry.load("objectives", "reorder")
    model = lstm.Config(hidden_size=8, num_directions=2)  # states of 2 x 8
    named = tokenizer().extended(module.Objective.special_tokens(None, model))
    objective = module.Objective(module.Config(max_length=30), named, model)
    assert objective.heads()["places"].weight.shape == (28, 16)
