"""Runs that go on with another number of processes: every example once, the losses of one."""

from pathlib import Path

import pytest

from nlpkit.checkpoints import integrity
from tests import _tiny
from tests._processes import FSDP, SHARDED, launched

# A step of 4 batches, with workers; an epoch is some 9 steps, so all stops are inside one.
_SETS = ("model.dropout=0.0", "train.tokens_per_batch=128", "train.workers=1", "train.keep=9")
SETS = [word for each in _SETS for word in ("--set", each)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def one(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process, never interrupted."""
    run = tmp_path_factory.mktemp("one")
    done = _tiny.command("pretrain", tiny, "--out", run, *SETS)
    assert done.returncode == 0, done.stderr
    return run


def _goes_on(tiny: Path, before: Path, step: int, number: int, out: Path, **env: str) -> str:
    """Resume a run at the checkpoint of a step in so many processes; return its log."""
    checkpoint = before / f"checkpoints/step-{step:08}"
    verb = ("pretrain", tiny, "--out", out, "--resume", checkpoint, *SETS)
    done = launched(number, *verb, **env)
    assert done.returncode == 0, done.stderr
    return done.stderr


def _same_figures(one: Path, other: Path, after: int) -> None:
    """Fail unless steps after this one have the targets and the losses of one process.

    Which examples a step has decides its targets and its loss; each step has others.
    """
    theirs = {r["step"]: r for r in _tiny.metrics(other) if "loss" in r}
    ours = {r["step"]: r for r in _tiny.metrics(one) if "loss" in r and r["step"] > after}
    assert [*theirs] == [*ours] == [*range(after + 1, 13)]
    for step, record in ours.items():
        assert theirs[step]["loss"] == pytest.approx(record["loss"], abs=1e-5)
        assert theirs[step]["grad_norm"] == pytest.approx(record["grad_norm"], rel=1e-3)
        assert [theirs[step][n] for n in ("targets", "tokens")] == [
            record[n] for n in ("targets", "tokens")
        ]


@pytest.mark.slow
def test_run_of_one_goes_on_with_two_and_then_with_one(
    tiny: Path, one: Path, tmp_path: Path
) -> None:
    log = _goes_on(tiny, one, 4, 2, tmp_path / "two")
    assert "processes: 2" in log
    assert "count for nothing" not in log
    _same_figures(one, tmp_path / "two", 4)
    log = _goes_on(tiny, tmp_path / "two", 8, 1, tmp_path / "again")
    _same_figures(one, tmp_path / "again", 8)


@pytest.mark.slow
def test_run_of_one_goes_on_with_three(tiny: Path, one: Path, tmp_path: Path) -> None:
    log = _goes_on(tiny, one, 8, 3, tmp_path)  # two of them have one batch of four
    assert (
        "a step has 4 batches, and 3 processes could compute 6 in the same time; computations of "
        "a step that count for nothing: 2" in log
    )
    _same_figures(one, tmp_path, 8)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [{}, FSDP], ids=["ddp", "fsdp"])
def test_the_same_command_goes_on_with_two_three_five_and_one(
    tiny: Path, one: Path, tmp_path: Path, shards: dict[str, str]
) -> None:
    for number, steps in ((2, 3), (3, 5), (5, 8), (1, 12)):  # one of five has no batch of its own
        verb = ("pretrain", tiny, "--out", tmp_path, *SETS, "--set", f"train.steps={steps}")
        schedule = ("--set", "train.schedule=constant", "--allow-change")
        done = launched(number, *verb, *schedule, **(shards if number > 1 else {}))
        assert done.returncode == 0, done.stderr
        assert (SHARDED in done.stderr) == (bool(shards) and number > 1)
        if number > 2:
            assert f"was started with 2 processes and has {number} now: every step has" in (
                done.stderr
            )
    whole = tmp_path / "whole"
    done = _tiny.command("pretrain", tiny, "--out", whole, *SETS, *schedule)
    assert done.returncode == 0, done.stderr
    _same_figures(whole, tmp_path, 0)
    assert integrity.find_newest_valid(tmp_path, print).step == 12


@pytest.mark.slow
def test_decay_changes_after_an_evaluation_of_shards(tiny: Path, tmp_path: Path) -> None:
    decay = "train.weight_decay=[{until: 0.5, value: 0.1}, {value: 0}]"
    steps = ("train.steps=16", "train.warmup_steps=1")
    rare = ("train.eval_every=2", "train.save_every=100")
    sets = [word for each in (decay, *steps, *rare, "train.lr=0.5") for word in ("--set", each)]
    done = launched(2, "pretrain", tiny, "--out", tmp_path, *sets, **FSDP)
    assert done.returncode == 0, done.stderr
    evaluated, changed = done.stderr.split("held-out at step 8")[1].splitlines()[:2]
    assert "best" not in evaluated  # what is best is saved, which puts the shards back
    assert changed.endswith("step 9: train.weight_decay is 0 (before: 0.1)")
