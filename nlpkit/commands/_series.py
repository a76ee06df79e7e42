"""The runs of one setting: a condition of an experiment, one side of a task of a suite."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nlpkit import recipe
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.commands import _runs
from nlpkit.commands._grid import Sweep
from nlpkit.commands._options import Common
from nlpkit.commands._runs import Run
from nlpkit.contracts.task import Task
from nlpkit.errors import DataError, DivergedError, FileError, NlpkitError, RecipeError
from nlpkit.evaluate.experiment import PAIRS
from nlpkit.json_types import JsonObject
from nlpkit.report import history
from nlpkit.report.sweep import HELD_OUT, is_lower_better
from nlpkit.train.state import LOSS

SHARE = 0.1  # of the training text or rows, held out in the search
_GROUP = "data.valid_group"
Train = Callable[[Sequence[Run]], dict[str, int]]  # returns the exit codes of those that failed


@dataclass(frozen=True)
class Series:
    """Runs of a recipe in `out/name` that differ in the seed, and a search of their learning rate.

    `explain` returns what a problem of the recipe means to the user. The list of rates goes on at
    the end where the best one is, at most `more` times; `rate` is the chosen one. With `by_rate`
    the seeds of each rate have a directory of their own. Each seed begins with the run of the same
    seed in `base`, if it is given.
    """

    name: str
    recipe: str
    out: Path
    common: Common
    changes: Sequence[str]
    explain: Callable[[str], str]
    seeds: Sequence[int] = ()
    rates: Sequence[float] = ()
    rate: float | None = None
    more: int = 0
    by_rate: bool = False
    base: Path | None = None

    def make(self, seed: int | None, where: str, more: Sequence[str] = ()) -> Run:
        """Return the run of a seed (None: the recipe's) in `where`; raise `RecipeError`."""
        try:
            recipe.find(self.recipe)
        except NlpkitError as error:
            raise type(error)(self.explain(f"recipe: {error}")) from error
        start = [f"init_from={json.dumps(str(self.base / f'seed-{seed}'))}"] if self.base else []
        common = replace(self.common, overrides=[*start, *self.changes, *more], out=None)
        asked = Sweep(["pretrain", self.recipe], partial(common.load, self.recipe), common)
        name, sets = f"{self.name}/{where}", [] if seed is None else [f"seed={seed}"]
        try:
            return asked.make(name, sets, str(self.out / name))
        except RecipeError as error:
            raise RecipeError(sorted({self.explain(each) for each in error.problems})) from error

    def list_runs(self) -> list[Run]:
        """Return the runs of all seeds at the chosen rate, or at that of the recipe."""
        sets = [] if self.rate is None else [f"train.lr={self.rate!r}"]
        folder = f"lr-{self.rate:g}/" if self.by_rate and self.rate is not None else ""
        return [self.make(seed, f"{folder}seed-{seed}", sets) for seed in self.seeds]

    def list_trials(self, rates: Sequence[float]) -> list[Run]:
        """Return the run of each rate: the first seed, scored on training text or rows."""
        sets = ["data.valid=[]", f"data.valid_fraction={SHARE}", "eval.pairs=null"]
        sets += self._list_more() if rates else []
        return [
            self.make(self.seeds[0], f"search/lr-{rate:g}", [*sets, f"train.lr={rate!r}"])
            for rate in rates
        ]

    def _list_more(self) -> list[str]:
        """Return settings: no choice by pairs, rows of the same first text (a premise) together."""
        own = self.make(None, "search").resolved.recipe
        more = [f"train.best_by={LOSS}"] if own.train.best_by == PAIRS else []
        made, config = own.objective[0].objective, own.objective[0].config
        columns = made.named_columns(config) if issubclass(made, Task) else ()
        is_given = any(each.partition("=")[0].strip() == _GROUP for each in self.changes)
        # Images name the column of their class alone: a group would be a whole class.
        if own.data.valid_group or is_given or columns[:1] in ((), (config.setting("label"),)):
            return more
        return [*more, f"{_GROUP}={json.dumps(columns[0])}"]

    def check(self, runs: Sequence[Run]) -> None:
        """Raise an error if one of the runs cannot begin; of a file, with its setting."""
        if self.rates and not runs[-1].resolved.recipe.data.valid:
            why = "their search holds out training text, so the score needs another one"
            raise RecipeError([self.explain(f"data.valid: needed beside rates: {why}")])
        try:
            _runs.check(runs, self.common)
        except (FileError, DataError) as error:
            self.locate(error, runs[-1])
            raise

    def locate(self, error: NlpkitError, run: Run) -> bool:
        """Let an error of a setting, or of a file in the data, name its line; return whether."""
        data, what = run.resolved.recipe.data, str(error).replace("(--set ", "(")
        for key, sources in (("train", data.train), ("valid", data.valid)):
            if isinstance(error, DataError) and any(f in what for s in sources for f in s.files):
                what = f"data.{key}: {what}"
                break
        if is_setting := what.startswith("--set ") or "data." in what.partition(": ")[0]:
            hint = "; --folder DIR names their folder" if "; looked in " in what else ""
            error.args = (self.explain(what) + hint,)
        return is_setting

    def is_ready(self, run: Run) -> bool:
        """Return whether the rate of a run is known, it has not diverged, and its base is there."""
        base = None if self.base is None else RunDirectory(self.base / run.path.name)
        is_known = self.rate is not None or not self.rates
        return is_known and not run.has_diverged and (base is None or base.finished() is not None)

    def search(self, score: str, train: Train) -> tuple[JsonObject, dict[str, int]]:
        """Return the chosen rate with the score of each that was tried, and the runs that failed.

        A rate that diverges is worse than the others, and is not tried again. No rate is chosen if
        a run failed for another reason, or all diverged.
        """
        rates, fresh = list(self.rates), list(self.rates)
        ranks: dict[float, tuple[float, float]] = {}
        tried: JsonObject = {}
        for left in reversed(range(self.more + 1)):
            runs = self.list_trials(fresh)
            failed = {run.name: DivergedError.exit_code for run in runs if run.has_diverged}
            failed |= train([run for run in runs if run.name not in failed])
            for rate, run in zip(fresh, runs, strict=True):
                figures = history.read(run.path, run.name).final if run.is_finished else {}
                tried[f"{rate:g}"] = figures.get(score)
                if figures:
                    ranks[rate] = rank(figures, score)
            if {*failed.values()} - {DivergedError.exit_code} or not ranks:
                return {"chosen": None, "tried": tried}, failed
            best = max(ranks, key=lambda rate: ranks[rate])
            if best not in (rates[0], rates[-1]) or not left:
                break
            beside = rates[1] if best == rates[0] else rates[-2]
            fresh = [float(f"{best * best / beside:.3g}")]  # as far beyond the end
            rates = sorted([*rates, *fresh])
        return {"chosen": best, "tried": tried}, {}


def rank(figures: dict[str, float | None], score: str) -> tuple[float, float]:
    """Return a key, the larger the better run: the score, then the loss where scores are equal.

    So runs that always give the commonest answer are told apart.
    """
    sign = -1 if is_lower_better(f"{HELD_OUT}{score}") else 1
    found = [(sign, figures.get(score)), (-1, figures.get(LOSS))]
    value, lost = (-math.inf if f is None or not math.isfinite(f) else s * f for s, f in found)
    return value, lost
