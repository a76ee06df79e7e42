"""The table of an experiment: a row for each condition, a verdict for each expectation.

Figures are those after the last step, so that nothing is chosen by held-out text: of the evaluation
that a run ends with, and of `nlpkit eval` for scores that it has not.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nlpkit.checkpoints.run_directory import RECIPE, RunDirectory
from nlpkit.disk import read_json
from nlpkit.evaluate.experiment import Expectation, Experiment, Rule, is_score
from nlpkit.json_types import JsonObject
from nlpkit.report import history, seeds
from nlpkit.report.sweep import HELD_OUT, is_lower_better
from nlpkit.text_table import aligned
from nlpkit.units import format_duration

REPRODUCED, NOT_REPRODUCED, TOO_FEW = "reproduced", "not reproduced", "too few seeds"
STATE, SCORES = "experiment.json", "scores.json"  # plans and rates; of a run, what `eval` found


@dataclass(frozen=True)
class Measured:
    """A condition: its runs that have begun, how many there will be, and what its plan says."""

    histories: Sequence[history.History]
    count: int
    plan: JsonObject
    rate: float | None
    searched: int  # runs of the search that are left
    lost: frozenset[str]  # what cannot begin: every rate diverged, or the run that it begins with

    @property
    def objectives(self) -> list[str]:
        """The names of its objectives; none before the first run has begun."""
        return self.histories[0].objectives if self.histories else []

    def list_runs(self, state: str) -> list[history.History]:
        """Return the runs that are `finished`, `diverged` or `not finished`."""
        return [run for run in self.histories if run.state == state]

    @property
    def diverged(self) -> frozenset[str]:
        """The directories of the runs that diverged, or cannot begin since what is before did."""
        return self.lost | {run.path.name for run in self.list_runs("diverged")}

    def list_values(self, figure: str) -> dict[str, float]:
        """Return the figure of each run by its directory; NaN: it is undefined, or diverged."""
        found = dict.fromkeys(sorted(self.diverged), math.nan)
        for run in self.list_runs("finished"):
            if figure in run.final or not is_score(figure):  # scores are yet to come
                value = run.final.get(figure)
                found[run.path.name] = math.nan if value is None else value
        return found

    @property
    def left(self) -> float:
        """The seconds that its runs will still take: as the finished ones, or else as planned."""
        done, begun = map(self.list_runs, ("finished", "not finished"))
        each = [run.seconds for run in done] or [self.plan.get("seconds", 0.0)]
        count = self.count - len(done) - len(self.diverged) + self.searched
        return max(0.0, count * statistics.fmean(each) - sum(run.seconds for run in begun))

    def describe(self, figures: Sequence[str]) -> JsonObject:
        """Return the row of the condition."""
        done = self.list_runs("finished")
        means = {
            "steps": [run.last_step for run in done],
            "tokens": [run.steps[-1]["tokens"] for run in done if run.steps],
            "seconds": [run.seconds for run in done],
            "flops": [run.last_step * self.plan["flops_per_step"] for run in done if self.plan],
        }
        return {
            "runs": self.count,
            "finished": len(done),
            "diverged": len(self.diverged),
            "parameters": self.plan.get("parameters"),
            "rate": self.rate,
            **{key: seeds.summarize(values)["mean"] for key, values in means.items()},
            "signatures": next(filter(None, (run.last.get("signatures") for run in done)), {}),
            **{each: seeds.summarize([run.final.get(each) for run in done]) for each in figures},
        }


def measure(found: Experiment, root: Path, state: JsonObject) -> dict[str, Measured]:
    """Return what is known of each condition: its runs that have begun, with their scores."""
    measured: dict[str, Measured] = {}
    for name in found.conditions:
        trained, histories = found.find_trained(name), []
        for seed in found.seed_numbers:
            path, label = root / trained / f"seed-{seed}", f"{name}/seed-{seed}"
            if not (path / RECIPE).is_file():
                continue
            is_done = RunDirectory(path).status().get("finished")  # without figures, worse than all
            histories.append(history.read(path, label, may_be_empty=not is_done))
            last, scored = histories[-1].last, root / label / SCORES
            if last and scored.is_file():
                scores = read_json(scored)
                last["metrics"] |= scores["metrics"]
                last["signatures"] = scores.get("signatures")
        rate = state["rates"].get(trained, {}).get("chosen")
        folder, base = root / trained / "search", found.find_base(trained)
        trials = [RunDirectory(folder / f"lr-{each:g}") for each in found.list_rates(name)]
        going = [trial for trial in trials if not trial.status().get("diverged")]
        left = sum(rate is None and not trial.finished() for trial in going)
        lost = frozenset() if base is None else measured[base].diverged
        if trials and not going:
            lost = frozenset(f"seed-{seed}" for seed in found.seed_numbers)
        plan = state["plans"].get(trained, {})
        measured[name] = Measured(histories, found.seeds, plan, rate, left, lost)
    return measured


def describe(found: Experiment, measured: Mapping[str, Measured]) -> JsonObject:
    """Return the rows, the verdicts and the time that is left, as plain data."""
    figures = list(dict.fromkeys(each.by for each in found.expect))
    rows = {name: each.describe(figures) for name, each in measured.items()}
    for figure in [each for each in figures if each in history.FIGURES]:
        named = [name for each in found.expect if each.by == figure for name in each.conditions]
        compared = [measured[name].objectives for name in named]
        for name, row in rows.items():
            if measured[name].objectives not in compared:  # its loss is that of other targets
                row[figure] = seeds.summarize([])
    judged = []
    for each in found.expect:
        first, other = (
            _average([measured[name].list_values(each.by) for name in names])
            for names in (each.better or each.same, each.than)
        )
        final = len(first) == len(other) == found.seeds
        said = judge(each, found.rule, first, other)
        judged.append({"expected": str(each), "final": final} | said)
    return {
        "experiment": found.name,
        "claim": found.claim,
        "paper": ": ".join(each for each in (found.paper, found.figure) if each),
        "hash": found.hash(),
        "figures": figures,
        "conditions": rows,
        "expectations": judged,
        "seconds_left": math.ceil(sum(measured[name].left for name in found.trained)),
    }


def _average(conditions: Sequence[Mapping[str, float]]) -> list[float]:
    """Return the mean of several conditions, for each seed that all of them have."""
    common = [seed for seed in conditions[0] if all(seed in each for each in conditions)]
    return [statistics.fmean(each[seed] for each in conditions) for seed in common]


def format_table(result: JsonObject) -> str:
    """Return what `describe` has found as text."""
    shown: dict[str, Callable[..., str]]
    shown = dict.fromkeys(("parameters", "rate", "steps", "tokens"), "{:,.0f}".format)
    shown |= {"rate": "{:g}".format, "seconds": format_duration, "flops": "{:.2e}".format}
    titles = "parameters", "rate", "steps", "tokens", "time", "FLOPs"
    cells, signed = [["condition", "runs", *titles, *result["figures"]]], []
    for name, row in result["conditions"].items():
        state = f"{row['finished']} of {row['runs']}"
        state += f", {row['diverged']} diverged" if row["diverged"] else ""
        known = ["–" if row[key] is None else show(row[key]) for key, show in shown.items()]
        means = [seeds.format_mean(row[figure], 4) for figure in result["figures"]]
        cells.append([name, state, *known, *means])
        if row["signatures"]:
            said = ", ".join(f"{key} {value}" for key, value in row["signatures"].items())
            signed.append(f"{name}: {said}")
    found = [
        f"{each['expected']}: {'' if each['final'] else 'so far: '}{each['text']}"
        for each in result["expectations"]
    ]
    left = result["seconds_left"]
    last = [f"left: about {format_duration(left)} of training"] if left else []
    about = [each for each in (result["claim"], result["paper"]) if each]
    blocks = [about, aligned(cells), signed, found, last]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def judge(
    expectation: Expectation, rule: Rule, first: Sequence[float], other: Sequence[float]
) -> JsonObject:
    """Return the verdict on figures of seeds, with the difference in favour of the first side.

    A figure of a run that diverged is not a number, and worse than every other. To be the same, the
    interval of the difference has to be within a share of the other side's mean.
    """
    found = p = None
    verdict = TOO_FEW
    sign = -1 if is_lower_better(f"{HELD_OUT}{expectation.by}") else 1
    first, other = ([sign * value for value in side] for side in (first, other))
    if min(len(first), len(other)) > 1:
        diverged = any(map(math.isnan, (*first, *other)))
        found = None if diverged else seeds.compare(other, first)
        if expectation.within is not None:
            verdict = _judge_same(expectation.within, found)
        else:
            p, reverse, least = seeds.permute(first, other)
            verdict = REPRODUCED if p <= rule.level else "no difference seen"
            verdict = NOT_REPRODUCED if reverse <= rule.level else verdict
            verdict = TOO_FEW if least > rule.level else verdict
    said = [] if found is None else [f"{found.difference:+.4f}", found.format_interval()]
    said += [] if p is None else [f"p = {p:.2g}"]
    return {
        "verdict": verdict,
        "difference": found and found.difference,
        "p": p,
        "interval": found and found.interval,
        "text": verdict + (f" ({'; '.join(said)})" if said else ""),
    }


def _judge_same(within: float, found: seeds.Difference | None) -> str:
    if found is None:  # a run diverged
        return NOT_REPRODUCED
    low, high = found.interval or (-math.inf, math.inf)
    reach = within * abs(found.means[0])
    if -reach <= low and high <= reach:
        return REPRODUCED
    return NOT_REPRODUCED if low > reach or high < -reach else TOO_FEW
