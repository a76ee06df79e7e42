"""Fine-tune on real tasks and print a table: what pretraining, the auxiliary loss and adapters do.

    python bench/tasks.py OUT [--data ../shared/data] [--seeds 3] [--jobs 2] [--only sst-2,cola]
    python bench/tasks.py OUT --tune [...]

Pretrains a small GPT-1 on English and a small CPM-Ant on Chinese text into OUT (a few minutes
each), then trains every task under every condition with `nlpkit finetune`, one thread a process,
and scores the last checkpoint on the task's dev file with `nlpkit eval`. Nothing is chosen by a dev
file: no early stopping, no best checkpoint. The same command resumes where it was stopped.

With --tune, pretrained and scratch are compared each at its own learning rate: one run for each of
RATES holds out a tenth of the training rows, and the rate with the best score on these is taken for
runs on all training rows with several seeds, which are scored on the dev file.
"""

import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _runs import (
    Runs,
    Task,
    as_options,
    check_data,
    mean_and_deviation,
    parser,
    plain,
    texts,
)

from nlpkit import recipe

BASES = {
    "english": (
        "gpt1",
        ["en_lm/wikitext2.valid.txt", "en_lm/wikitext2.test.txt", "en_lm/c4_demo.jsonl"],
        ["tokenizer.vocab_size=8000", "train.steps=1200", "train.eval_every=300"],
    ),
    "chinese": (
        "cpm_ant",
        ["zh_lm/clue_small.txt", "zh_lm/wiki_cmrc_contexts.jsonl", "zh_lm/poetry_songci.txt"],
        [
            *("train.steps=500", "train.tokens_per_step=8192", "train.lr=2e-3"),
            *("train.warmup_steps=40", "train.eval_every=100"),
        ],
    ),
}
SCRATCH = "scratch"
PLAIN = "objective.lm_weight=0"
LORA = "lora.targets=all-linear"
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
RATES = ("1.25e-4", "2.5e-4", "5e-4", "1e-3", "2e-3")
TUNED = {
    "english": {"pretrained": [PLAIN], "scratch": [SCRATCH, PLAIN]},
    "chinese": {"pretrained": [], "scratch": [SCRATCH]},
}


TASKS = [
    Task("SST-2", "english", "gpt1_classify", "en_task/sst2", "accuracy", "label"),
    Task("CoLA", "english", "gpt1_classify", "en_task/cola", "mcc", "label"),
    Task("SciTail", "english", "gpt1_entail", "en_task/scitail", "accuracy", "label"),
    Task(
        "SICK",
        "english",
        "gpt1_similarity",
        "en_task/sick",
        "pearson",
        None,
        sets=["objective.regression=true", "objective.label=score"],
    ),
    Task(
        "COPA",
        "english",
        "gpt1_choice",
        "en_task/copa",
        "accuracy",
        "label",
        epochs=5,
        sets=["objective.context=premise", "objective.question=question"],
    ),
    Task(
        "ChnSentiCorp",
        "chinese",
        "cpm_ant_nlu",
        "zh_task/chnsenticorp",
        "accuracy",
        "label",
        epochs=2,
        sets=["objective.input=text", "objective.target=label", "objective.choices=[差评, 好评]"],
    ),
    Task("CCPM", "chinese", "cpm_ant_nlu", "zh_task/ccpm", "accuracy", "target"),
    Task(
        "C3",
        "chinese",
        "cpm_ant_nlu",
        "zh_task/c3",
        "accuracy",
        "target",
        epochs=0.5,
        sets=["objective.max_length=256"],
    ),
    Task(
        "KdConv",
        "chinese",
        "cpm_ant_nlg",
        "zh_task/kdconv",
        "bleu:tokenize=zh",
        None,
        shown=("loss", "bleu:tokenize=zh"),
    ),
    Task(
        "Ape210K",
        "chinese",
        "cpm_ant_nlg",
        "zh_task/ape210k",
        "exact_match",
        None,
        shown=("loss", "exact_match"),
    ),
]


class Bench(Runs):
    """Runs the tasks, each condition with several seeds."""

    def __init__(self, out: Path, data: Path, seeds: int):
        super().__init__(out, data)
        self.seeds = seeds

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
        """Return the score of each rate on held-out training rows; figures of each seed."""
        place = self.out / "tuned" / plain(task.name) / plain(condition)
        special = TUNED[task.base][condition]
        scores = {}
        for rate in RATES:
            more = [*special, f"train.lr={rate}"]
            (found,) = self._trained(task, place / rate, more, True, 1)
            scores[rate] = -found["loss"] if task.shown else found[task.score]
        best = max(scores, key=scores.__getitem__)
        more = [*special, f"train.lr={best}"]
        return scores, self._trained(task, place / "best", more, False, self.seeds)

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
            tokenizer = json.dumps(str(self.out / task.base / "tokenizer"))
            model = json.dumps(recipe.load(BASES[task.base][0]).dump()["model"])
            start = as_options(["init_from=null", f"tokenizer.path={tokenizer}", f"model={model}"])
        options = ["--lora"] * (LORA in special)
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


def _print_tuned(bench: Bench, tasks: list[Task], pool: ThreadPoolExecutor) -> None:
    """Print pretrained and scratch, each at its own learning rate."""
    jobs = {
        (task.name, condition): pool.submit(bench.tuned, task, condition)
        for task in tasks
        for condition in TUNED[task.base]
    }
    for (name, condition), job in jobs.items():
        print(f"{name}: {condition}: {job.result()}", file=sys.stderr, flush=True)
    print("| task | score | pretrained | its rate | scratch | its rate |")
    print("|---" * 6 + "|")
    for task in tasks:
        cells = [task.name, task.score.partition(":")[0] if not task.shown else "loss"]
        for condition in ("pretrained", "scratch"):
            scores, figures = jobs[task.name, condition].result()
            cells.append(_shown(figures, "loss" if task.shown else task.score))
            cells.append(max(scores, key=scores.__getitem__))
        print("|", " | ".join(cells), "|")


def main() -> None:
    """Train what is missing and print a table for each base."""
    arguments = parser(__doc__)
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--only", help="tasks, by name, with commas")
    arguments.add_argument("--tune", action="store_true", help="a learning rate for each condition")
    options = arguments.parse_args()
    wanted = options.only.lower().split(",") if options.only else None
    tasks = [task for task in TASKS if wanted is None or plain(task.name) in wanted]
    bench = Bench(options.out, check_data(options.data), options.seeds)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(bench.pretrain, dict.fromkeys(task.base for task in tasks)))
        if options.tune:
            _print_tuned(bench, tasks, pool)
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
