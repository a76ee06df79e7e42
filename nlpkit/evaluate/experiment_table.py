"""What an experiment knows so far: a row for each condition, a verdict for each expectation.

Figures are those after the last step, so that nothing is chosen by held-out text: of the evaluation
that a run ends with, and of `nlpkit eval` for scores that it has not.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nlpkit.checkpoints.run_directory import RECIPE
from nlpkit.disk import read_json
from nlpkit.errors import DataError
from nlpkit.evaluate import verdicts
from nlpkit.evaluate.experiment import Experiment
from nlpkit.json_types import JsonObject
from nlpkit.report import history
from nlpkit.report.history import FIGURES, History
from nlpkit.score import named
from nlpkit.text_table import aligned
from nlpkit.units import format_duration

PAIRS, PART = "pairs", "loss."
SCORES = "scores.json"  # what `nlpkit eval` has found, in the directory of a run
FINISHED, DIVERGED = "finished", "diverged"
_MISSING = "–"


def find_sign(figure: str) -> int:
    """Return 1 if the higher figure is the better one, or -1; raise `WrongScore` for no figure."""
    if figure in FIGURES or figure.startswith(PART):
        return -1
    return 1 if figure == PAIRS or not named.lower_is_better(figure) else -1


def is_score(figure: str) -> bool:
    """Return whether `nlpkit eval` computes a figure when it is asked to."""
    return not (figure in FIGURES or figure.startswith(PART) or figure == PAIRS)


@dataclass(frozen=True)
class Measured:
    """A condition: its runs that have begun, how many there will be, and what its plan says."""

    histories: Sequence[History]
    count: int
    plan: JsonObject
    rate: float | None
    searched: int = 0  # runs of the search that are left

    def list_values(self, figure: str) -> list[float]:
        """Return the figure of each finished run; not a number if it is undefined, or diverged.

        Raises:
            DataError: a run was not evaluated by this figure.
        """
        found = []
        for run in self.histories:
            figures = list_figures(run)
            if run.state == FINISHED and figure not in figures and is_score(figure):
                continue  # `nlpkit eval` comes yet
            if run.state == FINISHED and figure not in figures:
                what = f"its last evaluation has no {figure}; see data.valid and eval.metrics"
                raise DataError(f"{run.path}: {what}")
            if run.state in (FINISHED, DIVERGED):
                value = figures.get(figure) if run.state == FINISHED else None
                found.append(verdicts.DIVERGED if value is None else value)
        return found

    def count_state(self, state: str) -> int:
        """Return how many runs are in a state."""
        return sum(run.state == state for run in self.histories)

    @property
    def seconds(self) -> float:
        """What a whole run takes: as measured, or else as planned."""
        done = [run.spent or _sum_seconds(run) for run in self.histories if run.state == FINISHED]
        return statistics.fmean(done) if done else self.plan.get("seconds", 0.0)

    @property
    def left(self) -> float:
        """The seconds that its runs will still take."""
        whole = self.count - self.count_state(FINISHED) - self.count_state(DIVERGED)
        begun = [_sum_seconds(run) for run in self.histories if run.state == "not finished"]
        return max(0.0, (whole + self.searched) * self.seconds - sum(begun))

    def describe(self, figures: Sequence[str]) -> JsonObject:
        """Return the row of the condition."""
        done = [run for run in self.histories if run.state == FINISHED]
        row: JsonObject = {
            "runs": self.count,
            FINISHED: len(done),
            DIVERGED: self.count_state(DIVERGED),
            "parameters": self.plan.get("parameters"),
            "rate": self.rate,
            "steps": _mean([run.last_step for run in done]),
            "tokens": _mean([run.steps[-1].get("tokens") for run in done if run.steps]),
            "seconds": _mean([run.spent or _sum_seconds(run) for run in done]),
        }
        per_step = self.plan.get("flops_per_step")
        row["flops"] = per_step * row["steps"] if per_step and row["steps"] else None
        last = [run.evaluations[max(run.evaluations)] for run in done if run.evaluations]
        row["signatures"] = next((each["signatures"] for each in last if "signatures" in each), {})
        for figure in figures:
            values = [list_figures(run).get(figure) for run in done]
            known = [value for value in values if value is not None]
            deviation = statistics.stdev(known) if len(known) > 1 else None
            row[figure] = {"mean": _mean(known), "std": deviation, "values": values}
        return row


def list_figures(run: History) -> dict[str, float | None]:
    """Return the figures of the evaluation after the last step; one may be undefined."""
    if not run.evaluations:
        return {}
    last = run.evaluations[max(run.evaluations)]
    parts = {f"{PART}{name}": loss for name, loss in last["losses"].items()}
    return {name: last.get(name) for name in FIGURES} | last["metrics"] | parts


def _sum_seconds(run: History) -> float:
    return sum(record.get("seconds") or 0.0 for record in run.steps)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def read_runs(root: Path, name: str, trained: str, seeds: int) -> list[History]:
    """Return the histories of the runs of a condition that have begun, with their scores."""
    found = []
    for seed in range(1, seeds + 1):
        path, label = root / trained / f"seed-{seed}", f"{name}/seed-{seed}"
        if (path / RECIPE).is_file():
            found.append(history.read(path, label, may_be_empty=True))
            if found[-1].evaluations and (root / label / SCORES).is_file():
                last = found[-1].evaluations[max(found[-1].evaluations)]
                scores = read_json(root / label / SCORES)
                last["metrics"] |= scores["metrics"]
                last["signatures"] = scores.get("signatures")
    return found


def describe(found: Experiment, measured: Mapping[str, Measured]) -> JsonObject:
    """Return the rows, the verdicts and the time that is left, as plain data."""
    figures = list(dict.fromkeys(each.by for each in found.expect))
    judged = []
    for each in found.expect:
        first, other = (measured[name].list_values(each.by) for name in (each.first, each.than))
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
        "seconds_left": math.ceil(sum(each.left for each in measured.values())),
    }


def format_table(result: JsonObject) -> str:
    """Return what `describe` has found as text."""
    rows = list(result["conditions"].items())
    figures = result["figures"]
    head = ["condition", "runs", "parameters", "rate", "steps", "tokens", "time", "FLOPs"]
    cells = [[*head, *figures]]
    for name, row in rows:
        state = f"{row[FINISHED]} of {row['runs']}"
        state += f", {row[DIVERGED]} diverged" if row[DIVERGED] else ""
        numbers = [_count(row[key]) for key in ("parameters", "steps", "tokens")]
        rate = _MISSING if row["rate"] is None else f"{row['rate']:g}"
        time = _MISSING if row["seconds"] is None else format_duration(row["seconds"])
        flops = _MISSING if row["flops"] is None else f"{row['flops']:.2e}"
        line = [name, state, numbers[0], rate, *numbers[1:], time, flops]
        cells.append([*line, *(_format(row[figure]) for figure in figures)])
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


def _count(value: float | None) -> str:
    return _MISSING if value is None else f"{value:,.0f}"


def _format(figure: JsonObject) -> str:
    if figure["mean"] is None:
        return _MISSING
    deviation = "" if figure["std"] is None else f" ± {figure['std']:.4f}"
    return f"{figure['mean']:.4f}{deviation}"
