"""Is span corruption above language modelling, for tuning a model of text to text?

    python bench/claims/span_corruption.py OUT [--data ../shared/data] [--seeds 3]

Raffel et al. 2020 (arXiv:1910.10683), table 4: an encoder and a decoder that are pretrained by
filling in what is missing are better on tasks than the same ones pretrained by prefix language
modelling (82.96 against 80.69 on GLUE; about equal in translation). Here the former is T5's span
corruption.

T5s of the same size are pretrained on the same text, English and German, with `span_corruption` or
with `prefix_lm`, by the same steps of the same number of tokens. Both, and a third one that is not
pretrained, are tuned as text to text with the same steps: SST-2, one of GLUE's tasks, judged by the
accuracy of the generated labels, and Multi30k from German to English, judged by nats a token of the
references, as such small models have a BLEU near 0. Each has its own learning rate for each task,
the one with the lowest loss on a tenth of the training rows with the first seed.

One run at a time; the same command resumes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from _claims import Claim, Comparison, print_table, row, start
from _runs import as_options, mean_and_deviation

SPANS, PREFIX, SCRATCH = "span corruption", "prefix LM", "not pretrained"
OBJECTIVES = {SPANS: "span_corruption", PREFIX: "prefix_lm"}
RATES = ("1e-3", "3e-3")
MODEL = """\
model: {family: t5, hidden_size: 128, num_layers: 3, num_heads: 4, head_dim: 32,
  intermediate_size: 320, hidden_act: gelu_new, gated: true, tie: false, dropout: 0.0,
  attention_dropout: 0.0}
"""
PRETRAIN = f"""\
name: claim
{MODEL}tokenizer: {{kind: bpe, vocab_size: 4000}}
data: {{train: [DATA/en_lm/wikitext2.valid.txt, DATA/parallel/multi30k.train.de,
  DATA/parallel/multi30k.train.en], valid_fraction: 0.05, format: text}}
objective: {{name: span_corruption, max_length: 128, contiguous: true}}
train: {{steps: 400, tokens_per_step: 2048, optimizer: muon, lr: 5.0e-3, schedule: linear,
  warmup_ratio: 0.1, weight_decay: 0.0, save_every: 1000}}
"""
TRAIN = """\
train: {steps: STEPS, tokens_per_step: 2048, optimizer: muon, lr: 1.0e-3, schedule: linear,
  warmup_ratio: 0.1, weight_decay: 0.0, save_every: 1000}
"""


@dataclass(frozen=True)
class Task:
    """A task of text to text: a recipe without its model, and how it is judged."""

    name: str
    recipe: str
    test: tuple[str, ...]  # files to judge by, which nothing is chosen by
    score: str  # `loss`, or a metric of `nlpkit eval`
    unit: str

    @property
    def sign(self) -> int:
        """1 if more is better, -1 if less is."""
        return -1 if self.score == "loss" else 1


TASKS = [
    Task(
        "sst2",
        f"""\
name: claim
data: {{train: [DATA/en_task/sst2.train.jsonl], valid: [DATA/en_task/sst2.dev.jsonl]}}
objective: {{name: seq2seq, max_length: 96, source: text, target: label}}
eval: {{metrics: [exact_match]}}
{TRAIN.replace("STEPS", "100")}""",
        ("en_task/sst2.dev.jsonl",),
        "exact_match",
        "SST-2, accuracy",
    ),
    Task(
        "multi30k",
        f"""\
name: claim
data: {{train: [{{files: [DATA/parallel/multi30k.train.de, DATA/parallel/multi30k.train.en]}}],
  valid: [{{files: [DATA/parallel/multi30k.val.de, DATA/parallel/multi30k.val.en]}}],
  format: parallel}}
