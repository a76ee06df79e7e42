"""What an experiment knows so far: a row for each condition, a verdict for each expectation.

Figures are those after the last step, so that nothing is chosen by held-out text: of the evaluation
that a run ends with, and of `nlpkit eval` for scores that it has not.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nlpkit.checkpoints.run_directory import RECIPE
from nlpkit.contracts.abilities import Continues
from nlpkit.contracts.task import Task
from nlpkit.disk import read_json
from nlpkit.errors import DataError
from nlpkit.evaluate import verdicts
from nlpkit.evaluate.experiment import Condition, Experiment
from nlpkit.json_types import JsonObject
from nlpkit.recipe import Resolved, fit
from nlpkit.report import history, seeds
from nlpkit.report.history import FIGURES, History
from nlpkit.score import named
from nlpkit.text_table import aligned
from nlpkit.units import format_duration

PAIRS, PART = "pairs", "loss."
SCORES = "scores.json"  # what `nlpkit eval` has found, in the directory of a run
FINISHED, DIVERGED = "finished", "diverged"
_MISSING = "–"


def is_score(figure: str) -> bool:
    """Return whether `nlpkit eval` computes a figure when it is asked to."""
    return not (figure in FIGURES or figure.startswith(PART) or figure == PAIRS)


def find_sign(figure: str) -> int:
    """Return 1 if the higher figure is the better one, or -1; raise `WrongScore` for no figure."""
    higher = not named.lower_is_better(figure) if is_score(figure) else figure == PAIRS
    return 1 if higher else -1


def writes_text(resolved: Resolved) -> bool:
    """Return whether the answers of a task are texts that the model writes."""
    made = fit.classes(resolved.recipe.objective)
    return any(issubclass(each, Task) and issubclass(each, Continues) for each in made)


def find_lack(figure: str, condition: Condition, resolved: Resolved) -> str | None:
    """Return why a condition, {}, has no such figure after its last step, or None if it has."""
    recipe, other = resolved.recipe, condition.evaluates
    if not is_score(figure):
        has = figure != PAIRS or bool(recipe.eval.pairs)
    else:
        try:
            named.resolve(figure)
        except named.WrongScore as error:
            return error.what
        made = fit.classes(recipe.objective)
        has = len(made) > 1 or issubclass(made[0], Task) or figure in made[0].scores
    if not (recipe.data.valid or recipe.data.valid_fraction):
        return "{} has no data.valid"
    if other is not None and not is_score(figure):
        return f"{{}} evaluates {other}, so both have the same {figure}"
    known = f"{', '.join(FIGURES)} are always there, pairs with eval.pairs, scores with a task"
    return None if has else f"{{}} has no {figure}; {known}"


@dataclass(frozen=True)
class Measured:
    """A condition: its runs that have begun, how many there will be, and what its plan says."""

    histories: Sequence[History]
    count: int
    plan: JsonObject
    rate: float | None
    searched: int  # runs of the search that are left

    @property
    def finished(self) -> list[History]:
        """The finished runs."""
        return [run for run in self.histories if run.state == FINISHED]

    @property
    def diverged(self) -> list[History]:
        """The runs that diverged, which have no figures."""
        return [run for run in self.histories if run.state == DIVERGED]

    def list_values(self, figure: str) -> dict[str, float]:
        """Return the figure of each run that has it, by the name of its seed's directory.

        It is not a number if it is undefined, or the run diverged.

        Raises:
            DataError: a run was not evaluated by this figure.
        """
        found: dict[str, float | None] = {run.path.name: None for run in self.diverged}
        for run in self.finished:
            figures = list_figures(run)
            if figure in figures:
                found[run.path.name] = figures[figure]
            elif not is_score(figure):  # scores are yet to come
                raise DataError(f"{run.path}: its last evaluation has no {figure}")
        return {seed: verdicts.DIVERGED if v is None else v for seed, v in found.items()}

    @property
    def left(self) -> float:
        """The seconds that its runs will still take: as the finished ones, or else as planned."""
        whole = _mean([_seconds(run) for run in self.finished]) or self.plan.get("seconds", 0.0)
        count = self.count - len(self.finished) - len(self.diverged) + self.searched
        begun = [_seconds(run) for run in self.histories if run.state == "not finished"]
        return max(0.0, count * whole - sum(begun))

    def describe(self, figures: Sequence[str]) -> JsonObject:
        """Return the row of the condition."""
        done = self.finished
        steps, per_step = _mean([run.last_step for run in done]), self.plan.get("flops_per_step")
        known = seeds.summary([], [list_figures(run) for run in done])["figures"]
        signatures = [_find_last(run).get("signatures") for run in done]
        return {
            "runs": self.count,
            FINISHED: len(done),
            DIVERGED: len(self.diverged),
            "parameters": self.plan.get("parameters"),
            "rate": self.rate,
            "steps": steps,
            "tokens": _mean([run.steps[-1]["tokens"] for run in done if run.steps]),
            "seconds": _mean([_seconds(run) for run in done]),
            "flops": per_step * steps if per_step and steps else None,
            "signatures": next(filter(None, signatures), {}),
            **{
                each: known.get(each, {"mean": None, "std": None, "values": []}) for each in figures
            },
        }


def _find_last(run: History) -> JsonObject:
    """Return the evaluation after the last step, empty if there is none."""
    return run.evaluations[max(run.evaluations)] if run.evaluations else {}


def list_figures(run: History) -> dict[str, float | None]:
    """Return the figures after the last step; one may be undefined."""
    last = _find_last(run)
    parts = {f"{PART}{name}": loss for name, loss in last.get("losses", {}).items()}
    return {name: last[name] for name in FIGURES if name in last} | last.get("metrics", {}) | parts


def _seconds(run: History) -> float:
    return run.spent or math.fsum(record.get("seconds") or 0.0 for record in run.steps)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def read_runs(root: Path, name: str, trained: str, count: int) -> list[History]:
    """Return the histories of the runs of a condition that have begun, with their scores."""
    found = []
    for seed in range(1, count + 1):
        path, label = root / trained / f"seed-{seed}", f"{name}/seed-{seed}"
        if (path / RECIPE).is_file():
            found.append(history.read(path, label, may_be_empty=True))
            last = _find_last(found[-1])
            if last and (root / label / SCORES).is_file():
                scores = read_json(root / label / SCORES)
                last["metrics"] |= scores["metrics"]
                last["signatures"] = scores.get("signatures")
    return found


def describe(found: Experiment, measured: Mapping[str, Measured]) -> JsonObject:
    """Return the rows, the verdicts and the time that is left, as plain data."""
    figures = list(dict.fromkeys(each.by for each in found.expect))
    trained = {found.find_trained(name) for name in found.conditions}
    judged = []
    for each in found.expect:
        sides = [
            [measured[name].list_values(each.by) for name in s] for s in (each.first, each.than)
        ]
        first, other = map(_average, sides)
        verdict = verdicts.judge(each, found.rule, first, other, find_sign(each.by))
        complete = len(first) == len(other) == found.seeds
        judged.append(
            {"expected": str(each), "final": complete, "text": str(verdict), **verdict.to_json()}
        )
    return {
        "experiment": found.name,
        "claim": found.claim,
        "paper": ": ".join(each for each in (found.paper, found.figure) if each),
        "hash": found.hash(),
        "figures": figures,
        "conditions": {name: each.describe(figures) for name, each in measured.items()},
        "expectations": judged,
        "seconds_left": math.ceil(sum(measured[name].left for name in trained)),
    }


def _average(conditions: Sequence[Mapping[str, float]]) -> list[float]:
    """Return the mean of several conditions, for each seed that all of them have."""
    common = [seed for seed in conditions[0] if all(seed in each for each in conditions)]
    return [statistics.fmean(each[seed] for each in conditions) for seed in common]


def format_table(result: JsonObject) -> str:
    """Return what `describe` has found as text."""
    rows, figures = list(result["conditions"].items()), result["figures"]
    shown: dict[str, Callable[..., str]]
    shown = {"parameters": _count, "rate": "{:g}".format, "steps": _count, "tokens": _count}
    shown |= {"seconds": format_duration, "flops": "{:.2e}".format}
    titles = {"seconds": "time", "flops": "FLOPs"}
    cells = [["condition", "runs", *(titles.get(key, key) for key in shown), *figures]]
    for name, row in rows:
        state = f"{row[FINISHED]} of {row['runs']}"
        state += f", {row[DIVERGED]} diverged" if row[DIVERGED] else ""
        line = [_MISSING if row[key] is None else show(row[key]) for key, show in shown.items()]
        cells.append([name, state, *line, *(_format(row[figure]) for figure in figures)])
    lines = [each for each in (result["claim"], result["paper"]) if each]
    lines += [*([""] if lines else []), *aligned(cells), ""]
    for name, row in rows:
        said = [f"{key} {value}" for key, value in row["signatures"].items()]
        lines += [f"{name}: {', '.join(said)}"] if said else []
    lines += [""] if lines[-1] else []
    for each in result["expectations"]:
        so_far = "" if each["final"] else "so far: "
        lines.append(f"{each['expected']}: {so_far}{each['text']}")
    if result["seconds_left"]:
        lines += ["", f"left: about {format_duration(result['seconds_left'])} of training"]
    return "\n".join(lines)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _format(figure: JsonObject) -> str:
    if figure["mean"] is None:
        return _MISSING
    deviation = "" if figure["std"] is None else f" ± {figure['std']:.4f}"
    return f"{figure['mean']:.4f}{deviation}"
