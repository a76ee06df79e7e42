"""From which held-out loss of a base on does pretraining pay? On the shipped English text.

    python bench/base_loss.py OUT [--seeds 3]

Pretrains the recipe gpt1 for several numbers of steps, tunes each of these bases by recipes of
shipped tasks as they come, and prints the accuracy on the held-out rows after the last step. Models
from nothing have the tokenizer of the longest run, and the best rate, by seed 1 on the same rows,
which favours them. The same command resumes where it was stopped.
"""

import json
from argparse import ArgumentParser, RawTextHelpFormatter
from pathlib import Path
from typing import Any

from _runs import Runs, as_options, bracketed, from_nothing, mean_and_deviation

from nlpkit.checkpoints.run_directory import METRICS

STEPS = (60, 120, 240, 600)
TASKS = ("gpt1_entail", "gpt1_similarity")
RATES = ("1.25e-4", "2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3", "8e-3")
BASE = "gpt1"


class Bench(Runs):
    """Trains the bases and the tasks."""

    def base(self, steps: int) -> float:
        """Return the held-out loss of a base; it is trained now, unless it is there."""
        out = self.out / f"{BASE}-{steps}"
        sets = [f"train.steps={steps}", "train.eval_every=null"]
        self.nlpkit("pretrain", BASE, *as_options(sets), "--out", str(out), log=out.name)
        lines = (out / METRICS).read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["held_out"]["loss"] for line in lines if '"held_out"' in line][-1]

    def accuracy(self, task: str, start: str, seed: int, *sets: str) -> float:
        """Return the accuracy on the held-out rows after the last step."""
        place = (
            self.out / task / "-".join([start, *(s.rpartition("=")[2] for s in sets), str(seed)])
        )

        def make() -> float:
            more = [f"seed={seed}", "train.best_by=loss", "train.eval_every=null", *sets]
            options = as_options(more)
            if start == "scratch":
                home = self.out / f"{BASE}-{STEPS[-1]}" / "tokenizer"
                options += as_options(from_nothing(BASE, home))
            else:
                options += ["--from", str(self.out / start)]
            self.nlpkit("finetune", task, *options, "--out", str(place), log=task)
            found: dict[str, Any] = json.loads(
                self.nlpkit("eval", str(place), "--metrics", "accuracy", "--json", log=task)
            )
            return found["metrics"]["accuracy"]

        return self.kept(place, make)


def main() -> None:
    """Train what is missing and print the table."""
    made = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    made.add_argument("out", type=Path)
    made.add_argument("--seeds", type=int, default=3)
    options = made.parse_args()
    bench = Bench(options.out.resolve(), Path())
    seeds = range(1, options.seeds + 1)
    print("| base | held-out loss |", " | ".join(TASKS), "|")
    print("|---" * (2 + len(TASKS)) + "|")
    losses = {steps: bench.base(steps) for steps in STEPS}
    cells = []
    for task in TASKS:

        def wrong(rate: str, task: str = task) -> float:
            return 1 - bench.accuracy(task, "scratch", 1, f"train.lr={rate}")

        tried = bracketed(RATES, "5e-4", wrong)
        rate = min(tried, key=tried.__getitem__)
        found = [bench.accuracy(task, "scratch", seed, f"train.lr={rate}") for seed in seeds]
        cells.append(f"{mean_and_deviation(found)} ({rate})")
    print("| none | |", " | ".join(cells), "|", flush=True)
    for steps, loss in losses.items():
        cells = [
            mean_and_deviation([bench.accuracy(task, f"{BASE}-{steps}", seed) for seed in seeds])
            for task in TASKS
        ]
        print(f"| {steps} steps | {loss:.2f} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
