"""The table of an experiment: a row for each condition, a verdict for each expectation.

Figures are those after the last step, so that nothing is chosen by held-out text: of the evaluation
that a run ends with, and of `nlpkit eval` for scores that it has not.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nlpkit import registry
from nlpkit.checkpoints.run_directory import RECIPE, RunDirectory
from nlpkit.contracts.abilities import Continues
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.task import Task
from nlpkit.disk import read_json
from nlpkit.errors import UsageError
from nlpkit.evaluate import verdicts
from nlpkit.evaluate.experiment import Condition, Experiment
from nlpkit.json_types import JsonObject
from nlpkit.recipe import Resolved, fit
from nlpkit.report import history, seeds
from nlpkit.report.history import FIGURES, History
from nlpkit.report.sweep import HELD_OUT, is_lower_better
from nlpkit.score import named
from nlpkit.text_table import aligned
from nlpkit.units import format_duration

PAIRS, PART = "pairs", "loss."
SCORES = "scores.json"  # what `nlpkit eval` has found, in the directory of a run
_MISSING = "–"


def is_score(figure: str) -> bool:
    """Return whether `nlpkit eval` computes a figure when it is asked to."""
    return not (figure in FIGURES or figure.startswith(PART) or figure == PAIRS)


def writes_text(resolved: Resolved) -> bool:
    """Return whether the answers of a task are texts that the model writes."""
    made = fit.classes(resolved.recipe.objective)
    return any(issubclass(each, Task) and issubclass(each, Continues) for each in made)


def find_lack(figure: str, condition: Condition, resolved: Resolved) -> str | None:
    """Return why a condition, {}, has no such figure after its last step, or None if it has."""
    recipe, other = resolved.recipe, condition.evaluates
    made = fit.classes(recipe.objective)
    if not (recipe.data.valid or recipe.data.valid_fraction):
        return "{} has no data.valid"
    known = f"{', '.join(FIGURES)} are always there, pairs with eval.pairs, scores with a task"
    if not is_score(figure):
        has = figure != PAIRS or bool(recipe.eval.pairs)
        if other is not None:
            return f"{{}} evaluates {other}, so both have the same {figure}"
    else:
        try:
            named.resolve(figure)
        except named.WrongScore as error:
            near = registry.suggest(figure, [*FIGURES, PAIRS])
            return f"no {figure!r}{near}" if near else f"{error.what}; {known}"
        has = len(made) > 1 or issubclass(made[0], Task) or figure in made[0].scores
    return None if has else f"{{}} has no {figure}; {known}"


def check_readable(figure: str, objective: Objective) -> None:
    """Raise `UsageError` if an objective has no such figure, or answers it cannot score."""
    if figure in FIGURES[1:] and not objective.predicts_text:
        raise UsageError(f"has no {figure}: it predicts no text")
    if figure.startswith(PART) and figure.removeprefix(PART) not in objective.parts:
        raise UsageError(f"has no {figure}; its parts are {', '.join(objective.parts)}")
    if not (isinstance(objective, Task) and is_score(figure)):
        return
    words = ["one", "two"] if isinstance(objective, Continues) else ["0", "1"]
    answers = objective.config.setting("labels") or words
    if problem := named.explain_unreadable(figure, answers):
        raise UsageError(problem)


@dataclass(frozen=True)
class Measured:
    """A condition: its runs that have begun, how many there will be, and what its plan says."""

    histories: Sequence[History]
    count: int
    plan: JsonObject
    rate: float | None
    searched: int  # runs of the search that are left

    def list_runs(self, state: str) -> list[History]:
        """Return the runs that are `finished`, `diverged` or `not finished`."""
        return [run for run in self.histories if run.state == state]

    def list_values(self, figure: str) -> dict[str, float]:
        """Return the figure of each run that has it, by the name of its seed's directory.

        It is not a number if it is undefined, or the run diverged.
        """
        found = {run.path.name: math.nan for run in self.list_runs("diverged")}
        for run in self.list_runs("finished"):
            if figure in run.final or not is_score(figure):  # scores are yet to come
                value = run.final.get(figure)
                found[run.path.name] = math.nan if value is None else value
        return found

    @property
    def left(self) -> float:
        """The seconds that its runs will still take: as the finished ones, or else as planned."""
        done, begun = map(self.list_runs, ("finished", "not finished"))
        whole = _mean(map(_seconds, done)) or self.plan.get("seconds", 0.0)
        count = self.count - len(done) - len(self.list_runs("diverged")) + self.searched
        return max(0.0, count * whole - sum(map(_seconds, begun)))

    def describe(self, figures: Sequence[str]) -> JsonObject:
        """Return the row of the condition."""
        done, per_step = self.list_runs("finished"), self.plan.get("flops_per_step")
        steps = _mean([run.last_step for run in done])
        signatures = [run.last.get("signatures") for run in done]
        return {
            "runs": self.count,
            "finished": len(done),
            "diverged": len(self.list_runs("diverged")),
            "parameters": self.plan.get("parameters"),
            "rate": self.rate,
            "steps": steps,
            "tokens": _mean([run.steps[-1]["tokens"] for run in done if run.steps]),
            "seconds": _mean(map(_seconds, done)),
            "flops": per_step * steps if per_step and steps else None,
            "signatures": next(filter(None, signatures), {}),
            **{each: seeds.summarize([run.final.get(each) for run in done]) for each in figures},
        }


def _seconds(run: History) -> float:
    return run.spent or math.fsum(record.get("seconds") or 0.0 for record in run.steps)


def _mean(values: Iterable[float]) -> float | None:
    return seeds.summarize([*values])["mean"]


def measure(found: Experiment, root: Path, state: JsonObject) -> dict[str, Measured]:
    """Return what is known of each condition: its runs that have begun, with their scores."""
    measured = {}
    for name in found.conditions:
        trained, histories = found.find_trained(name), []
        for seed in range(1, found.seeds + 1):
            path, label = root / trained / f"seed-{seed}", f"{name}/seed-{seed}"
            if not (path / RECIPE).is_file():
                continue
            histories.append(history.read(path, label, may_be_empty=True))
            last = histories[-1].last
            if last and (root / label / SCORES).is_file():
                scores = read_json(root / label / SCORES)
                last["metrics"] |= scores["metrics"]
                last["signatures"] = scores.get("signatures")
        rate = state["rates"].get(trained, {}).get("chosen")
        rates = found.list_rates(name) if rate is None else []
        trials = [RunDirectory(root / trained / "search" / f"lr-{each:g}") for each in rates]
        left = sum(not trial.finished() for trial in trials)
        plan = state["plans"].get(trained, {})
        measured[name] = Measured(histories, found.seeds, plan, rate, left)
    return measured


def describe(found: Experiment, measured: Mapping[str, Measured]) -> JsonObject:
    """Return the rows, the verdicts and the time that is left, as plain data."""
    figures = list(dict.fromkeys(each.by for each in found.expect))
    trained = {found.find_trained(name) for name in found.conditions}
    judged = []
    for each in found.expect:
        first, other = (
            _average([measured[name].list_values(each.by) for name in names])
            for names in (each.first, each.than)
        )
        sign = -1 if is_lower_better(f"{HELD_OUT}{each.by}") else 1
        said = verdicts.judge(each, found.rule, first, other, sign)
        complete = len(first) == len(other) == found.seeds
        judged.append({"expected": str(each), "final": complete, **said})
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
    shown: dict[str, Callable[..., str]]
    shown = {"parameters": _count, "rate": "{:g}".format, "steps": _count, "tokens": _count}
    shown |= {"seconds": format_duration, "flops": "{:.2e}".format}
    titles = {"seconds": "time", "flops": "FLOPs"}
    cells = [["condition", "runs", *(titles.get(key, key) for key in shown), *result["figures"]]]
    signed = []
    for name, row in result["conditions"].items():
        state = f"{row['finished']} of {row['runs']}"
        state += f", {row['diverged']} diverged" if row["diverged"] else ""
        line = [_MISSING if row[key] is None else show(row[key]) for key, show in shown.items()]
        means = [seeds.format_mean(row[figure], 4) for figure in result["figures"]]
        cells.append([name, state, *line, *means])
        said = [f"{key} {value}" for key, value in row["signatures"].items()]
        signed += [f"{name}: {', '.join(said)}"] if said else []
    found = [
        f"{each['expected']}: {'' if each['final'] else 'so far: '}{each['text']}"
        for each in result["expectations"]
    ]
    left = format_duration(result["seconds_left"])
    last = [f"left: about {left} of training"] if result["seconds_left"] else []
    about = [each for each in (result["claim"], result["paper"]) if each]
    blocks = [about, aligned(cells), signed, found, last]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _count(value: float) -> str:
    return f"{value:,.0f}"
