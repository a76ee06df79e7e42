"""The runs of one side of a task in a suite, and the search of its learning rate."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands import _sweep, finetune, pretrain
from nlpkit.commands._grid import GridRun, Sweep, list_axes, list_runs
from nlpkit.commands._options import Common, RunOptions
from nlpkit.disk import user_path
from nlpkit.errors import DivergedError, RecipeError, UsageError
from nlpkit.evaluate import suite_table as table

if TYPE_CHECKING:
    from nlpkit.evaluate.suite import Suite, TaskEntry
    from nlpkit.json_types import JsonObject
    from nlpkit.train.log import Log

HELD_OUT = 0.1  # of the training rows, in the search
MAX_MORE = 3  # rates beyond the ends of the list
Train = Callable[[Sequence[GridRun]], dict[str, int]]  # returns the exit codes of those that failed


@dataclass(frozen=True)
class Start:
    """Where one side begins: a base with no changes, or settings of a model from nothing."""

    base: str | None
    changes: list[str]
    out: Path


@dataclass(frozen=True)
class Side:
    """One side of a task: its runs from the base, or from nothing (`start` is None).

    `common` has the settings and the directory; `rates` are to be tried, if there are any.
    """

    task: "TaskEntry"
    start: str | None
    common: Common
    seeds: int
    rates: tuple[float, ...]

    def list_runs(self, rate: float | None) -> list[GridRun]:
        """Return the checked runs of all seeds, scored on the held-out files; None: no search."""
        return self._list(self.common, [] if rate is None else [rate], self.seeds)

    def list_trials(self, rates: Sequence[float]) -> list[GridRun]:
        """Return the checked run of each rate: the first seed, scored on training rows."""
        changes = [*(self.common.overrides or ()), "data.valid=[]"]
        changes.append(f"data.valid_fraction={HELD_OUT}")
        out = str(Path(self.common.out or "") / "search")
        return self._list(replace(self.common, overrides=changes, out=out), rates, None)

    def plan(self) -> list[GridRun]:
        """Return the runs that are known before the first one begins, all checked."""
        runs = self.list_runs(self.rates[0] if self.rates else None)
        if not self.rates:
            return runs
        if not runs[0].resolved.recipe.data.valid:
            what = "suite.rates holds out training rows, so the score needs rows of data.valid"
            raise UsageError(f"task {self.task.title}: {what}")
        return [*self.list_trials(self.rates), *runs]

    def _list(self, common: Common, rates: Sequence[float], seeds: int | None) -> list[GridRun]:
        start = ["--from", self.start] if self.start else []
        load = partial(finetune.load_task, common, self.task.recipe, finetune.Start(self.start))
        grid = ["train.lr=" + ",".join(map(repr, rates))] if rates else None
        words = ["finetune", self.task.recipe, *start]
        asked = Sweep(words, load, common, RunOptions(grid=grid, seeds=seeds))
        try:
            runs = list_runs(asked, list_axes(asked))
        except RecipeError as error:
            found = [each.removeprefix("--set ") for each in error.problems]
            found = [each.replace("--grid train.lr", "suite.rates") for each in found]
            raise RecipeError([f"task {self.task.title}: {each}" for each in found]) from error
        _sweep.check_surroundings(runs[0])
        for run in runs:
            pretrain.check_directory(run.resolved, common, False)
        root = user_path(self.common.out or "").parents[1]
        return [replace(run, name=str(run.path.relative_to(root))) for run in runs]

    def search(self, score: str, train: Train) -> tuple["JsonObject", dict[str, int]]:
        """Return the chosen rate with the score of each that was tried, and the runs that failed.

        The list goes on at the end where the best one is, at most `MAX_MORE` times. A rate that
        diverges is worse than the others. No rate is chosen if a run failed for another reason, or
        all diverged.
        """
        rates, fresh = list(self.rates), list(self.rates)
        ranks: dict[float, tuple[float, float]] = {}
        tried: JsonObject = {}
        for left in reversed(range(MAX_MORE + 1)):
            runs = self.list_trials(fresh)
            failed = train(runs)
            for rate, run in zip(fresh, runs, strict=True):
                tried[f"{rate:g}"] = None
                if run.name not in failed:
                    ranks[rate] = table.rank(run.path, score)
                    tried[f"{rate:g}"] = table.read_score(run.path, score)
            if {*failed.values()} - {DivergedError.exit_code} or not ranks:
                return {"chosen": None, "tried": tried}, failed
            best = max(ranks, key=lambda rate: ranks[rate])
            if best not in (rates[0], rates[-1]) or not left:
                break
            fresh = [_go_on(rates, best)]
            rates = sorted([*rates, *fresh])
        return {"chosen": best, "tried": tried}, {}


def _go_on(rates: Sequence[float], best: float) -> float:
    """Return the rate beyond the end `best` of rising rates, as far as the two there are apart."""
    beside = rates[1] if best == rates[0] else rates[-2]
    return float(f"{best * best / beside:.3g}")


@dataclass(frozen=True)
class Planned:
    """A task: its row of the table without scores, its sides, and the runs known of each."""

    row: "JsonObject"
    sides: dict[str, Side]
    runs: dict[str, list[GridRun]]


def plan(
    suite: "Suite", starts: dict[str, Start], common: Common, folder: str, seeds: int
) -> list[Planned]:
    """Return the tasks of a suite, all checked; `folder` has their data."""
    rates = tuple(suite.suite.rates or ())
    named = {each.partition("=")[0].strip() for each in common.overrides or ()}
    if rates and "train.lr" in named:
        raise UsageError("--set train.lr excludes suite.rates")
    tasks = []
    for task in suite.suite.tasks:
        changes = suite.list_changes(task, folder, common.overrides or ())
        sides = {}
        for name, start in starts.items():
            out = str(start.out / task.title / name)
            own = replace(common, overrides=[*changes, *start.changes], out=out)
            sides[name] = Side(task, start.base, own, seeds, rates)
        runs = {name: side.plan() for name, side in sides.items()}
        row = table.start_row(runs[table.PRETRAINED][-1].resolved, changes, task.recipe)
        tasks.append(Planned(row, sides, runs))
    return tasks


def train(
    tasks: Sequence[Planned], limit: float | None, log: "Log"
) -> tuple[list["JsonObject"], dict[str, int]]:
    """Return the rows of the table, and the exit codes of runs that failed.

    `limit` is in seconds, of all together.
    """
    end = None if limit is None else time.monotonic() + limit

    def train_all(runs: Sequence[GridRun]) -> dict[str, int]:
        return _sweep.train_all(runs, None if end is None else end - time.monotonic(), log)

    rows, failed = [], {}
    if not any(side.rates for task in tasks for side in task.sides.values()):
        failed = train_all([run for task in tasks for runs in task.runs.values() for run in runs])
        return [table.add_scores(task.row, list_paths(task.runs)) for task in tasks], failed
    for task in tasks:
        runs, rates = {}, {}
        for name, side in task.sides.items():
            rates[name], wrong = side.search(task.row["score"], train_all)
            chosen = rates[name]["chosen"]
            runs[name] = [] if chosen is None else side.list_runs(chosen)
            failed |= wrong | train_all(runs[name])
        rows.append(table.add_scores(task.row | {table.RATES: rates}, list_paths(runs)))
    return rows, failed


def list_paths(runs: dict[str, list[GridRun]]) -> dict[str, list[Path]]:
    """Return the directories of the runs of each side."""
    return {name: [run.path for run in of_side] for name, of_side in runs.items()}
