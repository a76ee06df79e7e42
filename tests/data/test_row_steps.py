"""Steps of a number of rows: torch's `DataLoader` says which, from any position and process."""

from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.data.loader import Examples, Position, Step, steps
from nlpkit.data.row_steps import RowStream
from nlpkit.errors import UsageError
from nlpkit.train.log import QUIET, Log
from tests import _tiny

ROWS, BUDGET = 7, 128


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """Rows of 12 to 64 tokens, so that a step needs several batches."""
    folder = tmp_path_factory.mktemp("rows")
    resolved = recipe.load(str(_tiny.write(folder, documents=40)))
    return planning.make(resolved, folder, "cpu", Log(QUIET)).data.examples


def _stream(examples: Examples, rows: int = ROWS, **options) -> RowStream:
    return RowStream(examples, rows=rows, **({"budget": BUDGET} | options))


def _items(stream: RowStream, step: int) -> tuple[int, list[int]]:
    """Return the epoch of a step and its items."""
    places = [stream.locate(number) for number in stream.bins_of(step)]
    assert len({epoch for epoch, _ in places}) == 1
    items = [stream.plan(epoch)[index] for epoch, index in places]
    return places[0].epoch, np.concatenate(items).tolist()


def _assert_same(ours: list[Step], theirs: list[Step]) -> None:
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        assert (one.after, one.stand_in) == (two.after, two.stand_in)
        for a, b in zip(one.batches, two.batches, strict=True):
            assert a.lengths == b.lengths
            assert all(np.array_equal(a.fields[name], b.fields[name]) for name in b.fields)


@pytest.mark.parametrize("rows", [1, ROWS, 1000])
def test_a_step_has_the_rows_of_a_data_loader(examples: Examples, rows: int) -> None:
    stream = _stream(examples, rows)
    assert len(examples) % ROWS  # the last step of an epoch has fewer
    number = 0
    for epoch in range(2):
        wanted = DataLoader(examples.epoch(epoch).tolist(), batch_size=rows, collate_fn=list)
        assert len(wanted) == stream.steps_per_epoch
        for group in wanted:
            of_epoch, items = _items(stream, number)
            assert of_epoch == epoch
            assert sorted(items) == sorted(group)
            number += 1


def test_batches_of_a_step_are_packed_within_the_budget(examples: Examples) -> None:
    stream = _stream(examples)
    step = stream[0]
    assert len(step.batches) > 1
    assert sum(len(batch.lengths) for batch in step.batches) == ROWS
    for batch in step.batches:
        assert batch.tokens == sum(batch.lengths) == len(batch.fields["input_ids"]) <= BUDGET


def test_from_any_position_with_any_workers_it_is_the_same(examples: Examples) -> None:
    count = 2 * _stream(examples).steps_per_epoch + 3
    whole = list(steps(_stream(examples), count, 0))
    assert whole[-1].after.epoch == 2
    _assert_same(list(steps(_stream(examples), count, 2)), whole)
    for done in (1, count // 3, count // 2, count - 1):
        start = whole[done - 1].after
        _assert_same(list(steps(_stream(examples, start=start), count - done, 0)), whole[done:])
    stream = _stream(examples)
    for number in (count - 1, 0, 5, 4):
        _assert_same([stream[number]], [whole[number]])


def test_an_epoch_ends_with_its_last_step(examples: Examples) -> None:
    stream = _stream(examples)
    last = stream.steps_per_epoch - 1
    assert stream[last].after == Position(1, 0)
    assert len(_items(stream, last)[1]) == len(examples) % ROWS


@pytest.mark.parametrize("number", [2, 3, 9])
def test_processes_share_out_the_rows_of_each_step(examples: Examples, number: int) -> None:
    alone = _stream(examples)
    ranks = [_stream(examples, rank=rank, world_size=number) for rank in range(number)]
    for index in range(alone.steps_per_epoch + 1):
        step, parts = alone[index], [rank[index] for rank in ranks]
        assert len({len(part.batches) for part in parts}) == 1
        assert {part.after for part in parts} == {step.after}
        lengths = [batch.lengths for part in parts for batch in part.own]
        assert sorted(lengths) == sorted(batch.lengths for batch in step.batches)


def test_an_epoch_of_a_source_of_weight_two_has_its_rows_twice(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, documents=10)
    train = str(tmp_path / "train.txt")
    sets = [f'data.train=[{{"files": "{train}", "weight": 2.5}}]', "train.rows_per_step=4"]
    plan = planning.make(recipe.load(str(path), sets), tmp_path, "cpu", Log(QUIET))
    assert isinstance(plan.stream, RowStream)
    rows = len(plan.data.examples)
    taken, epoch, number = [0, 0], 0, 0
    while (found := _items(plan.stream, number))[0] < 2:
        epoch, items = found
        taken[epoch] += len(items)
        number += 1
    assert all(2 * rows <= of_epoch <= 3 * rows for of_epoch in taken)


@pytest.mark.parametrize("more", [["train.rows_per_step=4"], []])
def test_weights_that_leave_an_epoch_empty_are_a_users_mistake(tmp_path: Path, more) -> None:
    path = _tiny.write(tmp_path, documents=3)
    train = str(tmp_path / "train.txt")
    sets = [f'data.train=[{{"files": "{train}", "weight": 0.01}}]', "train.epochs=5", *more]
    with pytest.raises(UsageError, match=r"data\.train: with these weights the first epoch has no"):
        planning.make(recipe.load(str(path), sets), tmp_path, "cpu", Log(QUIET))


def test_a_row_over_the_budget_is_a_users_mistake(examples: Examples) -> None:
    with pytest.raises(UsageError, match=r"train\.tokens_per_batch: .* in a batch of 20"):
        _stream(examples, budget=20).plan(0)


def test_a_step_of_one_short_row_without_a_target_ends_no_run(tmp_path: Path) -> None:
    text = """\
name: tiny
model: {family: bert, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16}
tokenizer: {kind: wordpiece, vocab_size: 100, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: mlm, max_length: 32}
train: {steps: 9, rows_per_step: 1, tokens_per_batch: 128, lr: 1.0e-2, schedule: constant}
"""
    path = _tiny.write(tmp_path, text=text)
    (tmp_path / "train.txt").write_text("ab\n" * 9, "utf-8")
    _tiny.pretrain(path, tmp_path / "run")
    losses = [each["loss"] for each in _tiny.metrics(tmp_path / "run") if "loss" in each]
    assert len(losses) == 9
    assert 0.0 in losses
