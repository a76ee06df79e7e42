"""Is a model of next sentences near chance on their order, and not the other way round?

    python bench/claims/sentences.py OUT [--data ../shared/data] [--seeds 3]

Lan et al. 2020 (ALBERT), table 5: trained on NSP 90.5 % on NSP and 52.0 % on SOP; trained on SOP
78.9 % on NSP and 86.5 % on SOP. Two BERTs of the same size are pretrained on the same English text,
one with `nsp` and `mlm`, one with `sop` and `mlm`. Each is asked for the pairs of both, made of the
same held-out documents; class 0 is "B follows A" for both. Articles of WikiText are documents.

The rule. A score is above chance if it is more than two standard errors of a coin above 0.5 for
every seed, and near chance if its mean is below NEAR. Each must be above chance on its own pairs,
or nothing can be said: inconclusive. Reproduced: NSP is near chance on SOP's pairs, and SOP is
above chance on NSP's. Not reproduced: NSP is not near chance on SOP's pairs and above it with every
seed, or SOP is with no seed above chance on NSP's. Else: inconclusive.

One run at a time; the same command resumes.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean

import torch
from _claims import (
    ENGLISH,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    SIZES,
    Claim,
    print_table,
    start,
)
from _runs import mean_and_deviation, texts

from nlpkit.data.store import Callbacks
from nlpkit.evaluate.held_out import Evaluation
from nlpkit.evaluate.source import find_data
from nlpkit.objectives.examples.text import forward
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.train.log import QUIET, Log
from nlpkit.train.machine import to_device

STEPS = 500
NEAR = 0.55
LABELS = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
TITLE = re.compile(r" = [^=].* = ")  # sections have more signs


@dataclass(frozen=True)
class Scores:
    """The accuracies of one model on one kind of pairs, one for each seed."""

    values: Sequence[float]
    pairs: int

    @property
    def limit(self) -> float:
        """What is above chance: two standard errors of a coin above 0.5."""
        return 0.5 + 2 * sqrt(0.25 / self.pairs)

    @property
    def above(self) -> list[bool]:
        """Whether the score is above chance, for each seed."""
        return [value > self.limit for value in self.values]

    @property
    def near(self) -> bool:
        """Whether the mean is near chance."""
        return fmean(self.values) < NEAR


def verdict(scores: dict[tuple[str, str], Scores]) -> str:
    """Return the verdict for scores by (objective of the model, objective of the pairs)."""
    nsp_on_sop, sop_on_nsp = scores["nsp", "sop"], scores["sop", "nsp"]
    if not all(scores["nsp", "nsp"].above + scores["sop", "sop"].above):
        return INCONCLUSIVE
    if nsp_on_sop.near and all(sop_on_nsp.above):
        return REPRODUCED
    if (not nsp_on_sop.near and all(nsp_on_sop.above)) or not any(sop_on_nsp.above):
        return NOT_REPRODUCED
    return INCONCLUSIVE


def articles(claim: Claim) -> Path:
    """Write the text with a line for each article or page, unless it is there."""
    file = claim.out / "articles.jsonl"
    if file.exists():
        return file
    found: list[str] = []
    for name in ENGLISH:
        for line in (claim.data / name).read_text(encoding="utf-8").split("\n"):
            if name.endswith(".jsonl"):
                found += [json.loads(line)["text"]] if line else []
            elif TITLE.fullmatch(line):
                found.append("")
            elif line.strip() and not line.startswith(" ="):
                found[-1] += line
    text = "".join(json.dumps({"text": each}) + "\n" for each in found if each)
    file.write_text(text, encoding="utf-8")
    return file


def accuracy(opened: Opened, asked: Opened, label: str) -> tuple[float, int]:
    """Return the accuracy of a model on the held-out pairs of `asked`, and their number.

    As in training, tokens of the pairs are masked.
    """
    log, callbacks = Log(QUIET), Callbacks()
    source = find_data(asked, (), None, log, callbacks)
    given = replace(opened, objective=asked.objective)
    held_out = Evaluation(given, source, 4096, callbacks).held_out
    right = pairs = 0
    with torch.no_grad():
        for number in range(len(held_out.bins)):
            batch = to_device(held_out.batch(number), torch.device("cpu"))
            hidden = forward(asked.objective, opened.model, batch)
            answers = opened.model.pair_logits(hidden, batch.lengths).argmax(1)
            right += int((answers == batch.fields[label]).sum())
            pairs += len(answers)
    return right / pairs, pairs


def main() -> None:
    """Train what is missing and print the table."""
    claim = start(__doc__)
    text = texts(claim.out.resolve(), [articles(claim).name])
    found: dict[tuple[str, str], list[float]] = {}
    pairs: dict[str, int] = {}
    for seed in claim.seeds:
        runs = {}
        for name in LABELS:
            objective = [{"name": each, "max_length": 128} for each in (name, "mlm")]
            sets = [*SIZES, "model.num_layers=4", text, f"train.steps={STEPS}"]
            sets += ["train.optimizer=muon", "train.lr=2e-3"]
            sets += ["data.valid_fraction=0.15", f"objective={json.dumps(objective)}"]
            runs[name] = claim.pretrained(name, "bert", seed, sets)
        figures = claim.kept(claim.out / f"pairs-{seed}", lambda runs=runs: ask(runs))
        pairs |= figures["pairs"]
        for model, asked in ((a, b) for a in LABELS for b in LABELS):
            found.setdefault((model, asked), []).append(figures["accuracy"][model][asked])
    scores = {key: Scores(values, pairs[key[1]]) for key, values in found.items()}
    rows = [
        [f"{model} + mlm", *(mean_and_deviation(scores[model, asked].values) for asked in LABELS)]
        for model in LABELS
    ]
    rows.append(["above chance", *(f"> {scores[name, name].limit:.3f}" for name in LABELS)])
    print_table(["trained on", *(f"{name}: {pairs[name]:,} pairs" for name in LABELS)], rows)
    print(f"\nEach seed: {json.dumps({f'{a} on {b}': v for (a, b), v in found.items()})}")
    print(f"\nVerdict: {verdict(scores)}")
    print(f"\n{claim.cpu_minutes():.1f} CPU minutes in all")


def ask(runs: dict[str, Path]) -> dict[str, dict]:
    """Return the accuracy of each model on each kind of pairs, and the number of pairs."""
    opened = {name: open_checkpoint(run, device="cpu") for name, run in runs.items()}
    answers = {
        (model, asked): accuracy(opened[model], opened[asked], LABELS[asked])
        for model in opened
        for asked in opened
    }
    return {
        "accuracy": {a: {b: answers[a, b][0] for b in opened} for a in opened},
        "pairs": {b: answers[b, b][1] for b in opened},
    }


if __name__ == "__main__":
    main()
