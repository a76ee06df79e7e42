"""`train.budget`: a run that ends with its time, and the same run again, step by step.

The clock is made up: it moves by what each step, evaluation and checkpoint is said to take.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from nlpkit.errors import NlpkitError
from nlpkit.train import budget
from nlpkit.train.schedule import GRID, ResolvedTraining
from nlpkit.train.settings import Config
from nlpkit.train.state import ALMOST, Times
from tests._timed import FakeTime, Timed, deaths


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(budget, "now", lambda: fake.now)
    return fake


STEPS: dict[str, Callable[[int], float]] = {
    "constant": lambda number: 2.5,
    "slowing": lambda number: 2.0 + number / 70,
    "faster": lambda number: 6.0 - min(number, 200) / 50,
    "varying": lambda number: 2.0 + (number * 7 % 11) / 2.5,
    "first one slow": lambda number: 100.0 if number == 1 else 3.0,
}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("kills", [pytest.param(0, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    ("kind", "evaluation"),
    [
        *(("first one slow", 3.0), ("varying", 60.0)),
        *(
            pytest.param(kind, 3.0, marks=pytest.mark.slow)
            for kind in STEPS
            if kind != "first one slow"
        ),
        pytest.param("constant", 0.0, marks=pytest.mark.slow),
    ],
)
def test_run_ends_annealed_within_1_percent_of_its_budget(
    tmp_path: Path, time: FakeTime, kind: str, evaluation: float, kills: int
) -> None:
    run = Timed(tmp_path / "run", time, STEPS[kind], evaluation, saving=2.0)
    run.train = {"warmup_ratio": 0.1, "save_every": 25, "eval_every": 50}
    time.deaths = deaths(len(kind), kills, 1000)
    state = run.run()
    # What a killed process had not yet logged is not counted: at most an evaluation.
    assert 990 <= run.used <= 1000 + (0 if not kills else 10 if evaluation < 60 else 70)
    assert not time.deaths
    assert state.times.progress == 1
    assert state.step == run.saved[-1] == run.records[-1]["step"]
    assert run.evaluation == 0 or run.lines[-1]["step"] == state.step
    # The rate rises to its peak at a tenth, then falls in a line to 0 at the end.
    end = 1000 - evaluation - run.saving
    for before, record in zip(run.records, run.records[1:], strict=False):
        if record["elapsed"] < 200 or record["elapsed"] - before["elapsed"] > 10:
            continue  # the end was not yet known; or after an evaluation or a kill
        done = (record["elapsed"] + run.step(record["step"]) / 2) / end
        assert record["lr"] / run.settings.lr == pytest.approx((1 - done) / 0.9, abs=0.01)
    rates = [record["lr"] / run.settings.lr for record in run.records]
    assert max(rates) > 0.95
    assert 0 < rates[0] < 0.1
    assert 0 < rates[-1] < 0.01


@pytest.mark.slow
def test_rates_of_equal_steps_are_those_of_a_run_by_steps(tmp_path: Path, time: FakeTime) -> None:
    # 1000 s are 500 steps of 2 s: step n is in the middle of (n - 1) / 500 and n / 500.
    run = Timed(tmp_path / "run", time, lambda number: 2.0)
    run.train = {"lr": 1.0}
    assert run.run().step == 500
    for record in run.records[3:]:
        assert record["progress"] == pytest.approx(record["step"] / 500, abs=1.1e-6)
        now = (record["step"] - 0.5) / 500
        assert record["lr"] == pytest.approx(1 - now, abs=1e-5)


def test_cpu_clock_does_not_count_the_time_of_other_programs(
    tmp_path: Path, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "cpu_now", lambda: time.now / 4)  # it has a quarter of a core
    run = Timed(tmp_path / "run", time, lambda number: 8.0)
    run.train = {"budget": "100s", "budget_clock": "cpu"}
    assert run.run().step == 50
    assert run.records[-1]["elapsed"] == pytest.approx(98, abs=1)


@pytest.mark.parametrize("clock", ["cpu", "training"])
def test_clocks_of_training_do_not_count_evaluations(
    tmp_path: Path, time: FakeTime, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    monkeypatch.setattr(budget, "cpu_now", lambda: time.now)
    run = Timed(tmp_path / "run", time, lambda number: 2.0, evaluation=60.0)
    run.train = {"budget": "100s", "budget_clock": clock, "eval_every": 20}
    time.deaths = deaths(1, 1, 100)
    assert run.run().step == 50
    assert not time.deaths
    assert [line["step"] for line in run.lines if "held_out" in line] == [20, 40, 50]
    assert run.records[-1]["elapsed"] == pytest.approx(98, abs=1)


def test_clock_of_training_does_not_count_an_evaluation_that_a_signal_ends(
    tmp_path: Path, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Timed(tmp_path / "run", time, lambda number: 2.0, evaluation=60.0)
    run.train = {"budget": "100s", "budget_clock": "training", "eval_every": 20}
    with monkeypatch.context() as signal:
        signal.setattr(Timed, "_evaluate", lambda run, progress: time.passes(60))
        with pytest.raises(NlpkitError, match="saved at step 20"):
            run.run()
    assert run.run().step == 50


def test_cpu_clock_without_a_budget_is_warned_of() -> None:
    without = Config(steps=1, budget_clock="cpu", schedule="constant").without_effect()
    assert without["budget_clock"] == "without train.budget"
    assert "budget_clock" not in Config(budget="1s", schedule="constant").without_effect()


@pytest.mark.slow
def test_lost_steps_are_taken_again_with_their_times(tmp_path: Path, time: FakeTime) -> None:
    run = Timed(tmp_path / "run", time, lambda number: 2.0, evaluation=5.0, saving=1.0)
    run.train = {"save_every": 90}
    before: list[list[dict]] = []
    passes = time.passes

    def watched(seconds: float) -> None:
        try:
            passes(seconds)
        except BaseException:
            before.append(run.records)
            raise

    time.passes = watched  # type: ignore[method-assign]
    # After 300 s, and 40 s later, when the lost steps are not yet all taken again.
    time.deaths = [400.0, 400.0 + 5000 + 40, 400.0 + 2 * 5000 + 500]
    run.run()
    shortened = [{k: v for k, v in each.items() if k != "spent"} for each in run.records]
    first, second, _third = before
    assert len(second) < len(first)
    for lost in before:
        for record in lost:
            again = shortened[record["step"] - 1]
            for name in ("lr", "elapsed", "progress"):  # bits: test_budget_runs.py
                assert again[name] == record[name]
    assert 990 <= run.used <= 1010


@pytest.mark.slow
def test_budget_that_is_changed_leaves_what_was_lost_and_follows_the_time_left(
    tmp_path: Path, time: FakeTime
) -> None:
    run = Timed(tmp_path / "run", time, lambda number: 2.0, saving=1.0)
    assert run.run().times.progress == 1
    steps, run.train = run.state.step, {"budget": "2000s"}
    time.now += 777
    state = run.run()
    assert state.times.progress == 1
    assert 1980 <= run.used <= 2000
    assert state.step > 1.9 * steps
    after = [each for each in run.records if each["step"] > steps]
    # Half of the new time is gone: the rate is half of its peak again.
    assert after[1]["lr"] / run.settings.lr == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("times", "budget", "expected"),
    [
        (Times(60, elapsed=30, progress=0.5), 120, 0.25),  # as much is done of twice the time
        (Times(60, elapsed=60, progress=1.0), 120, 0.5),  # it was at its end
        (Times(50, elapsed=60, progress=1.0), 60, 1.0),  # no time is left
        (Times(60, elapsed=30, progress=0.5), 20, ALMOST),
    ],
)
def test_share_that_is_done_follows_another_budget(
    times: Times, budget: float, expected: float
) -> None:
    times.follow(ResolvedTraining(steps=GRID, schedule="linear", budget_seconds=budget))
    assert times.progress == expected


@pytest.mark.parametrize(("progress", "budget", "step"), [(0.8, 61, 9), (0.8, 64, 0), (0.9, 64, 9)])
def test_decay_has_not_begun_where_a_longer_budget_is_before_it(
    progress: float, budget: float, step: int
) -> None:
    # The decay is the last quarter; of 64 s, 0.8 * 60 s are three quarters.
    times = Times(60, elapsed=50, progress=progress, stable_step=9)
    times.follow(
        ResolvedTraining(steps=GRID, schedule="wsd", decay_steps=GRID // 4, budget_seconds=budget)
    )
    assert times.stable_step == step


@pytest.mark.slow
def test_wsd_keeps_the_last_step_before_its_decay(tmp_path: Path, time: FakeTime) -> None:
    run = Timed(tmp_path / "run", time, lambda number: 2.0)
    run.train = {"schedule": "wsd", "lr": 1.0, "decay_ratio": 0.25, "save_every": 1000}
    run.run()
    rates = {each["step"]: each["lr"] for each in run.records}
    assert run.stable == 375  # of 500
    assert rates[run.stable] == 1 > rates[run.stable + 1]


def test_evaluation_just_before_the_last_one_is_left_out(tmp_path: Path, time: FakeTime) -> None:
    # 100 s of evaluations at 100 s, 200 s … of training; the one that is due at step 400 (after
    # 800 s of training and 700 s of evaluations) would leave no time for the last one.
    run = Timed(tmp_path / "run", time, lambda number: 2.0, evaluation=100.0)
    run.train = {"eval_every": 50, "budget": "1350s", "save_every": 1000}
    state = run.run()
    at = [each["step"] for each in run.lines if "held_out" in each]
    assert at == [50, 100, 150, 200, 250, 300, state.step]
    # 350 steps and 7 evaluations would take 1400 s: step 325 is the last, after 650 s + 700 s.
    assert state.step == 325
    assert run.used == 1350


@pytest.mark.slow
def test_first_evaluation_comes_early_enough_to_be_planned_for(
    tmp_path: Path, time: FakeTime
) -> None:
    run = Timed(tmp_path / "run", time, lambda number: 2.0, evaluation=50.0, saving=20.0)
    run.train = {"eval_every": None, "save_every": 10_000}
    state = run.run()
    at = [each["step"] for each in run.lines if "held_out" in each]
    assert at == [50, state.step]
    assert run.saved[0] == 50
    assert 990 <= run.used <= 1000


@pytest.mark.parametrize("length", ["1s", "3s"])
def test_budget_of_less_than_its_first_steps_is_over_with_the_next_one(
    tmp_path: Path, time: FakeTime, length: str
) -> None:
    run = Timed(tmp_path / "run", time, lambda number: 2.0)
    run.train = {"budget": length}
    state = run.run()
    assert (state.times.progress, state.step) == (1, {"1s": 2, "3s": 3}[length])


def test_settings_of_a_budget_are_parts_of_a_grid(tmp_path: Path, time: FakeTime) -> None:
    run = Timed(tmp_path, time, lambda number: 2.0)
    run.train = {"schedule": "wsd", "warmup_ratio": 0.05, "budget": "1h30m"}
    found = run.settings
    assert (found.budget_seconds, found.steps, found.known_steps) == (5400, GRID, None)
    assert (found.warmup_steps, found.decay_steps) == (50_000, 200_000)
