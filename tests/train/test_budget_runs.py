"""Runs of a tiny recipe with `train.budget`: the same bits again, the command line, the plan."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.errors import NlpkitError, UsageError
from nlpkit.plan import probe
from nlpkit.report import history, page
from nlpkit.runs import trial
from nlpkit.train.budget import REPLAY
from nlpkit.train.log import NORMAL, QUIET, Log
from tests import _processes, _tiny
from tests._timed import FakeTime, Killed, drive

SETS = ("train.budget=60s", "train.warmup_ratio=0.2", "train.schedule=cosine")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("budget"))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Steps take 3 s, evaluations 4 s, checkpoints 1 s."""
    fake = FakeTime()
    drive(monkeypatch, fake, 3.0, 4.0, 1.0)
    return fake


@pytest.fixture(scope="module")
def whole(path: Path) -> Path:
    """A run that nothing interrupted."""
    out = path.parent / "whole"
    with pytest.MonkeyPatch.context() as patch:
        drive(patch, FakeTime(), 3.0, 4.0, 1.0)
        _tiny.pretrain(path, out, *SETS)
    return out


def _weights(out: Path) -> bytes:
    return (out / "checkpoints/latest/model.safetensors").read_bytes()


def _steps(out: Path) -> list[dict[str, Any]]:
    return [each for each in _tiny.metrics(out) if "held_out" not in each]


