"""Fine-tune on real tasks and print a table: what pretraining, the auxiliary loss and adapters do.

    python bench/tasks.py OUT [--data ../shared/data] [--seeds 3] [--jobs 2] [--only sst-2,cola]
    python bench/tasks.py OUT --tune [...]

Pretrains a small GPT-1 on English and a small CPM-Ant on Chinese text into OUT (a few minutes
each), then trains every task under every condition with `nlpkit finetune`, one thread a process,
and scores the last checkpoint on the task's dev file with `nlpkit eval`. Nothing is chosen by a dev
file: no early stopping, no best checkpoint. The same command resumes where it was stopped.

With --tune, conditions are compared each with its own optimizer and learning rate. These are chosen
by runs that hold out a tenth of the training rows: the rates of every optimizer are searched by
factors of two, until the rates beside the best one are tried and worse. The best pair is taken for
runs on all training rows with several seeds, which are scored on the dev file.
"""

import json
import math
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _real_tasks import BASES, TASKS
from _runs import (
    Runs,
    Task,
    as_options,
    bracketed,
    check_data,
    from_nothing,
    mean_and_deviation,
    parser,
    plain,
    texts,
)

SCRATCH = "scratch"
PLAIN = "objective.lm_weight=0"
LORA = "lora.targets=all-linear"
TABLE = "lora.targets=[all-linear, token_embedding]"
# Conditions of a base's tasks: name -> settings; two of them change the command, too.
CONDITIONS: dict[str, dict[str, list[str]]] = {
    "english": {
        "pretrained, λ = 0.5": [],
        "pretrained, λ = 0": [PLAIN],
        "scratch, λ = 0.5": [SCRATCH],
        "scratch, λ = 0": [SCRATCH, PLAIN],
        "pretrained, λ = 0.5, LoRA": [LORA],
    },
    "chinese": {"pretrained": [], "scratch": [SCRATCH], "pretrained, LoRA": [LORA]},
}
RATES = ("1.25e-4", "2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2")
# Where the search of a rate begins; else at 5e-4.
FIRST = {"LoRA": "4e-3", "LoRA with table": "1e-3"}
_ENDS_LOW = "train.schedule=linear"
TUNED = {
    "english": {
        "pretrained": [PLAIN],
        "scratch": [SCRATCH, PLAIN],
        "LoRA": [PLAIN, LORA],
        "LoRA with table": [PLAIN, TABLE],
    },
    "chinese": {
        "pretrained": [_ENDS_LOW],
        "scratch": [_ENDS_LOW, SCRATCH],
        "LoRA": [_ENDS_LOW, LORA],
        "LoRA with table": [_ENDS_LOW, TABLE],
    },
}


