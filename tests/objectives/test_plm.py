"""Permutation language modelling: which tokens are predicted, in which order."""

import numpy as np
import pytest
import torch

from nlpkit.contracts.batch import IGNORE, Batch
from nlpkit.data.pack import collate
from nlpkit.models.xlnet import Config
from nlpkit.models.xlnet.model import Model
from nlpkit.objectives import plm
from tests import _masked
from tests._masked import plain

MODEL = Config(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
TOKENIZER = _masked.tokenizer().extended(plm.Objective.special_tokens(None, MODEL))


def bound(**settings) -> plm.Objective:
    """Return the objective with these settings."""
    return plm.Objective(plm.Config(**settings), TOKENIZER, MODEL)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("one_in", "longest"),
    [
        pytest.param(6.0, 5, marks=pytest.mark.slow),
        pytest.param(6.0, 1, marks=pytest.mark.slow),
        (3.0, 2),
    ],
)
def test_every_token_is_predicted_one_time_in_k(one_in: float, longest: int) -> None:
    """Counted for each place of texts of 40 tokens; the bound is five standard deviations."""
    objective = bound(one_in=one_in, longest=longest)
    rng = np.random.default_rng(0)
    size, count = 40, 8000
    times = np.zeros(size)
    for _ in range(count):
        times[objective.predicted(size, rng)] += 1
    chance = 1 / one_in
    limit = 5 * np.sqrt(chance * (1 - chance) / count)
    # A text of which no token would be predicted has one anyway: at most one more in 40.
    forced = (1 - chance) ** (size / longest) / size
    assert (abs(times / count - chance) < limit + forced).all()


def test_text_begins_in_a_run_of_any_length_as_it_goes_on() -> None:
    """How often the token after a predicted one is predicted, too: by hand 2 / 3.

    A predicted token is in a run of r = 1 to 5 with probability r / 15, and r - 1 of r tokens have
    a next one; runs that touch make it a little more. Bounds are five standard deviations.
    """
    objective = bound()
    rng = np.random.default_rng(0)
    chosen = np.zeros((5000, 40), np.bool_)
    for row in chosen:
        row[objective.predicted(40, rng)] = True
    (first, later) = (
        chosen[:, at][:, 1:][chosen[:, at][:, :-1]] for at in (slice(0, 2), slice(10, 40))
    )
    assert later.mean() == pytest.approx(2 / 3, abs=0.04)
    assert first.mean() == pytest.approx(later.mean(), abs=5 * np.sqrt(2 / 9 / len(first)))


def test_runs_have_the_lengths_of_the_settings() -> None:
    """With K = 50 two runs hardly ever touch, and runs inside a text are uniform from 1 to 5."""
    objective = bound(one_in=50.0)
    rng = np.random.default_rng(0)
    lengths = []
    for _ in range(300):
        chosen = np.zeros(2002, np.int8)
        chosen[objective.predicted(2000, rng) + 1] = 1
        edges = np.flatnonzero(np.diff(chosen))
        begins, ends = edges[::2], edges[1::2]
        inside = (begins > 0) & (ends < 2000)
        lengths += (ends - begins)[inside].tolist()
    shares = np.bincount(lengths, minlength=6) / len(lengths)
    assert len(lengths) > 3000
    assert shares[1:6] == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / len(lengths)) + 0.02)
    assert shares[6:].sum() < 0.03


def test_order_is_a_permutation_and_the_text_is_whole() -> None:
    objective = bound()
    rng = np.random.default_rng(0)
    sep, cls = map(TOKENIZER.special_id, ("<sep>", "<cls>"))
    for size in (1, 2, 9, 60):
        ids = plain(size, rng)
        example = objective.example(ids, rng)
        assert example["input_ids"].tolist() == [*ids.tolist(), sep, cls]
        assert example["token_type_ids"].tolist() == [0] * (size + 1) + [2]
        ranks = example["rank"][example["rank"] > 0]
        assert sorted(ranks.tolist()) == [*range(1, len(ranks) + 1)]
        assert np.array_equal(example["labels"] != IGNORE, example["rank"] > 0)
        assert not example["rank"][-2:].any()
        assert np.array_equal(objective.restore(example)[0], ids)


def test_left_to_right_with_one_in_one_is_language_modelling() -> None:
    ids = plain(9, np.random.default_rng(0))
    objective = bound(order="left_to_right", one_in=1.0)
    example = objective.example(ids, np.random.default_rng(1))
    # Token i is predicted from its position and the tokens before it.
    assert example["rank"].tolist() == [*range(1, 10), 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("count", [4_000, pytest.param(12_000, marks=pytest.mark.slow)])
def test_all_orders_are_equally_likely(count: int) -> None:
    objective = bound(one_in=1.0, longest=1)
    rng, ids = np.random.default_rng(0), plain(3, np.random.default_rng(1))
    found = {}
    for _ in range(count):
        order = tuple(objective.example(ids, rng)["rank"][:3].tolist())
        found[order] = found.get(order, 0) + 1
    assert len(found) == 6
    for times in found.values():
        assert times / count == pytest.approx(1 / 6, abs=5 * np.sqrt(5 / 36 / count))


def test_loss_is_that_of_the_query_stream_alone() -> None:
    objective = bound()
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = Model(MODEL, TOKENIZER.vocab_size).eval()
    made = [objective.example(plain(size, rng), rng) for size in (20, 31)]
    packed = collate(made, objective.fields)
    fields = {name: torch.from_numpy(value) for name, value in packed.fields.items()}
    batch = Batch(fields, packed.lengths)
    hidden = model(batch.lengths, **{name: fields[name] for name in objective.inputs})
    loss = objective.loss(model, hidden, batch).terms["plm"]
    index = (fields["rank"] > 0).nonzero().squeeze(1)
    expected = torch.nn.functional.cross_entropy(
        model.logits(hidden[index]), fields["input_ids"][index], reduction="sum"
    )
    torch.testing.assert_close(loss.loss_sum, expected)
    assert loss.num_targets == objective.num_targets(packed.fields)["plm"] == len(index)


def test_score_of_a_text_is_a_sum_over_its_tokens_from_left_to_right() -> None:
    objective = bound()
    ids = plain(7, np.random.default_rng(0))
    (scored,) = objective.score_text(ids, np.arange(7), 2, "plm")
    assert scored.targets.tolist() == [2, 3, 4, 5, 6]
    assert scored.inputs["rank"].tolist() == [0, 0, 1, 2, 3, 4, 5, 0, 0]
