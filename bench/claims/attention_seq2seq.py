"""Does attention help a recurrent translator, and the more the longer the sentence?

    python bench/claims/attention_seq2seq.py OUT [--data ../shared/data/parallel] [--seeds 3]

Bahdanau et al. 2014 (arXiv:1409.0473, sec. 5.2.1, figure 2): an encoder-decoder with attention
beats one with a context vector alone, and the gap grows with the length of the sentence.

Two models of the family `seq2seq` on Multi30k, German to English: the same cells, sizes, batches
and seeds; `plain` gives the decoder the last state of the encoder, at first and at every step (Cho
et al. 2014), `attention` has Luong's general score. After a fixed number of steps both are compared
on test2016, by words of the source: nats a token of the reference, and BLEU of greedy translations.
The gap is between the means of the seeds; its deviation is of the seeds. The same command resumes
where it was stopped.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _claims import Comparison

from nlpkit.contracts.batch import IGNORE
from nlpkit.data.pack import collate
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.objectives.examples.text import forward
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.score.metrics import bleu

MODELS = {
    "plain": ["model.score=null", "model.context=both"],
    "attention": ["model.score=general", "model.context=initial_state"],
}
LENGTHS = ((1, 8), (9, 11), (12, 14), (15, 99))  # words of the source
RECIPE = """\
name: claim
model: {family: seq2seq, cell: gru, hidden_size: 160, embedding_size: 96, num_layers: 1,
  num_directions: 2, dropout: 0.2}
tokenizer: {kind: bpe, vocab_size: 2000}
data: {train: [{files: [DATA/multi30k.train.de, DATA/multi30k.train.en]}],
  valid: [{files: [DATA/multi30k.val.de, DATA/multi30k.val.en]}], format: parallel}
objective: {name: seq2seq, max_length: 64}
train: {steps: 900, tokens_per_step: 1024, lr: 4.0e-3, schedule: cosine, warmup_ratio: 0.1,
  eval_every: 900, save_every: 300}
"""
Figures = dict[str, list[float]]  # nats a token and BLEU of each bucket, and of all at the end


def main() -> None:
    """Train what is missing, and print the table and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/parallel"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    out, data = arguments.out.resolve(), arguments.data.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "recipe.yaml").write_text(RECIPE.replace("DATA", str(data)), encoding="utf-8")
    results: dict[str, list[Figures]] = {name: [] for name in MODELS}
    for seed in range(1, arguments.seeds + 1):
        for name in MODELS:
            results[name].append(_result(out, data, name, seed))
        _print(results, _texts(data)[0])


def _result(out: Path, data: Path, name: str, seed: int) -> Figures:
    """Return the figures of one run, which is trained unless they are there."""
    run, kept = out / f"{name}-{seed}", out / f"{name}-{seed}.json"
    if not kept.exists():
        sets = [f"--set={each}" for each in (*MODELS[name], f"seed={seed}")]
        command = [sys.executable, "-m", "nlpkit", "pretrain", str(out / "recipe.yaml")]
        subprocess.run([*command, *sets, "--out", str(run), "--device", "cpu"], check=True)
        opened = open_checkpoint(run / "checkpoints/latest", device="cpu")
        kept.write_text(json.dumps(_figures(opened, *_texts(data))), encoding="utf-8")
    figures: Figures = json.loads(kept.read_text(encoding="utf-8"))
    return figures


def _texts(data: Path) -> tuple[list[str], list[str]]:
    sides = (data / f"multi30k.test2016.{side}" for side in ("de", "en"))
    german, english = (side.read_text(encoding="utf-8").split("\n")[:-1] for side in sides)
    return german, english


def _buckets(sources: list[str]) -> list[list[int]]:
    """Return the lines of each bucket, and all lines."""
    words = [len(source.split()) for source in sources]
    found = [[i for i, n in enumerate(words) if low <= n <= high] for low, high in LENGTHS]
    return [*found, [*range(len(sources))]]


@torch.no_grad()
def _figures(opened: Opened, sources: list[str], targets: list[str]) -> Figures:
    pairs = list(zip(sources, targets, strict=True))
    parts = [pairs[start : start + 50] for start in range(0, len(pairs), 50)]
    losses = [each for part in parts for each in _losses(opened, part)]
    writer = Writer(opened.model, opened.tokenizer, opened.objective, Settings())
    answers = [each.outputs[0].text for each in writer.write(sources, scores=False)]
    figures: Figures = {"nats": [], "bleu": []}
    for lines in _buckets(sources):
        total, tokens = (sum(losses[i][part] for i in lines) for part in (0, 1))
        figures["nats"].append(total / tokens)
        hypotheses, references = ([text[i] for i in lines] for text in (answers, targets))
        figures["bleu"].append(bleu.score(hypotheses, [references]).score)
    return figures


def _losses(opened: Opened, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, int]]:
    """Return the sum of the losses of each target, and their number."""
    objective: Any = opened.objective
    ids = [[np.array(opened.tokenizer.encode(text)) for text in pair] for pair in pairs]
    batch = collate([objective.made(*each) for each in ids], objective.fields)
    arrays = {n: each for n, each in batch.fields.items() if isinstance(each, np.ndarray)}
    batch.fields |= {name: torch.from_numpy(each) for name, each in arrays.items()}
    labels = batch.fields["labels"]
    index = (labels != IGNORE).nonzero().squeeze(1)
    hidden = forward(objective, opened.model, batch)
    each = torch.zeros(len(labels))
    each[index] = opened.model.token_loss(hidden, index, labels[index])[1]
    parts = zip(each.split(batch.lengths), (labels != IGNORE).split(batch.lengths), strict=True)
    return [(float(loss.sum()), int(known.sum())) for loss, known in parts]


def _print(results: dict[str, list[Figures]], sources: list[str]) -> None:
    seeds = len(results["plain"])
    names = [f"{low} to {high}" if high < 99 else f"from {low}" for low, high in LENGTHS]
    print(f"\n{seeds} seed{'s' if seeds > 1 else ''}; mean ± deviation")
    print("| words of the source | lines | measure | plain | attention | gap |")
    print("|---|---|---|---|---|---|")
    gaps: dict[str, list[list[float]]] = {"nats": [], "bleu": []}
    overall: dict[str, Comparison] = {}
    for measure, sign in (("nats", 1), ("bleu", -1)):
        for bucket, (name, lines) in enumerate(
            zip([*names, "all"], _buckets(sources), strict=True)
        ):
            plain, attention = (
                [figures[measure][bucket] for figures in results[model]] for model in MODELS
            )
            gap = [sign * (a - b) for a, b in zip(plain, attention, strict=True)]
            gaps[measure].append(gap)
            overall[measure] = Comparison(
                [-sign * b for b in attention], [-sign * a for a in plain]
            )
            shown = " | ".join(_shown(each) for each in (plain, attention, gap))
            print(f"| {name} | {len(lines)} | {measure} | {shown} |")
    for measure, by_bucket in gaps.items():
        _verdict(measure, "attention is better", overall[measure])
        longest = Comparison(by_bucket[-2], by_bucket[0])
        _verdict(measure, "the gap of the longest is above that of the shortest", longest)


def _verdict(measure: str, what: str, comparison: Comparison) -> None:
    """Print the verdict on a part of the claim, by the rule in `_claims.py`."""
    print(f"{measure}: {what}: {comparison.verdict} (p = {comparison.p():.2f})")


def _shown(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


if __name__ == "__main__":
    main()
