"""The stream of steps: the same with any number of workers and processes, from any position."""

import multiprocessing
import pickle
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nlpkit.contracts.batch import LENGTHS, Batch
from nlpkit.data import _worker_pool
from nlpkit.data.loader import (
    HELD_OUT,
    TRAIN,
    Examples,
    Position,
    Step,
    Stream,
    held_out_batches,
    steps,
)
from nlpkit.data.pack import packing_efficiency
from nlpkit.errors import UsageError
from nlpkit.objectives.cpm_ant import Config, Objective
from tests._processes import wait_until

PROMPT, VOCAB, BUDGET = 2, 500, 256


class FakeCorpus:
    """Documents whose tokens say where they come from: document i is i, i, i, … plus 10."""

    def __init__(self, *sources: tuple[list[int], float]):
        self.lengths = np.concatenate([np.array(lengths, np.int64) for lengths, _ in sources])
        self.starts = np.cumsum([0, *(len(lengths) for lengths, _ in sources)])
        self.weights = np.array([weight for _, weight in sources], np.float64)

    def document(self, index: int) -> np.ndarray:
        return np.full(self.lengths[index], index + 10, np.uint16)


def _lengths(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(5, 60, count).tolist()


def _examples(*sources: tuple[list[int], float], seed: int = 1, split: int = TRAIN) -> Examples:
    sizes = SimpleNamespace(
        prompt_length=PROMPT, prompts=SimpleNamespace(infilling=0, generation=1)
    )
    tokenizer = SimpleNamespace(vocab_size=VOCAB, bos_id=6, eos_id=7)
    objective = Objective(Config(max_length=34, min_piece=4), tokenizer, sizes)
    return Examples(FakeCorpus(*(sources or [(_lengths(120), 1.0)])), objective, seed, split)


def _stream(examples: Examples | None = None, **options) -> Stream:
    return Stream(examples or _examples(), **({"budget": BUDGET, "batches_per_step": 3} | options))


def _same(one: Batch, other: Batch) -> bool:
    return (
        one.lengths == other.lengths
        and one.num_targets == other.num_targets
        and one.fields.keys() == other.fields.keys()
        and all(
            a.dtype == other.fields[n].dtype and np.array_equal(a, other.fields[n])
            for n, a in one.fields.items()
        )
    )


def _assert_same(ours: list[Step], theirs: list[Step]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.after == other.after
        assert len(one.batches) == len(other.batches)
        assert all(map(_same, one.batches, other.batches))


def _items_of_epoch(stream: Stream, epoch: int) -> Counter:
    """Return how often each (piece, occurrence) of `epoch` is in any plan, wherever it is."""
    examples, found = stream.examples, Counter()
    for plan in range(epoch, (epoch // stream.round + 1) * stream.round):
        occurrence, piece = np.divmod(stream.plan(plan).items, len(examples))
        carried, occurrence = np.divmod(occurrence, examples.occurrences)
        found.update(
            zip(piece[carried == plan - epoch], occurrence[carried == plan - epoch], strict=True)
        )
    return found


def test_stream_with_workers_is_the_same_bit_for_bit() -> None:
    alone = list(steps(_stream(), 12, 0))
    _assert_same(list(steps(_stream(), 12, 2)), alone)
    assert all(type(a) is np.ndarray for s in alone for b in s.batches for a in b.fields.values())


class _Touch:
    """Makes a file for each piece, named by its number."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, piece: int) -> int:
        (self.folder / str(piece)).touch()
        return piece


def test_a_single_worker_prepares_the_next_piece_while_one_is_used(tmp_path: Path) -> None:
    results = _worker_pool.run_in_workers(
        *(_Touch(tmp_path), iter(range(3)), 1, lambda: None),
        setting="",
        context=multiprocessing.get_context("fork"),
    )
    with closing(results):
        assert next(results) == (0, 0)
        wait_until((tmp_path / "1").exists, limit=20)
        assert list(results) == [(1, 1), (2, 2)]


def test_stream_with_workers_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    list(steps(_stream(), 2, 1))
    assert torch.equal(before, torch.get_rng_state())


def test_stream_with_workers_says_a_users_mistake_without_traceback() -> None:
    with pytest.raises(UsageError) as caught:
        list(steps(_stream(budget=20), 2, 2))
    assert "\n" not in str(caught.value)
    assert "does not fit in a batch of 20" in str(caught.value)


def test_stream_pickled_is_the_same() -> None:
    # As macOS and Windows hand it to a worker.
    stream = _stream()
    again = pickle.loads(pickle.dumps(stream))
    _assert_same([again[3]], [stream[3]])


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_stream_from_any_position_is_the_tail_of_the_whole(every: int) -> None:
    whole = list(steps(_stream(), 40, 0))
    assert whole[-1].after.epoch >= 5  # the borders of epochs and of a round are crossed
    for done in range(1, 40, every):
        start = whole[done - 1].after
        _assert_same(list(steps(_stream(start=start), 40 - done, 0)), whole[done:])


def test_stream_steps_in_any_order_are_the_same() -> None:
    whole = list(steps(_stream(), 12, 0))
    stream = _stream()
    for number in (11, 0, 5, 4, 7):
        _assert_same([stream[number]], [whole[number]])


def test_stream_position_after_a_step_is_the_next_bin() -> None:
    stream = _stream()
    assert stream[0].after == Position(0, 3)
    bins = len(stream.plan(0))
    assert stream.locate(bins - 1) == Position(0, bins - 1)
    assert stream.locate(bins) == Position(1, 0)
    assert _stream(start=Position(0, bins - 3))[0].after == Position(1, 0)
    assert _stream(start=Position(0, bins - 2))[0].after == Position(1, 1)
    assert _stream(start=Position(4, 2))[0].after == Position(4, 5)


def test_stream_step_may_span_several_epochs() -> None:
    examples = _examples(([20, 20, 20], 1.0))  # one bin an epoch
    step = _stream(examples, batches_per_step=5)[1]
    assert step.after == Position(10, 0)
    assert [b.tokens for b in step.batches] == [72] * 5


def test_stream_of_two_processes_is_that_of_one() -> None:
    alone = _stream(batches_per_step=4)
    ranks = [_stream(batches_per_step=4, rank=rank, world_size=2) for rank in (0, 1)]
    for number in range(20):
        step, parts = alone[number], [rank[number] for rank in ranks]
        assert [len(part.batches) for part in parts] == [2, 2]
        assert parts[0].after == parts[1].after == step.after
        together = [
            batch for pair in zip(*(p.batches for p in parts), strict=True) for batch in pair
        ]
        assert all(map(_same, together, step.batches))


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("number", [3, 4, 5, 8])
def test_stream_of_any_number_of_processes_is_that_of_one(number: int) -> None:
    alone = _stream(batches_per_step=4)
    ranks = [_stream(batches_per_step=4, rank=rank, world_size=number) for rank in range(number)]
    for index in range(12):
        step, parts = alone[index], [rank[index] for rank in ranks]
        # All compute the same number of batches, since DDP and FSDP wait for each other.
        assert {len(part.batches) for part in parts} == {-(-4 // number)}
        assert {part.after for part in parts} == {step.after}
        own = [part.own for part in parts]
        together = [each[turn] for turn in range(4) for each in own if turn < len(each)]
        assert all(map(_same, together, step.batches))
        assert len(together) == 4


@pytest.mark.slow
def test_stream_goes_on_with_another_number_of_processes_and_workers() -> None:
    alone = iter(_stream(batches_per_step=4)[index] for index in range(12))
    at = Position()
    for number, workers in ((2, 0), (3, 2), (1, 1), (4, 0)):
        streams = [
            _stream(batches_per_step=4, start=at, rank=rank, world_size=number)
            for rank in range(number)
        ]
        for parts in zip(*(steps(stream, 3, workers) for stream in streams), strict=True):
            step = next(alone)
            batches = [batch for part in parts for batch in part.own]
            for batch in step.batches:  # each once
                assert sum(_same(batch, other) for other in batches) == 1
            assert len(batches) == 4
            at = parts[0].after
            assert at == step.after
    assert next(alone, None) is None
    assert at.epoch > 1


@pytest.mark.parametrize("budget", [BUDGET, 8192])
def test_epoch_has_every_piece_once(budget: int) -> None:
    # 8192: the corpus is less than a batch, so that nothing is handed on.
    stream = _stream(budget=budget)
    everything = Counter({(piece, 0): 1 for piece in range(len(stream.examples))})
    for epoch in range(4):
        assert _items_of_epoch(stream, epoch) == everything


def test_round_ends_with_nothing_left() -> None:
    stream = _stream()
    assert stream.round > 1
    sizes = stream.examples.sizes
    left_over = 0
    for epoch in range(2 * stream.round):
        plan = stream.plan(epoch)
        left_over += len(plan.leftover)
        last = (epoch + 1) % stream.round == 0
        assert not (last and len(plan.leftover))
        carried = plan.items // len(stream.examples) // stream.examples.occurrences
        assert epoch % stream.round or not carried.any()
        assert last or packing_efficiency(plan, sizes, BUDGET) > 0.97
    assert left_over


def test_round_of_a_large_epoch_is_that_epoch() -> None:
    examples = _examples((_lengths(3000), 1.0))
    stream = _stream(examples, budget=128)
    assert stream.round == 1
    assert not len(stream.plan(0).leftover)
    assert sorted(stream.plan(0).items) == list(range(len(examples)))


def test_plan_does_not_depend_on_what_was_asked_before() -> None:
    ordered = _stream()
    plans = [ordered.plan(epoch).items for epoch in range(8)]
    for epoch in (7, 2, 3, 6, 0):
        assert np.array_equal(_stream().plan(epoch).items, plans[epoch])
        assert np.array_equal(ordered.plan(epoch).items, plans[epoch])


def test_order_differs_between_epochs_and_seeds() -> None:
    one, other = _examples(seed=1), _examples(seed=2)
    orders = [one.epoch(0), one.epoch(1), other.epoch(0), other.epoch(1)]
    for i, a in enumerate(orders):
        for b in orders[:i]:
            # A random permutation has one fixed point on average; 12 have a chance of 1e-9.
            assert (a == b).sum() < 12
    assert np.array_equal(one.epoch(1), _examples(seed=1).epoch(1))


def _made(items: list[int]) -> list[dict[str, np.ndarray]]:
    examples = _examples()
    return [examples.make(item, 3) for item in items]


def test_example_depends_on_seed_epoch_and_piece_alone() -> None:
    items = [5, 17, 0, 60, 33]
    made = _made(items)
    backwards = _made(items[::-1])[::-1]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        apart = pool.map(_made, [[item] for item in items])
    for one, other, (alone,) in zip(made, backwards, apart, strict=True):
        for name, array in one.items():
            assert np.array_equal(array, other[name])
            assert np.array_equal(array, alone[name])


def test_example_of_another_epoch_seed_or_occurrence_has_other_targets() -> None:
    examples = _examples(([30] * 60, 2.0))
    many = range(60)

    def targets(source: Examples, epoch: int, occurrence: int = 0) -> list[bytes]:
        items = [piece + occurrence * len(source) for piece in many]
        return [source.make(item, epoch)["context"].tobytes() for item in items]

    draws = [
        targets(examples, 0),
        targets(examples, 1),
        targets(examples, 0, 1),
        targets(_examples(([30] * 60, 2.0), seed=2), 0),
    ]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            # Two tail masks of 31 tokens are the same with 1/31; 1/4 * 1/31 * 60 = 0.5 on average.
            assert sum(x == y for x, y in zip(a, b, strict=True)) < 8


def test_example_postponed_is_that_of_its_own_epoch() -> None:
    examples = _examples(([30] * 9, 2.5))
    item = 4 + 2 * len(examples)  # the third occurrence of piece 4
    once = int(examples.carry_over(np.array([item]))[0])
    twice = int(examples.carry_over(np.array([once]))[0])
    expected = examples.make(item, 5)
    for carried, found in ((1, once), (2, twice)):
        made = examples.make(found, 5 + carried)
        assert all(np.array_equal(made[name], array) for name, array in expected.items())


def test_example_is_made_of_its_piece() -> None:
    examples = _examples(([70, 9], 1.0))  # pieces of 30, 30, 10 and 9
    assert (examples.spans.stop - examples.spans.start).tolist() == [30, 30, 10, 9]
    made = examples.make(3, 0)["input_ids"]
    assert made[PROMPT:].tolist() == [6, *[11] * 9, 7]
    assert len(examples.make(2, 0)["input_ids"]) == examples.sizes[2] == PROMPT + 12


@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0, 2.5])
def test_weight_is_how_often_an_epoch_has_a_piece(weight: float) -> None:
    # The first source is the second's measure; 200 pieces for 50 epochs.
    examples = _examples(([20] * 10, 1.0), ([20] * 200, weight))
    counts = np.zeros((50, 200))
    for epoch in range(50):
        piece = examples.epoch(epoch) % len(examples)
        times = np.bincount(piece, minlength=len(examples))
        assert (times[:10] == 1).all()
        counts[epoch] = times[10:]
    whole = int(weight)
    assert set(np.unique(counts)) == ({whole} if weight == whole else {whole, whole + 1})
    # 10,000 draws with a standard deviation of at most 1/2: 5 of them are 0.025.
    assert abs(counts.mean() - weight) < 0.025


def test_weight_of_a_source_does_not_change_which_examples_there_are() -> None:
    examples = _examples((_lengths(40), 0.5), (_lengths(60, 1), 2.5))
    stream = _stream(examples)
    for epoch in range(3):
        expected = Counter()
        for item in examples.epoch(epoch):
            occurrence, piece = divmod(int(item), len(examples))
            expected[piece, occurrence] += 1
        assert set(expected.values()) == {1}
        assert _items_of_epoch(stream, epoch) == expected


def test_weights_of_too_many_examples_an_epoch_are_refused() -> None:
    said = r"^data.train: with these weights an epoch has 3e\+09 examples; lower them$"
    with pytest.raises(UsageError, match=said):
        _examples(([20], 1.0), ([20] * 3, 1e9)).epoch(0)


def test_source_without_documents_takes_no_weight() -> None:
    examples = _examples(([], 3.0), ([20, 20], 0.5), ([], 7.0), ([20], 2.0))
    assert examples.weights.tolist() == [0.5, 0.5, 2.0]


def test_epochs_without_any_piece_are_passed_over() -> None:
    examples = _examples(([20], 0.05))  # one epoch in twenty has it
    step = _stream(examples, batches_per_step=10)[0]
    assert [b.tokens for b in step.batches] == [24] * 10
    assert step.after.epoch > 30  # 200 on average, standard deviation 60


def test_held_out_random_numbers_are_not_those_of_training() -> None:
    train, held_out = _examples(([30] * 60, 1.0)), _examples(([30] * 60, 1.0), split=HELD_OUT)
    assert train.generator(0).random() != held_out.generator(0).random()
    contexts = [
        [source.make(item, 0)["context"].tobytes() for item in range(60)]
        for source in (train, held_out)
    ]
    # Half a pair of 60 is the same by chance: see the test of epochs.
    assert sum(a == b for a, b in zip(*contexts, strict=True)) < 8


def test_generators_of_different_keys_differ() -> None:
    examples = _examples()
    keys = [(0,), (1,), (0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0, 1)]
    # numpy pads short keys with zeros: (0,) and (0, 0) are one, which is why nothing uses (0, 0).
    drawn = {key: examples.generator(*key).random() for key in keys}
    assert drawn.pop((0, 0)) == drawn[0,]
    assert len(set(drawn.values())) == len(drawn)


def test_held_out_batches_are_always_the_same_and_complete() -> None:
    examples = _examples(split=HELD_OUT)
    bins, make = held_out_batches(examples, BUDGET)
    assert sorted(bins.items) == list(range(len(examples)))
    again, make_again = held_out_batches(_examples(split=HELD_OUT), BUDGET)
    assert all(_same(make(index), make_again(index)) for index in range(len(again)))


def test_batch_counts_its_tokens_and_targets() -> None:
    stream = _stream()
    for batch in stream[0].batches:
        assert batch.tokens == len(batch.fields["input_ids"]) <= BUDGET
        assert batch.targets == (batch.fields["labels"] >= 0).sum() > 0
        assert len(batch.fields["task"]) == len(batch.lengths)
        # Prompts begin where the lengths say that sequences do.
        starts = np.cumsum([0, *batch.lengths[:-1]])
        assert (batch.fields["position"][starts] == 0).all()
        assert (batch.fields["position"] == 0).sum() == len(batch.lengths)


def test_fill_is_the_used_share_of_the_budget() -> None:
    examples = _examples(([20, 20, 20], 1.0))  # 24 tokens each
    assert packing_efficiency(_stream(examples, budget=100).plan(0), examples.sizes, 100) == 0.72
    assert packing_efficiency(_stream(examples, budget=48).plan(0), examples.sizes, 48) == 1.0


def test_objective_counts_targets_by_the_lengths_of_sequences() -> None:
    class WithoutFirst(Objective):
        """The first token of each sequence is no target."""

        def num_targets(self, batch):
            return {"later": int(batch[LENGTHS].sum() - len(batch[LENGTHS]))}

    examples = _examples()
    examples.objective.__class__ = WithoutFirst
    batch = examples.batch(np.arange(3), 0)
    assert batch.num_targets == {"later": sum(batch.lengths) - 3}


def test_place_of_a_bin_is_found_at_once_after_many_epochs() -> None:
    stream = _stream()
    stream._firsts = list(range(10**6))
    begin = time.perf_counter()
    assert {stream.locate(7) for _ in range(20)} == {Position(7, 0)}
    assert time.perf_counter() - begin < 0.5
