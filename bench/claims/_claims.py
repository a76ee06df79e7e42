"""What the claims share: verdicts by a stated rule, pretraining, tables.

The rule for "A is above B": the exact permutation test over seeds. Of all ways to split the scores
of both into two groups, p is the share in which the first group's mean is at least as far above the
second's as A's is above B's. p <= 0.05: reproduced. The same for "B is above A": not reproduced.
Else: inconclusive. With 3 seeds each there are 20 ways, so a verdict needs every seed on one side.
"""

import json
import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan, nan, sqrt
from pathlib import Path
from typing import Any

from nlpkit.checkpoints.run_directory import METRICS

sys.path.append(str(Path(__file__).parents[1]))  # of `_runs`, also for the claims

from _runs import Runs, as_options, check_data, mean_and_deviation, parser, plain

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
LEVEL = 0.05
ENGLISH = ["en_lm/wikitext2.valid.txt", "en_lm/wikitext2.test.txt", "en_lm/c4_demo.jsonl"]
SIZES = [
    *("model.hidden_size=128", "model.intermediate_size=512", "model.num_heads=4"),
    "tokenizer.vocab_size=4000",
]


@dataclass(frozen=True)
class Comparison:
    """Scores of two conditions, one a seed; the claim is that `claimed` is above `other`."""

    claimed: Sequence[float]
    other: Sequence[float]

    @property
    def difference(self) -> float:
        """How much the mean of `claimed` is above that of `other`."""
        return statistics.fmean(self.claimed) - statistics.fmean(self.other)

    @property
    def error(self) -> float:
        """The standard error of the difference; not a number for a single seed."""
        both = self.claimed, self.other
        if min(map(len, both)) < 2:
            return nan
        return sqrt(sum(statistics.variance(scores) / len(scores) for scores in both))

    def p(self, sign: int = 1) -> float:
        """Return the share of the splits with at least this difference, times `sign`."""
        scores, size = [*self.claimed, *self.other], len(self.claimed)
        sums = [sum(group) * sign for group in combinations(scores, size)]
        reached = sum(self.claimed) * sign - 1e-9
        return sum(each >= reached for each in sums) / len(sums)

    @property
    def verdict(self) -> str:
        """Reproduced, not reproduced or inconclusive."""
        if self.p() <= LEVEL:
            return REPRODUCED
        return NOT_REPRODUCED if self.p(-1) <= LEVEL else INCONCLUSIVE


class Claim(Runs):
    """Runs of a claim, one after the other, and the CPU seconds that they took."""

    def __init__(self, options: Namespace):
        super().__init__(options.out, check_data(options.data))
        self.seeds = list(range(1, options.seeds + 1))

    def timed(self, *arguments: str, log: str) -> tuple[str, float]:
        """Return the stdout of `nlpkit` on the CPU, and the CPU seconds of its process."""
        return super().timed(*arguments, "--device", "cpu", log=log)

    def trained(self, verb: str, recipe: str, place: Path, more: Sequence[str]) -> dict[str, Any]:
        """Return the figures of a run's last evaluation, and its CPU seconds."""

        def make() -> dict[str, Any]:
            log = "-".join(place.relative_to(self.out).parts)
            _, seconds = self.timed(verb, recipe, *more, "--out", str(place), log=log)
            return {**last_evaluation(place), "cpu_seconds": seconds}

        return self.kept(place, make)

    def pretrained(self, condition: str, recipe: str, seed: int, sets: Sequence[str]) -> Path:
        """Pretrain with a seed, unless that is done; return the directory of the run."""
        place = self.out / plain(condition) / f"seed-{seed}"
        more = ["data.valid=[]", "data.valid_fraction=0.05", "train.eval_every=null", *sets]
        self.trained("pretrain", recipe, place, as_options([f"seed={seed}", *more]))
        return place

    def cpu_minutes(self) -> float:
        """Return the CPU minutes of all runs."""
        files = self.out.rglob("figures.json")
        found = [self.kept(file.parent, dict) for file in files]
        return sum(figures.get("cpu_seconds", 0) for figures in found) / 60


def last_evaluation(run: Path) -> dict[str, float]:
    """Return loss, losses by part and scores of a run's last evaluation; exit if there is none."""
    records = map(json.loads, (run / METRICS).read_text(encoding="utf-8").splitlines())
    evaluations = [record["held_out"] for record in records if "held_out" in record]
    if not evaluations:
        raise SystemExit(f"{run}: no evaluation; was it stopped? Delete it and start again")
    found = evaluations[-1]
    return {"loss": found["loss"], **found["losses"], **found.get("metrics", {})}


def start(description: str | None) -> Claim:
    """Return the claim for the arguments of the command line."""
    return Claim(parser(description).parse_args())


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as markdown."""
    for row in (head, ["---"] * len(head), *rows):
        print("|", " | ".join(row), "|")


def row(name: str, comparison: Comparison, digits: int = 3) -> list[str]:
    """Return the cells of a comparison: both means, the difference, p and the verdict."""
    error = "" if isnan(comparison.error) else f" ± {comparison.error:.{digits}f}"
    return [
        name,
        mean_and_deviation(comparison.claimed),
        mean_and_deviation(comparison.other),
        f"{comparison.difference:+.{digits}f}{error}",
        f"{comparison.p():.2f}",
        comparison.verdict,
    ]