class Bench(Runs):
    """Runs the tasks, each condition with several seeds."""

    def __init__(self, out: Path, data: Path, seeds: int, optimizers: list[str]):
        super().__init__(out, data)
        self.seeds, self.optimizers = seeds, optimizers

    def pretrain(self, name: str) -> None:
        """Make a base model, unless it is there."""
        recipe, files, sets = BASES[name]
        sets = [f"name={name}", texts(self.data, files), "data.valid=[]", *sets]
        sets.append("data.valid_fraction=0.02")
        self.nlpkit("pretrain", recipe, *as_options(sets), "--out", str(self.out / name), log=name)

    def cell(self, task: Task, condition: str) -> list[dict[str, Any]]:
        """Return the figures of each seed."""
        place = self.out / plain(task.name) / plain(condition)
        return self._trained(task, place, CONDITIONS[task.base][condition], False, self.seeds)

    def tuned(self, task: Task, condition: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Return the score of each optimizer and rate on held-out training rows; figures of seeds.

        The best pair is the last one.
        """
        place = self.out / "tuned" / plain(task.name) / plain(condition)
        special = TUNED[task.base][condition]
        scores = {}
        for optimizer in self.optimizers:

            def loss(rate: str, optimizer: str = optimizer) -> float:
                more = [*special, f"train.optimizer={optimizer}", f"train.lr={rate}"]
                (found,) = self._trained(task, place / f"{optimizer}-{rate}", more, True, 1)
                if task.shown:
                    return found["loss"]
                score = found[task.score]
                return math.inf if score is None else -score  # None: all answers are the same

            found = bracketed(RATES, FIRST.get(condition, "5e-4"), loss)
            scores |= {f"{optimizer} {rate}": -value for rate, value in found.items()}
        scores = dict(sorted(scores.items(), key=lambda each: each[1]))
        optimizer, rate = [*scores][-1].split()
        more = [*special, f"train.optimizer={optimizer}", f"train.lr={rate}"]
        return scores, self._trained(
            task, place / f"best-{optimizer}-{rate}", more, False, self.seeds
        )

    def _trained(
        self, task: Task, place: Path, special: list[str], held_out: bool, seeds: int
    ) -> list[dict[str, Any]]:
        """Return the figures of each seed of runs in `place`."""
        return self.kept(place, lambda: self._train(task, place, special, held_out, seeds))

    def _train(
        self, task: Task, place: Path, special: list[str], held_out: bool, seeds: int
    ) -> list[dict[str, Any]]:
        sets = task.settings(self.data, held_out) + [each for each in special if "=" in each]
        start = ["--from", str(self.out / task.base)]
        if SCRATCH in special:
            home = self.out / task.base / "tokenizer"
            start = as_options(from_nothing(BASES[task.base][0], home))
        options = ["--lora"] * any(each in special for each in (LORA, TABLE))
        options += ["--seeds", str(seeds)] if seeds > 1 else []
        log = "-".join(place.relative_to(self.out).parts)
        trained = self.nlpkit(
            *("finetune", task.recipe, *start, *as_options(sets), *options),
            *("--out", str(place), "--json"),
            log=log,
        )
        runs = [place]
        if seeds > 1:
            runs = [place / f"seed-{seed}" for seed in json.loads(trained)["seeds"]]
        figures = []
        for run in map(str, runs):
            found = json.loads(self.nlpkit("eval", run, "--metrics", task.score, "--json", log=log))
            figures.append({"loss": found["loss"], **found["metrics"]})
        return figures

    def column(self, task: Task, split: str) -> list[Any]:
        """Return the answers in a file of the task."""
        text = (self.data / f"{task.files}.{split}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line)[task.label] for line in text.split("\n") if line]

    def majority(self, task: Task) -> str:
        """Return the accuracy of always giving the commonest answer of the training rows."""
        train, dev = (self.column(task, split) for split in ("train", "dev"))
        return f"{dev.count(statistics.mode(train)) / len(dev):.3f}"


def _shown(figures: list[dict[str, Any]], name: str) -> str:
    return mean_and_deviation([each[name] for each in figures])


def _print_tuned(
    bench: Bench, tasks: list[Task], conditions: list[str], pool: ThreadPoolExecutor
) -> None:
    """Print the conditions, each with its own optimizer and learning rate."""
    pairs = [(task, name) for task in tasks for name in conditions]
    pairs.sort(key=lambda pair: "LoRA" in pair[1])  # the others are of more interest
    jobs = {(task.name, name): pool.submit(bench.tuned, task, name) for task, name in pairs}
    for (task_name, name), job in jobs.items():
        print(f"{task_name}: {name}: {job.result()}", file=sys.stderr, flush=True)
    heads = [head for name in conditions for head in (name, "its rate")]
    print("| task | score |", " | ".join(heads), "|")
    print("|---" * (2 + len(heads)) + "|")
    for task in tasks:
        cells = [task.name, task.score.partition(":")[0] if not task.shown else "loss"]
        for name in conditions:
            scores, figures = jobs[task.name, name].result()
            cells += [_shown(figures, "loss" if task.shown else task.score), [*scores][-1]]
        print("|", " | ".join(cells), "|")


def main() -> None:
    """Train what is missing and print a table for each base."""
    arguments = parser(__doc__)
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--only", help="tasks, by name, with commas")
    arguments.add_argument(
        "--tune", action="store_true", help="an optimizer and a rate for each condition"
    )
    arguments.add_argument("--optimizers", nargs="+", default=["adamw", "muon"], help="for --tune")
    arguments.add_argument(
        "--conditions", nargs="+", default=[*TUNED["english"]], help="for --tune"
    )
    options = arguments.parse_args()
    wanted = options.only.lower().split(",") if options.only else None
    tasks = [task for task in TASKS if wanted is None or plain(task.name) in wanted]
    bench = Bench(options.out, check_data(options.data), options.seeds, options.optimizers)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(bench.pretrain, dict.fromkeys(task.base for task in tasks)))
        if options.tune:
            _print_tuned(bench, tasks, options.conditions, pool)
            return
        jobs = {
            (task.name, condition): pool.submit(bench.cell, task, condition)
            for task in tasks
            for condition in CONDITIONS[task.base]
        }
        for (name, condition), job in jobs.items():
            print(f"{name}: {condition}: {job.result()}", file=sys.stderr, flush=True)
    for base in dict.fromkeys(task.base for task in tasks):
        conditions = list(CONDITIONS[base])
        print("\n| task | score | commonest answer |", " | ".join(conditions), "|")
        print("|---" * (3 + len(conditions)) + "|")
        rows = [(t, score) for t in tasks if t.base == base for score in t.shown or (t.score,)]
        for task, score in rows:
            made = [jobs[task.name, condition].result() for condition in conditions]
            majority = bench.majority(task) if score == "accuracy" else "–"
            head = [task.name, score.partition(":")[0], majority]
            print("|", " | ".join([*head, *(_shown(figures, score) for figures in made)]), "|")


if __name__ == "__main__":
    main()
