"""A schedule from outside, which also decides the size of each step (tests/parts/ramp.py)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.data.loader import Stream
from nlpkit.errors import RecipeError, UsageError
from nlpkit.train.log import QUIET, Log
from nlpkit.train.schedule import (
    ResolvedTraining,
    batches_per_step,
    lr_factor,
    resolve_steps,
)
from nlpkit.train.settings import Config
from nlpkit.train.state import Pace, State
from nlpkit.train.step_sizes import mean_batches
from tests import _tiny
from tests.parts import ramp

RAMP = {"name": "tests.parts.ramp", "fall": 0.5, "grow_every": 2}
SIZES = [1, 1, 2, 2, 3, 3, 4, 4, 4]  # by hand, of steps 1 to 9 with 4 batches at most
SETS = (
    *("train.schedule={name: tests.parts.ramp, grow_every: 2}", "train.min_lr_ratio=0.1"),
    *("train.tokens_per_batch=64", "train.tokens_per_step=256", "train.warmup_steps=2"),
    *("train.steps=9", "train.eval_every=100", "train.save_every=100"),
)


def _settings(**more: Any) -> ResolvedTraining:
    usual = {"steps": 9, "schedule": RAMP, "tokens_per_step": 256, "tokens_per_batch": 64}
    return ResolvedTraining(**(usual | more))


def test_rate_is_the_parts_within_warmup_and_smallest_ratio() -> None:
    settings = _settings(warmup_steps=4, min_lr_ratio=0.1)
    # 0.1 + 0.9 / 2^(step - 1), and at most step / 4 in the warm-up
    expected = [0.25, 0.5, 0.325, 0.2125, 0.15625]
    assert [lr_factor(step, settings) for step in range(1, 6)] == pytest.approx(expected)


def test_size_of_a_step_is_the_parts() -> None:
    sizes = batches_per_step(_settings())
    assert not isinstance(sizes, int)
    assert [sizes(step) for step in range(1, 10)] == SIZES
    assert mean_batches(_settings(), None) == sum(SIZES) / 9
    assert batches_per_step(_settings(schedule="constant")) == 4


def test_time_left_is_that_of_the_sizes_of_the_steps_to_come() -> None:
    pace = Pace(_settings())
    for done in (0, 3, 9):  # 64 tokens a batch, 32 tokens a second
        assert pace.seconds_left(State(step=done), 32.0) == 2 * sum(SIZES[done:])
    usual = Pace(_settings(schedule="constant"))
    assert usual.seconds_left(State(step=3), 32.0) == 2 * 4 * 6


def test_epochs_are_as_many_steps_as_their_batches_fill(tmp_path: Path) -> None:
    found = planning.make(
        recipe.load(str(_tiny.write(tmp_path)), SETS), tmp_path, "cpu", Log(QUIET)
    )
    epoch = len(found.stream.plan(0)) + len(found.stream.plan(0).leftover) / 4
    settings = Config(epochs=1, schedule=RAMP, tokens_per_step=256, tokens_per_batch=64)
    steps = resolve_steps(settings, found.stream).steps
    sizes = batches_per_step(settings)
    assert not isinstance(sizes, int)
    assert sum(map(sizes, range(1, steps))) < epoch + 1
    assert sum(map(sizes, range(1, steps + 2))) > epoch - 1
    described = planning.describe(found)["packing"]
    assert described["batches_per_step"] == sum(SIZES) / 9


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_wrong_number_of_batches_is_named(monkeypatch: pytest.MonkeyPatch, number: Any) -> None:
    monkeypatch.setattr(ramp, "batches", lambda *_: number)
    sizes = batches_per_step(_settings())
    assert not isinstance(sizes, int)
    with pytest.raises(UsageError, match=rf"tests\.parts\.ramp gives step 3 {number} batches"):
        sizes(3)


def test_wrong_setting_of_the_part_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.schedule\.fall: .* less than 1"):
        recipe.load(str(_tiny.write(tmp_path)), [*SETS, "train.schedule.fall=2"])


@pytest.mark.slow
def test_run_takes_steps_of_these_sizes_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    whole = tmp_path / "whole"
    _tiny.pretrain(path, whole, *SETS)
    records = [r for r in _tiny.metrics(whole) if "loss" in r]
    taken = np.diff([0, *(record["tokens"] for record in records)])
    for tokens, size in zip(taken, SIZES, strict=True):
        assert 64 * (size - 1) < tokens <= 64 * size
    expected = [0.5, *(0.1 + 0.9 / 2 ** (step - 1) for step in range(2, 10))]
    assert [r["lr"] for r in records] == pytest.approx([0.01 * share for share in expected])
    place = _tiny.pretrain_with_stops(path, tmp_path / "stopped", [7], *SETS)
    assert _tiny.metrics(tmp_path / "stopped") == _tiny.metrics(whole)
    latest = files.read_pointer(whole, "latest")
    assert latest is not None
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(place / name), load_file(latest / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_out_the_batches_of_each_step(tmp_path: Path, world: int) -> None:
    found = planning.make(
        recipe.load(str(_tiny.write(tmp_path)), SETS), tmp_path, "cpu", Log(QUIET)
    )

    def stream(rank: int, of: int) -> Stream:
        sizes = batches_per_step(found.settings)
        return Stream(
            found.data.examples, budget=64, batches_per_step=sizes, rank=rank, world_size=of
        )

    alone, shared = stream(0, 1), [stream(rank, world) for rank in range(world)]
    for number in range(9):
        steps = [each[number] for each in shared]
        assert len({len(step.batches) for step in steps}) == 1
        assert {step.after for step in steps} == {alone[number].after}
        assert sum(b.tokens for s in steps for b in s.own) == sum(
            b.tokens for b in alone[number].batches
        )
