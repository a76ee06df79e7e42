"""Runs with a budget of time on a clock that only moves when a test says so."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from nlpkit.checkpoints.run_directory import METRICS
from nlpkit.contracts.batch import Batch, Loss, Term
from nlpkit.data.loader import Position, Step
from nlpkit.runs.pretrain import _pace
from nlpkit.train import budget, loop
from nlpkit.train.log import QUIET, Log, Metrics
from nlpkit.train.loop import Job, train
from nlpkit.train.schedule import ResolvedTraining, resolve_steps
from nlpkit.train.settings import Config
from nlpkit.train.signals import StopFlag
from nlpkit.train.state import State


class Killed(BaseException):
    """Ends a run as kill -9 does: nothing more is written."""


@dataclass
class FakeTime:
    """The time in seconds; `deaths` are the times at which a run is killed."""

    now: float = 100.0
    deaths: list[float] = field(default_factory=list)

    def passes(self, seconds: float) -> None:
        """Let time pass; raise `Killed` if it is time to die."""
        self.now += seconds
        if self.deaths and self.now >= self.deaths[0]:
            self.deaths.pop(0)
            raise Killed


class _Model(nn.Module):
    def __init__(self, computes: Callable[[], None]) -> None:
        super().__init__()
        self.computes = computes
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, batch: Batch) -> Loss:
        self.computes()
        return Loss({"term": Term(self.weight.sum() ** 2, 1)})


@dataclass
class Timed:
    """A made-up run: `step(number)` is how long a step takes; so are `evaluation` and `saving`."""

    folder: Path
    time: FakeTime
    step: Callable[[int], float]
    evaluation: float = 0.0
    saving: float = 0.0
    train: dict[str, Any] = field(default_factory=dict)
    state: State = field(default_factory=State)
    saved: list[int] = field(default_factory=list)
    stable: int = 0  # the step that was saved as the last one before the decay
    used: float = 0.0  # time in the loop, with what was lost
    _number: int = 0  # the step that is computed

    @property
    def settings(self) -> ResolvedTraining:
        """The settings of the run."""
        usual = {"budget": "1000s", "tokens_per_step": 1, "schedule": "linear", "eval_every": 100}
        return resolve_steps(Config(**(usual | self.train)), None)  # type: ignore[arg-type]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the steps."""
        return [each for each in self.lines if "held_out" not in each]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All records."""
        text = (self.folder / METRICS).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def run(self) -> State:
        """Train until the end, also after the deaths; return the last state."""
        self.folder.mkdir(exist_ok=True)
        begin = self.time.now
        while True:
            try:
                state = self._process()
                self.used += self.time.now - begin
                return state
            except Killed:
                self.used += self.time.now - begin
                self.time.now += 5000  # until the same command is given again
                begin = self.time.now

    def _process(self) -> State:
        AcceleratorState._reset_state(reset_partial_state=True)
        state, settings = copy.deepcopy(self.state), self.settings
        if state.step:
            state = State.from_json(json.loads(json.dumps(state.to_json())), "loss")
        accelerator = Accelerator(cpu=True)
        status = SimpleNamespace(status=lambda: {"budget_seconds": settings.budget_seconds})
        run: Any = SimpleNamespace(
            settings=settings,
            accelerator=accelerator,
            directory=SimpleNamespace(path=self.folder, status=status.status),
            data=SimpleNamespace(held_out=True if self.evaluation else None),
            resolved=SimpleNamespace(path=Path),
            log=Log(QUIET),
        )
        pace = _pace(run, state)
        model = _Model(lambda: self.time.passes(self.step(self._number) * 3 / 4))
        rates = [{"params": model.parameters(), "initial_lr": 1.0}]
        job = Job(
            accelerator=accelerator,
            training=model,
            optimizers=[torch.optim.SGD(rates, lr=0.0)],
            settings=settings,
            seed=0,
            steps=self._steps,
            evaluate=self._evaluate if self.evaluation else None,
            save=self._save,
            log=Log(QUIET),
            metrics=Metrics(self.folder / METRICS, state.step, state.evaluated_step),
            stop=StopFlag(),
            pace=pace,
        )
        try:
            return train(job, state)
        finally:
            assert job.metrics
            job.metrics.close()

    def _steps(self, state: State) -> Iterator[Step]:
        number = state.step
        while True:
            self._number = number = number + 1
            self.time.passes(self.step(number) / 4)  # to make the batches
            yield Step([Batch({}, np.ones(1, np.int64), {"term": 1})], Position(0, number))

    def _evaluate(self, progress: float) -> dict[str, Any]:
        self.time.passes(self.evaluation)
        return {"loss": 1.0, "losses": {}, "perplexity": None, "bits_per_character": None}

    def _save(self, state: State, best: bool) -> None:
        self.time.passes(self.saving)
        self.state = copy.deepcopy(state)
        self.saved.append(state.step)
        if state.is_stable_end(self.settings):
            self.stable = state.step


def deaths(seed: int, number: int, seconds: float) -> list[float]:
    """Return times on the clock of a run at which it dies, in the first 90 % of its budget."""
    draw = random.Random(seed)
    at, found, down = 100.0, [], 0.0
    for used in sorted(draw.uniform(0.05, 0.9) * seconds for _ in range(number)):
        found.append(at + used + down)
        down += 5000
    return found


def drive(monkeypatch: Any, time: FakeTime, step: float, evaluation: float, saving: float) -> None:
    """Let a real run have this time: its steps, evaluations and checkpoints take so long."""
    from nlpkit.runs import save as saved
    from nlpkit.train.held_out import HeldOut

    rates, evaluate, save = loop.set_rates, HeldOut.evaluate, saved.save

    def timed(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def longer(*given: Any, **more: Any) -> Any:
            result = function(*given, **more)
            time.passes(seconds)
            return result

        return longer

    monkeypatch.setattr(budget, "now", lambda: time.now)
    monkeypatch.setattr(loop, "set_rates", timed(rates, step))
    monkeypatch.setattr(HeldOut, "evaluate", timed(evaluate, evaluation))
    monkeypatch.setattr(saved, "save", timed(save, saving))