objective: {{name: seq2seq, max_length: 64}}
eval: {{metrics: [bleu]}}
{TRAIN.replace("STEPS", "200")}""",
        ("parallel/multi30k.test2016.de", "parallel/multi30k.test2016.en"),
        "loss",
        "Multi30k, nats a token",
    ),
]


def write_recipes(claim: Claim) -> None:
    """Write the recipes, with the files of the data."""
    found = {"pretrain": PRETRAIN}
    for task in TASKS:
        found |= {task.name: task.recipe, f"{task.name}-scratch": task.recipe + MODEL}
    for name, text in found.items():
        file = claim.out / f"{name}.yaml"
        file.write_text(text.replace("DATA", str(claim.data)), encoding="utf-8")


def pretrained(claim: Claim, condition: str, seed: int) -> Path:
    """Pretrain with a seed, unless that is done; return the directory of the run."""
    objective = OBJECTIVES[condition]
    place = claim.out / f"{objective}-{seed}"
    sets = as_options([f"seed={seed}", f"objective.name={objective}"])
    claim.trained("pretrain", str(claim.out / "pretrain.yaml"), place, sets)
    return place


def tuned(claim: Claim, task: Task, condition: str, seed: int, rate: str, *, chosen: bool) -> Path:
    """Tune for a task, unless that is done; return the directory of the run.

    If the rate is not chosen yet, a tenth of the training rows is held out.
    """
    base = pretrained(claim, SPANS if condition == SCRATCH else condition, seed)
    kind = OBJECTIVES.get(condition, "scratch")
    place = claim.out / f"{task.name}-{kind}-{seed}-{rate}{'' if chosen else '-held'}"
    sets = [f"seed={seed}", f"train.lr={rate}"]
    sets += [] if chosen else ["data.valid=[]", "data.valid_fraction=0.1"]
    if condition == SCRATCH:
        vocabulary = json.dumps(str(base.resolve() / "tokenizer"))  # that of the others
        sets.append(f"tokenizer.path={vocabulary}")
        recipe = str(claim.out / f"{task.name}-scratch.yaml")
        claim.trained("pretrain", recipe, place, as_options(sets))
    else:
        more = ["--from", str(base), *as_options(sets)]
        claim.trained("finetune", str(claim.out / f"{task.name}.yaml"), place, more)
    return place


def best_rate(claim: Claim, task: Task, condition: str) -> str:
    """Return the learning rate with the lowest loss on held-out training rows."""
    first = claim.seeds[0]
    runs = {rate: tuned(claim, task, condition, first, rate, chosen=False) for rate in RATES}
    losses = {rate: claim.kept(run, dict)["loss"] for rate, run in runs.items()}
    return min(losses, key=losses.__getitem__)


def on_test(claim: Claim, task: Task, run: Path) -> dict[str, float]:
    """Return loss and scores of a run on the files to judge by."""

    def make() -> dict[str, float]:
        more = [word for file in task.test for word in ("--data", str(claim.data / file))]
        answer, seconds = claim.timed("eval", str(run), *more, "--json", log=f"{run.name}-test")
        figures = json.loads(answer)
        return {"loss": figures["loss"], **figures["metrics"], "cpu_seconds": seconds}

    return claim.kept(run / "test", make)


def print_pretraining(claim: Claim) -> None:
    """Print the losses of pretraining, each of its own targets, and its time."""
    rows = []
    for condition in OBJECTIVES:
        figures = [claim.kept(pretrained(claim, condition, seed), dict) for seed in claim.seeds]
        minutes = fmean(each["cpu_seconds"] for each in figures) / 60
        losses = mean_and_deviation([each["loss"] for each in figures])
        rows.append([condition, losses, f"{minutes:.2f}"])
    print_table(["pretrained by", "its own held-out loss", "CPU minutes a run"], rows)
    print()


def main() -> None:
    """Train what is missing and print the tables."""
    claim = start(__doc__)
    write_recipes(claim)
    rows, verdicts, bleu = [], [], []
    for task in TASKS:
        scores: dict[str, list[float]] = {}
        cells = []
        for condition in (SPANS, PREFIX, SCRATCH):
            rate = best_rate(claim, task, condition)
            runs = [tuned(claim, task, condition, s, rate, chosen=True) for s in claim.seeds]
            figures = [on_test(claim, task, run) for run in runs]
            scores[condition] = [each[task.score] for each in figures]
            cells.append(f"{mean_and_deviation(scores[condition])} (rate {rate})")
            if "bleu" in figures[0]:
                bleu.append(f"{condition} {fmean(each['bleu'] for each in figures):.1f}")
        rows.append([task.unit, *cells])
        for other in (PREFIX, SCRATCH):
            ours, theirs = ([task.sign * each for each in scores[c]] for c in (SPANS, other))
            judged = row("", Comparison(ours, theirs))[3:]
            verdicts.append([f"{task.unit}: {SPANS} above {other}", *judged])
    print_pretraining(claim)
    print_table(["task", SPANS, PREFIX, SCRATCH], rows)
    print(f"\nBLEU: {', '.join(bleu)}\n")
    print_table(["claim", "better by", "p", "verdict"], verdicts)
    print(f"\n{claim.cpu_minutes():.1f} CPU minutes in all")


if __name__ == "__main__":
    main()
