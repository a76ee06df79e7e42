"""`train.epochs` and `train.warmup_ratio`: steps by hand, and runs that are as long as they say."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.data.loader import Stream
from nlpkit.data.pack import Bins
from nlpkit.errors import UsageError
from nlpkit.report import history, page
from nlpkit.runs.planned import Planned
from nlpkit.train.log import QUIET, Log
from nlpkit.train.schedule import describe_long_warmup, lr_factor, resolve_steps
from nlpkit.train.settings import Config
from nlpkit.train.step_sizes import batches_per_epoch
from tests import _tiny, _tiny_tasks

# Of a row: 18 tokens, so that 5 rows fill a batch and 25 rows are 5 batches, 2 of them a step.
ROW = {"input": "天地人山水花鸟虫鱼春", "target": "天地人山"}
SHORT = ("train.tokens_per_batch=90", "train.tokens_per_step=180", "train.schedule=linear")
EPOCHS = (*SHORT, "train.steps=null", "train.epochs=3", "train.warmup_steps=0",
          "train.warmup_ratio=0.2")  # fmt: skip


def _stream(kept: list[int], rest: list[int]) -> Any:
    """Return what `batches_per_epoch` asks: bins of one item each, of these sizes, and a rest."""
    sizes = np.array(kept + rest)
    items = np.arange(len(sizes)) + len(sizes)  # second occurrences
    bins = Bins(items[: len(kept)], np.arange(len(kept) + 1), items[len(kept) :])
    return SimpleNamespace(plan=lambda epoch: bins, examples=SimpleNamespace(sizes=sizes))


def _config(**settings: Any) -> Config:
    usual = {"tokens_per_step": 20, "tokens_per_batch": 10, "schedule": "linear"}
    return Config(**(usual | settings))


def _no_plan(epoch: int) -> None:
    raise AssertionError("nobody asked for epochs")


@pytest.mark.parametrize(
    ("epochs", "steps"),
    # 5 batches, 2 a step: an epoch is 2.5 steps, rounded up at the end only
    [(3, 8), (2, 5), (1, 3), (0.5, 2), (0.4, 1), (1e-9, 1), (100, 250)],
)
def test_epochs_are_steps_rounded_up(epochs: float, steps: int) -> None:
    resolved = resolve_steps(_config(epochs=epochs), _stream([10] * 5, []))
    assert (resolved.steps, resolved.epochs, resolved.warmup_steps) == (steps, None, 0)


def test_epochs_of_too_many_steps_are_refused() -> None:
    assert resolve_steps(_config(epochs=8e8), _stream([10] * 5, [])).steps == 2_000_000_000
    with pytest.raises(UsageError, match=r"^train.epochs: 1e\+30 are more than 2147483647 steps$"):
        resolve_steps(_config(epochs=1e30), _stream([10] * 5, []))


def test_what_an_epoch_hands_on_counts_in_its_own() -> None:
    # 2 batches of 9 and a rest of 6 tokens: 24 / 9 batches of that fill
    stream = _stream([9, 9], [6])
    assert float(batches_per_epoch(stream)) == 24 / 9
    assert resolve_steps(_config(epochs=3), stream).steps == 4  # 8 batches, 2 a step


@pytest.mark.parametrize(
    ("ratio", "steps", "warmup"),
    [
        # Radford et al. 2018, 4.1: 0.2 % of the updates
        *((0.002, 1000, 2), (0.002, 1001, 3), (0.002, 12, 1)),
        (0.07, 100, 7),  # 0.07 * 100 is more than 7 in floating point
        *((0.0, 100, 0), (0.999, 10, 10), (None, 100, 0)),
    ],
)
def test_warmup_ratio_is_steps_rounded_up(ratio: float | None, steps: int, warmup: int) -> None:
    given = _config(steps=steps, warmup_ratio=ratio)
    resolved = resolve_steps(given, SimpleNamespace(plan=_no_plan))  # type: ignore[arg-type]
    assert (resolved.steps, resolved.warmup_steps, resolved.warmup_ratio) == (steps, warmup, None)
    assert resolved.model_dump() == given.model_dump() | {
        "warmup_steps": warmup, "warmup_ratio": None, "zero_at_last_step": False,
            "decay_steps": 0, "budget_seconds": None,
    }  # fmt: skip


def test_warmup_that_is_longer_than_the_run_is_a_note() -> None:
    stream = _stream([10] * 5, [])
    fits = resolve_steps(_config(epochs=3, warmup_steps=8), stream)
    assert fits.warmup_steps == 8
    long = resolve_steps(_config(epochs=3, warmup_steps=9, schedule="cosine"), stream)
    assert describe_long_warmup(long) == (
        "train.warmup_steps: 9 is more than the steps of this run (8): the learning rate stays "
        "below train.lr; train.warmup_ratio follows the length"
    )
    # linear from 0 to the peak at step 9, of which 8 steps are made
    assert [lr_factor(step, long) for step in (1, 8)] == [1 / 9, 8 / 9]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a task with 25 rows of 18 tokens."""
    folder = tmp_path_factory.mktemp("task")
    path = _tiny_tasks.task(folder, "nlg", _tiny_tasks.NLG, _tiny_tasks.start(folder))
    _tiny_tasks.write_rows(folder / "nlg.train.jsonl", [ROW] * 25)
    return path


@pytest.fixture(scope="module")
def whole(task: Path) -> Path:
    """The directory of a run of 3 epochs that nothing interrupted."""
    run = task.parent / "whole"
    _tiny.pretrain(task, run, *EPOCHS)
    return run


def _plan(task: Path, *sets: str) -> Planned:
    return planning.make(recipe.load(str(task), sets), task.parent / "none", "cpu", Log(QUIET))


