"""What an optimizer buys: held-out loss against steps and processor time, each at its best rate.

    python bench/optimizers.py OUT [--recipes gpt1 cpm_ant …] [--optimizers adamw muon] [--seeds 3]
                                   [--set data.train=[…] …]

An optimizer may have settings: --optimizers '{name: muon, adamw_lr: 0.1}'.

Trains each recipe as it comes, or with the settings of --set, with nothing changed but optimizer
and learning rate, one thread a run. The rates of every optimizer are searched with the first seed,
from FIRST by factors of two, until the rates beside the best one are tried and worse; the best one
is taken for the other seeds. Processor time is that of the whole process, with tokenizing,
evaluating and saving. The same command resumes where it was stopped.
"""

import json
import statistics
import sys
from argparse import ArgumentParser, Namespace, RawTextHelpFormatter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _runs import Runs, as_options, bracketed, mean_and_deviation, plain

from nlpkit import recipe
from nlpkit.checkpoints.run_directory import METRICS

RECIPES = ("gpt1", "t5", "lstm", "cpm_ant", "bert")
RATES = ("2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2")
FIRST = "2e-3"


@dataclass(frozen=True)
class Run:
    """The held-out losses of a run by step, and its processor time in seconds."""

    losses: dict[int, float]
    seconds: float

    @property
    def steps(self) -> int:
        """The number of steps."""
        return max(self.losses)

    @property
    def end(self) -> float:
        """The held-out loss after the last step."""
        return self.losses[self.steps]

    def reaches(self, loss: float) -> int | None:
        """Return the first evaluated step with at most this loss, or None."""
        return min((step for step, each in self.losses.items() if each <= loss), default=None)


class Bench(Runs):
    """Trains recipes, with more settings, by optimizers."""

    def __init__(self, out: Path, sets: list[str]):
        super().__init__(out, Path())
        self.sets = sets

    def run(self, name: str, settings: list[str], place: str) -> Run:
        """Return a run of a recipe; trained now, unless its figures are there."""
        path = self.out / place

        def make() -> dict[str, Any]:
            options = as_options([*self.sets, *settings])
            command = ("pretrain", name, *options, "--out", str(path), "--quiet")
            _, seconds = self.timed(*command, log=place.replace("/", "-"))
            lines = (path / METRICS).read_text(encoding="utf-8").splitlines()
            records = [json.loads(line) for line in lines]
            losses = {r["step"]: r["held_out"]["loss"] for r in records if "held_out" in r}
            return {"losses": losses, "seconds": seconds}

        found = self.kept(path, make)
        losses = {int(step): loss for step, loss in found["losses"].items()}
        return Run(losses, found["seconds"])

    def swept(self, name: str, optimizer: str, seeds: int, eval_every: int) -> dict[str, list[Run]]:
        """Return the runs of each rate: one, and those of all seeds for the best one.

        The best one has a worse one on both sides, unless it is an end of RATES.
        """

        def run(rate: str, seed: int) -> Run:
            sets = [f"train.optimizer={optimizer}", f"train.lr={rate}", f"seed={seed}"]
            sets += [f"train.eval_every={eval_every}"]
            found = self.run(name, sets, f"{name}/{plain(optimizer)}-{rate}-{seed}")
            print(f"{name} {optimizer} {rate} seed {seed}: {found}", file=sys.stderr, flush=True)
            return found

        ends = bracketed(RATES, FIRST, lambda rate: run(rate, 1).end)
        runs = {rate: [run(rate, 1)] for rate in ends}
        best = min(ends, key=ends.__getitem__)
        runs[best] += [run(best, seed) for seed in range(2, seeds + 1)]
        return runs


def _print_rates(swept: dict[str, dict[str, list[Run]]]) -> None:
    tried = [rate for rate in RATES if any(rate in runs for runs in swept.values())]
    print("| held-out loss at the end, seed 1 | " + " | ".join(tried) + " |")
    print("|---" * (1 + len(tried)) + "|")
    for optimizer, runs in swept.items():
        cells = [f"{runs[rate][0].end:.3f}" if rate in runs else "" for rate in tried]
        print(f"| {optimizer} |", " | ".join(cells), "|")


def _print_curves(swept: dict[str, dict[str, list[Run]]], before: Run) -> None:
    steps = sorted(before.losses)
    print("\n| step | " + " | ".join(map(str, steps)) + " | CPU s | today's end at step |")
    print("|---" * (3 + len(steps)) + "|")
    rows = {"as it comes, seed 1": [before]}
    for optimizer, runs in swept.items():
        rate = max(runs, key=lambda each: len(runs[each]))
        if len(runs[rate]) == 1:  # one seed
            rate = min(runs, key=lambda each: runs[each][0].end)
        rows[f"{optimizer} {rate}"] = runs[rate]
    for title, runs in rows.items():
        cells = [mean_and_deviation([run.losses[step] for run in runs]) for step in steps]
        seconds = f"{statistics.fmean(run.seconds for run in runs):.0f}"
        reached = [run.reaches(before.end) for run in runs]
        there = ", ".join("never" if step is None else str(step) for step in reached)
        print(f"| {title} |", " | ".join(cells), f"| {seconds} | {there} |")


def main() -> None:
    """Train what is missing and print two tables for each recipe."""
    made = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    made.add_argument("out", type=Path)
    made.add_argument("--recipes", nargs="+", default=RECIPES)
    made.add_argument("--optimizers", nargs="+", default=("adamw", "muon"))
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of all runs")
    options: Namespace = made.parse_args()
    bench = Bench(options.out.resolve(), options.set)
    for name in options.recipes:
        total = recipe.load(name, overrides=options.set).recipe.train.steps
        every = max(1, (total or 600) // 6)
        before = bench.run(name, ["seed=1", f"train.eval_every={every}"], f"{name}/before")
        swept = {each: bench.swept(name, each, options.seeds, every) for each in options.optimizers}
        print(f"\n## {name}\n")
        _print_rates(swept)
        _print_curves(swept, before)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