def test_run_ends_with_its_budget_and_says_so(
    path: Path, whole: Path, time: FakeTime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _tiny.pretrain(path, tmp_path / "again", *SETS, verbosity=NORMAL)
    said = capsys.readouterr().err
    # By hand: evaluations and checkpoints at steps 3 (a tenth is done), 5, 10 and the last one are
    # 4 x 5 s, checkpoints at 4, 8 and 12 are 3 s: 37 s are left, 12 steps of 3 s.
    steps = _steps(whole)
    assert [each["step"] for each in _tiny.metrics(whole) if "held_out" in each] == [3, 5, 10, 12]
    assert (len(steps), steps[-1]["progress"], steps[-1]["elapsed"]) == (12, 1.0, 50.0)
    assert "training: 1m, warm-up 0.2 of it" in said
    assert f"finished 12 steps, {steps[-1]['tokens']:,} tokens in 58s of a budget of 1m" in said
    assert _weights(tmp_path / "again") == _weights(whole)
    status = RunDirectory(whole).status()
    assert (status["finished"], status["steps"], status["budget_seconds"]) == (True, None, 60.0)
    notes = json.loads((whole / "checkpoints/latest/nlpkit.json").read_text("utf-8"))
    assert notes["progress"] == 1.0


@pytest.mark.slow
def test_other_times_give_other_bits(path: Path, whole: Path, tmp_path: Path, monkeypatch) -> None:
    drive(monkeypatch, FakeTime(), 2.9, 4.0, 1.0)
    _tiny.pretrain(path, tmp_path / "other", *SETS)
    assert _weights(tmp_path / "other") != _weights(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "deaths",
    [
        *(pytest.param(deaths, marks=pytest.mark.slow) for deaths in ([20.0], [44.0, 45.0])),
        [5.0, 30.0, 31.0],
    ],
)
def test_killed_run_takes_its_lost_steps_again_bit_for_bit(
    path: Path, time: FakeTime, tmp_path: Path, deaths: list[float]
) -> None:
    out, lost = tmp_path / "killed", []
    for death in deaths:
        # The clock of this process begins now: what the run has used is in its files.
        used = max([0.0, *(each.get("spent", 0) for each in _raw(out))])
        time.deaths = [time.now + max(0.5, death - used)]
        with pytest.raises(Killed):
            _tiny.pretrain(path, out, *SETS)
        lost.append(_steps(out))
        time.now += 5000
    _tiny.pretrain(path, out, *SETS)
    final = _steps(out)
    assert final[-1]["progress"] == 1
    for records in lost:
        assert final[: len(records)] == records


def _raw(out: Path) -> list[dict[str, Any]]:
    file = out / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def test_run_that_stopped_counts_the_time_it_has_used(
    path: Path, whole: Path, time: FakeTime, tmp_path: Path
) -> None:
    out = tmp_path / "stopped"
    with pytest.raises(NlpkitError, match="saved at step 7"):
        _tiny.pretrain(path, out, *SETS, stop=_tiny.StopAtStep(out, 7))
    time.now += 5000
    _tiny.pretrain(path, out, *SETS)
    # The checkpoint at the stop costs a second more, and the run has 12 steps again or 11.
    assert len(_steps(out)) in (11, 12)
    assert _steps(out)[-1]["progress"] == 1
    assert _steps(out)[:7] == _steps(whole)[:7]
    assert not (out / REPLAY).exists()


def test_changed_budget_needs_leave_and_follows_the_time_that_is_left(
    path: Path, whole: Path, time: FakeTime, tmp_path: Path
) -> None:
    longer = ("train.budget=2m", *SETS[1:])
    with pytest.raises(UsageError, match=r'train\.budget: "60s" then, "2m" now'):
        _tiny.pretrain(path, whole, *longer)
    out = tmp_path / "longer"
    _tiny.pretrain(path, out, *SETS)
    _tiny.pretrain(path, out, *longer, allow_change=True)
    steps = _steps(out)
    assert 112 <= max(each["spent"] for each in _raw(out)) <= 120
    assert steps[-1]["progress"] == 1
    assert 0.4 < steps[12]["progress"] < 0.6


@pytest.mark.slow
def test_two_processes_take_the_clock_of_the_first(path: Path, whole: Path, tmp_path: Path) -> None:
    sets = [x for each in (*SETS, "model.dropout=0.0") for x in ("--set", each)]
    out = tmp_path / "two"
    verb = ("pretrain", path, "--out", out, "--device", "cpu", *sets, "--budget", "4s")
    two = _processes.launched(2, *verb)
    assert two.returncode == 0, two.stderr
    steps = _steps(out)
    assert steps[-1]["progress"] == 1
    shares = [each["progress"] for each in steps]
    assert shares == sorted(shares)


SCHEDULED = """\
name: tiny
model: {family: bert, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 32,
  max_positions: 64}
tokenizer: {kind: wordpiece, vocab_size: 120, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: mlm, max_length: 32, rate: 0.5, final_rate: 0.1}
train: {budget: 60s, tokens_per_step: 256, tokens_per_batch: 256, lr: 1.0e-2, schedule: linear,
  precision: fp32, eval_every: 5, save_every: 4}
"""


@pytest.mark.slow
def test_examples_follow_the_time_also_in_workers(time: FakeTime, tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, text=SCHEDULED)
    _tiny.pretrain(path, tmp_path / "one")
    steps = _steps(tmp_path / "one")
    shares = [each["targets"] / 256 for each in steps]
    assert shares[0] > 0.4
    assert shares[-1] < 0.25
    time.now = 100.0
    _tiny.pretrain(path, tmp_path / "two", "train.workers=2")
    assert _steps(tmp_path / "two") == steps
    assert _weights(tmp_path / "two") == _weights(tmp_path / "one")


def test_plan_says_what_a_budget_buys(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = recipe.load(str(path), [*SETS, "train.save_every=100", "train.eval_every=null"])
    plan = planning.make(resolved, path.parent / "none", "cpu", Log(QUIET))
    assert planning.describe(plan)["packing"]["steps"] is None
    assert planning.describe(plan)["packing"]["epochs"] is None
    held_out = int(plan.data.held_out.sizes.sum())
    # 0.4 s for each of two batches and 0.2 s for the update; 5 s an evaluation.
    times = trial.Times([0.3, 0.5], [200, 240], 0.2, 5 / held_out)
    monkeypatch.setattr(probe, "_measure_saving", lambda directory, size: 2.0)
    found = probe._estimate_time(plan, times)
    # 60 s - 2 x (5 s + 2 s), at a tenth and at the end, are 46 steps of 1 s.
    assert found["seconds_per_step"] == pytest.approx(1.0)
    assert (found["steps"], found["tokens"]) == (46, 46 * 440)
    assert (found["evaluations"], found["checkpoints"]) == (2, 2)
    assert found["total_seconds"] == pytest.approx(60.0)
    long = dataclasses.replace(plan, settings=plan.settings.model_copy(update={"save_every": 10}))
    # With checkpoints at 10, 20 and 30 of 2 s each: 60 = 40 + 2 x 5 + 5 x 2.
    assert probe._estimate_time(long, times)["steps"] == 40
    # An evaluation, at the end, is not in a budget of training: 60 = 56 + 2 x 2.
    for clock in ("training", "cpu"):
        settings = plan.settings.model_copy(update={"budget_clock": clock})
        found = probe._estimate_time(dataclasses.replace(plan, settings=settings), times)
        assert (found["steps"], found["evaluations"]) == (56, 1)
        assert found["total_seconds"] == pytest.approx(65.0)


def test_budget_option_takes_the_place_of_steps(path: Path, tmp_path: Path) -> None:
    sets = ("--set", "train.warmup_ratio=0.1", "--out", tmp_path / "out")
    ended = _tiny.command("pretrain", path, "--budget", "30m", "--dry-run", *sets)
    assert ended.returncode == 0, ended.stderr
    assert "a budget of 30m in all" in ended.stderr
    wrong = _tiny.command("pretrain", path, "--budget", "long", *sets)
    assert wrong.returncode == 2
    assert "is not a time such as 90s" in wrong.stderr


@pytest.mark.slow
def test_smoke_test_of_a_run_with_a_budget(path: Path) -> None:
    sets = ("--set", "train.warmup_ratio=0.1")
    ended = _tiny.command("pretrain", path, "--budget", "30m", "--smoke-test", *sets)
    assert ended.returncode == 0, ended.stderr


def test_report_says_how_much_of_the_budget_is_used(whole: Path) -> None:
    facts = page._collect_facts(history.read(whole, "whole"))
    assert (facts["steps"], facts["budget"]) == ("12", "57s of 1m")


@pytest.mark.slow
def test_stable_part_of_a_budget_goes_on_with_a_longer_one(
    path: Path, time: FakeTime, tmp_path: Path
) -> None:
    sets = ("train.budget=60s", "train.schedule=wsd", "train.decay_ratio=0.4")
    short = tmp_path / "short"
    _tiny.pretrain(path, short, *sets, "train.warmup_ratio=0.1")
    stable = files.read_pointer(short, files.STABLE)
    assert stable is not None
    last = json.loads((stable / files.TRAINING).read_text("utf-8"))["state"]["step"]
    rates = {each["step"]: each["lr"] for each in _steps(short)}
    assert rates[last] == max(rates.values()) > rates[last + 1]
    longer = ("train.budget=100s", *sets[1:], "train.warmup_ratio=0.1")
    _tiny.pretrain(path, tmp_path / "long", *longer, resume=str(stable))
    steps = _steps(tmp_path / "long")
    assert steps[0]["step"] == last + 1
    assert steps[0]["lr"] == rates[last]
    assert steps[-1]["progress"] == 1


# Prints which modules of torch each checkpoint imports.
WATCHED = """\
import sys
from contextlib import contextmanager
from nlpkit import cli
from nlpkit.train.budget import Clock
plain = Clock.saving
@contextmanager
def saving(self, state):
    before = {*sys.modules}
    with plain(self, state):
        yield
    print("new:", [name for name in sys.modules.keys() - before if name[:5] == "torch"])
Clock.saving = saving
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_first_checkpoint_imports_nothing_so_that_the_last_one_takes_as_long(
    path: Path, tmp_path: Path
) -> None:
    words = [word for each in SETS[1:] for word in ("--set", each)]
    arguments = ["pretrain", path, "--out", tmp_path / "run", "--budget", "2s", *words, "-q"]
    command = [sys.executable, "-c", WATCHED, *map(str, arguments)]
    lines = subprocess.check_output(command, text=True).splitlines()
    assert len(lines) > 2  # at a tenth, at the end, and the path
    assert set(lines[:-1]) == {"new: []"}