@pytest.mark.parametrize(("epochs", "steps"), [(3, 8), (0.5, 2)])
def test_plan_shows_the_steps_and_the_settings_as_written(
    task: Path, epochs: float, steps: int
) -> None:
    plan = _plan(task, *EPOCHS, f"train.epochs={epochs}")
    assert set(plan.data.examples.sizes.tolist()) == {18}
    found = planning.describe(plan)
    assert found["packing"]["steps"] == steps
    assert found["packing"]["warmup_steps"] == {8: 2, 2: 1}[steps]
    assert found["packing"]["steps_per_epoch"] == 2.5
    assert found["packing"]["epochs"] == steps / 2.5
    train = found["settings"]["train"]
    assert (train["steps"], train["epochs"]) == (None, epochs)
    assert (train["warmup_steps"], train["warmup_ratio"]) == (0, 0.2)


def test_ten_epochs_of_the_stream_have_so_many_batches(task: Path, tmp_path: Path) -> None:
    rows = _tiny_tasks.write_rows(tmp_path / "rows.jsonl", [ROW] * 24)
    stream = _plan(task, *EPOCHS, f"data.train=[{rows}]").stream
    assert len(stream.plan(0)) == 4  # 4 rows are left to the next epoch
    assert float(batches_per_epoch(stream)) == 24 / 5
    assert sum(len(stream.plan(epoch)) for epoch in range(10)) == 48
    assert len(stream.plan(9).leftover) == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_every_process_finds_the_same_number(task: Path, rank: int) -> None:
    examples = _plan(task, *EPOCHS).data.examples
    stream = Stream(examples, budget=90, batches_per_step=2, rank=rank, world_size=2)
    assert batches_per_epoch(stream) == 5


@pytest.mark.slow
def test_plan_command_says_steps_and_notes_a_warmup_that_is_too_long(task: Path) -> None:
    sets = [part for each in EPOCHS for part in ("--set", each)]
    shown = _tiny.command("plan", task, *sets, "-q")
    assert shown.returncode == 0, shown.stderr
    rows = [line.split()[:2] for line in shown.stdout.splitlines()]
    for row in (["packing.steps", "8"], ["packing.warmup_steps", "2"], ["train.epochs", "3"],
                ["train.steps", "none"], ["train.warmup_ratio", "0.2"]):  # fmt: skip
        assert row in rows
    more = ["--set", "train.warmup_ratio=null", "--set", "train.warmup_steps=9"]
    noted = _tiny.command("plan", task, *sets, *more, "--no-probe")
    assert noted.returncode == 0
    assert "train.warmup_steps: 9 is more than the steps of this run (8)" in noted.stderr
    dry = _tiny.command("finetune", task, *sets, "--dry-run", "--json")
    assert json.loads(dry.stdout)["packing"]["steps"] == 8
    assert "8 steps in all" in dry.stderr


def test_run_of_epochs_sees_each_row_so_often_and_keeps_what_was_written(whole: Path) -> None:
    records = [r for r in _tiny.metrics(whole) if "loss" in r]
    assert [r["step"] for r in records] == list(range(1, 9))
    assert records[-1]["tokens"] == 16 * 90  # 15 batches, and one to fill the last step
    # linear from 0.01 at step 2, the end of the warm-up, to 0 after step 8
    rates = [0.005, 0.01, *(0.01 * (9 - step) / 7 for step in range(3, 9))]
    assert [r["lr"] for r in records] == pytest.approx(rates)
    train = recipe.load(str(whole / "recipe.yaml")).recipe.train
    assert (train.steps, train.epochs, train.warmup_ratio) == (None, 3, 0.2)
    status = json.loads((whole / "run.json").read_text("utf-8"))
    assert (status["steps"], status["finished"]) == (8, True)


@pytest.mark.slow
def test_run_of_epochs_is_that_of_as_many_steps(task: Path, whole: Path, tmp_path: Path) -> None:
    _tiny.pretrain(task, tmp_path, *SHORT, "train.steps=8", "train.warmup_steps=2")
    assert _tiny.metrics(tmp_path) == _tiny.metrics(whole)


@pytest.mark.slow
@pytest.mark.parametrize("reads", [pytest.param([8], marks=pytest.mark.slow), [15, 9]])
def test_stopped_run_of_epochs_goes_on_bit_for_bit(
    task: Path, whole: Path, tmp_path: Path, reads: list[int]
) -> None:
    place = _tiny.pretrain_with_stops(task, tmp_path, reads, *EPOCHS)
    assert _tiny.metrics(tmp_path) == _tiny.metrics(whole)
    expected = files.read_pointer(whole, "latest")
    assert expected is not None
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(place / name), load_file(expected / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.slow
def test_changed_epochs_are_named_and_go_on_if_allowed(task: Path, tmp_path: Path) -> None:
    _tiny.pretrain(task, tmp_path, *EPOCHS, "train.epochs=1")
    fewer = history.read(tmp_path, "run")
    assert page._collect_facts(fewer)["steps"] == "3 of 3 planned"
    with pytest.raises(UsageError, match=r"train\.epochs: 1\.0 then, 2\.0 now"):
        _tiny.pretrain(task, tmp_path, *EPOCHS, "train.epochs=2")
    with pytest.raises(UsageError, match=r"train\.steps: not set then, 5 now"):
        _tiny.pretrain(task, tmp_path, *EPOCHS, "train.epochs=null", "train.steps=5")
    _tiny.pretrain(task, tmp_path, *EPOCHS, "train.epochs=2", allow_change=True)
    longer = page._collect_facts(history.read(tmp_path, "run"))
    assert longer["steps"] == "5 of 5 planned"
    assert longer["state"] == "finished"
