"""Is a model of next sentences near chance on their order, and not the other way round?

    nlpkit compare experiments/sop_nsp.yaml --folder TEXT   # trains both, or do so by hand
    python bench/sentences.py runs/sop_nsp

Lan et al. 2020 (ALBERT), table 5: trained on NSP 90.5 % on NSP and 52.0 % on SOP; trained on SOP
78.9 % on NSP and 86.5 % on SOP. Each run in nsp/ and sop/ is asked for the pairs of both, made of
the same held-out documents; class 0 is "B follows A" for both. As in training, tokens are masked.

The rule. A score is above chance if it is more than two standard errors of a coin above 0.5 for
every seed, and near chance if its mean is below NEAR. Each must be above chance on its own pairs,
or nothing can be said: inconclusive. Reproduced: NSP is near chance on SOP's pairs, and SOP is
above chance on NSP's. Not reproduced: NSP is not near chance on SOP's pairs and above it with every
seed, or SOP is with no seed above chance on NSP's. Else: inconclusive.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean

import torch
from _runs import mean_and_deviation

from nlpkit.data.store import Callbacks
from nlpkit.evaluate.held_out import Evaluation
from nlpkit.evaluate.source import find_data
from nlpkit.objectives.examples.text import forward
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.train.log import QUIET, Log
from nlpkit.train.machine import to_device

NEAR = 0.55
LABELS = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"


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


def accuracy(opened: Opened, asked: Opened, label: str) -> tuple[float, int]:
    """Return the accuracy of a model on the held-out pairs of `asked`, and their number."""
    callbacks = Callbacks()
    source = find_data(asked, (), None, Log(QUIET), callbacks)
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


def ask(folder: Path) -> dict[tuple[str, str], Scores]:
    """Return the scores of all seeds that are there of both models."""
    seeds = sorted(
        run.name for run in folder.glob("nsp/seed-*") if (folder / "sop" / run.name).is_dir()
    )
    if not seeds:
        raise SystemExit(f"{folder}: no runs nsp/seed-N and sop/seed-N; train sop_nsp.yaml first")
    found: dict[tuple[str, str], list[float]] = {}
    pairs: dict[str, int] = {}
    for seed in seeds:
        opened = {name: open_checkpoint(folder / name / seed, device="cpu") for name in LABELS}
        for model, asked in ((a, b) for a in LABELS for b in LABELS):
            score, pairs[asked] = accuracy(opened[model], opened[asked], LABELS[asked])
            found.setdefault((model, asked), []).append(score)
    return {key: Scores(values, pairs[key[1]]) for key, values in found.items()}


def main() -> None:
    """Print the table and the verdict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    scores = ask(parser.parse_args().folder)
    print(f"| trained on | nsp: {scores['nsp', 'nsp'].pairs:,} pairs | "
          f"sop: {scores['sop', 'sop'].pairs:,} pairs |\n| --- | --- | --- |")  # fmt: skip
    for model in LABELS:
        cells = [mean_and_deviation(scores[model, asked].values) for asked in LABELS]
        print(f"| {model} + mlm | {' | '.join(cells)} |")
    limits = [f"> {scores[name, name].limit:.3f}" for name in LABELS]
    print(f"| above chance | {' | '.join(limits)} |")
    for (model, asked), each in scores.items():
        print(f"{model} on {asked}: {', '.join(f'{value:.3f}' for value in each.values)}")
    print(f"Verdict: {verdict(scores)}")


if __name__ == "__main__":
    main()
