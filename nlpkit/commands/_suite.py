"""The runs of a suite: each task from the base and from nothing, at a rate of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nlpkit.commands._options import Common
from nlpkit.commands._runs import Run, Runner
from nlpkit.commands._series import Series
from nlpkit.errors import DivergedError, UsageError
from nlpkit.evaluate import suite_table as table
from nlpkit.evaluate.suite import Suite, place
from nlpkit.json_types import JsonObject
from nlpkit.recipe.places import Document

MAX_MORE = 3  # rates beyond the ends of the list
Starts = dict[str, tuple[list[str], Path]]  # settings of where each side begins, and its directory


@dataclass(frozen=True)
class Planned:
    """A task: its row of the table without scores, its sides, and the runs known of each."""

    row: JsonObject
    sides: dict[str, Series]
    runs: dict[str, list[Run]]


def plan(
    file: tuple[Suite, Document], starts: Starts, common: Common, folder: str, seeds: int
) -> list[Planned]:
    """Return the tasks of a suite, all checked; `folder` has their data."""
    suite, document = file
    given, rates = common.overrides or (), tuple(suite.suite.rates or ())
    if rates and "train.lr" in {each.partition("=")[0].strip() for each in given}:
        raise UsageError("--set train.lr excludes suite.rates")
    entries = [(f"suite.tasks.{n}.", task.train) for n, task in enumerate(suite.suite.tasks)]
    for where, settings in [("", suite.train), *entries]:
        if rates and settings.get("lr") is not None:
            raise UsageError(document.locate(f"{where}train.lr: excludes suite.rates"))
    tasks = []
    for number, task in enumerate(suite.suite.tasks):
        entry, title = ("suite", "tasks", number), f"task {task.title}"
        changes = suite.list_changes(task, folder, given)
        explain = partial(place, entry=entry, title=title, document=document, given=given)
        sides, runs = {}, {}
        for name, (start, out) in starts.items():
            side = Series(
                *(f"{task.title}/{name}", task.recipe, out, common),
                changes=[*start, *changes],  # --set counts on both sides
                explain=explain,
                rates=rates,
                more=MAX_MORE,
                by_rate=True,
            )
            first = side.make(None, "").resolved.recipe
            sides[name] = side = replace(side, seeds=range(first.seed, first.seed + seeds))
            first_rate = replace(side, rate=rates[0] if rates else None)
            runs[name] = [*side.list_trials(rates), *first_rate.list_runs()]
            side.check(runs[name])
        try:
            row = table.start_row(runs[table.PRETRAINED][-1].resolved, changes, task.recipe)
        except UsageError as error:
            raise UsageError(explain(str(error))) from error
        tasks.append(Planned(row, sides, runs))
    return tasks


def train(tasks: Sequence[Planned], runner: Runner) -> tuple[list[JsonObject], dict[str, int]]:
    """Return the rows of the table, and the exit codes of runs that failed."""
    failed: dict[str, int] = {}
    for task in tasks:
        for name, side in task.sides.items():
            if side.rates:
                found, wrong = side.search(task.row["score"], runner.train)
                task.row.setdefault(table.RATES, {})[name] = found
                chosen = replace(side, rate=found["chosen"])
                task.runs[name] = [] if chosen.rate is None else chosen.list_runs()
                failed |= wrong
    runs = [run for task in tasks for of in task.runs.values() for run in of]
    # Runs repeat to the bit, so one that diverged will diverge again.
    failed |= {run.name: DivergedError.exit_code for run in runs if run.has_diverged}
    failed |= runner.train([run for run in runs if not run.has_diverged])
    paths = [{name: [run.path for run in of] for name, of in task.runs.items()} for task in tasks]
    rows = [table.add_scores(task.row, of) for task, of in zip(tasks, paths, strict=True)]
    return rows, failed
