"""Is a Transformer above an LSTM of the same size, and where in its context?

    python bench/claims/lstm.py OUT [--data ../shared/data] [--seeds 3]

Kaplan et al. 2020 (arXiv:2001.08361), sec. 3.2.1 and figure 7: with the same parameters and text, a
Transformer has a lower loss than an LSTM; early in the context the LSTM is as good, later it is
not. Their smallest models have 0.1 million parameters without embeddings, trained on 20 billion
tokens and more.

Two language models with the same text, tokenizer, tokens seen, context and parameters: `gpt2` of 4
layers and `lstm` of 2. Each has its own learning rate, the best of four on the text `choose`, with
the first seed. Compared on the text `test`, which nothing is chosen by: bits a character, nats a
token by the number of tokens to the left, and accuracy on minimal pairs (BLiMP). At the same CPU
time: the curve of the slower model at the time in which the faster one is done, on `choose`.

One run at a time; the same command resumes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from _claims import Claim, Comparison, print_table, row, start
from _runs import as_options, mean_and_deviation
from sentences import articles

from nlpkit.contracts.batch import IGNORE
from nlpkit.data.store import Callbacks
from nlpkit.evaluate.held_out import Evaluation
from nlpkit.evaluate.source import find_data
from nlpkit.objectives.examples.text import forward
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.train.log import QUIET, Log
from nlpkit.train.machine import to_device

STEPS = 600
EVERY = 60  # steps between two points of the curve
EACH = 20  # of so many documents, one is for `choose` and one for `test`
TRANSFORMER, LSTM = "Transformer", "LSTM"
NO_DROPOUT = [f"model.{part}_dropout=0.0" for part in ("embedding", "attention", "residual")]
MODELS = {
    TRANSFORMER: (
        "gpt2",
        ["model.hidden_size=128", "model.num_layers=4", "model.max_positions=256", *NO_DROPOUT],
        ("1e-3", "2e-3", "4e-3", "8e-3"),
    ),
    LSTM: (
        "lstm",
        [
            "model.hidden_size=232",
            "model.embedding_size=128",
            "model.num_layers=2",
            "model.dropout=0.0",
        ],
        ("1e-3", "2e-3", "4e-3", "8e-3"),
    ),
}
SETTINGS = [
    *("tokenizer.vocab_size=2000", "train.optimizer=muon"),
    *("objective.max_length=256", "objective.contiguous=true"),
    *(f"train.steps={STEPS}", f"train.eval_every={EVERY}", "train.save_every=1000"),
]
BUCKETS = ((1, 8), (9, 32), (33, 128), (129, 256))  # tokens to the left
Figures = dict[str, Any]


def write_texts(claim: Claim) -> None:
    """Write the texts to train on, to choose rates by and to compare on, unless they are there."""
    if (claim.out / "test.jsonl").exists():
        return
    lines = articles(claim).read_text(encoding="utf-8").splitlines(keepends=True)
    parts: dict[str, list[str]] = {"train": [], "choose": [], "test": []}
    for number, line in enumerate(lines):
        parts[{0: "choose", 1: "test"}.get(number % EACH, "train")].append(line)
    for name, found in parts.items():
        (claim.out / f"{name}.jsonl").write_text("".join(found), encoding="utf-8")


def trained(claim: Claim, model: str, seed: int, rate: str) -> Path:
    """Train a model, unless that is done; return the directory of its run."""
    family, sizes, _ = MODELS[model]
    place = claim.out / f"{family}-{rate}-{seed}"
    files = [f'data.{a}=["{claim.out.resolve() / b}.jsonl"]' for a, b in (
        ("train", "train"), ("valid", "choose"))]  # fmt: skip
    sets = [*sizes, *SETTINGS, *files, f"train.lr={rate}", f"seed={seed}"]
    claim.trained("pretrain", family, place, as_options(sets))
    return place


def curve(run: Path) -> tuple[list[int], list[float]]:
    """Return the steps of a run's evaluations, and bits a character there."""
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    found = {
        record["step"]: record["held_out"]["bits_per_character"]
        for record in records
        if "held_out" in record
    }
    return list(found), list(found.values())


def chosen_rate(claim: Claim, model: str) -> str:
    """Return the learning rate that is best on `choose` with the first seed."""
    losses = {
        rate: claim.kept(trained(claim, model, claim.seeds[0], rate), dict)["loss"]
        for rate in MODELS[model][2]
    }
    return min(losses, key=losses.__getitem__)


def compared(claim: Claim, run: Path) -> Figures:
    """Return what a run reaches on `test`: bits a character, and nats by place in the context."""

    def make() -> Figures:
        test = str(claim.out / "test.jsonl")
        answer, seconds = claim.timed(
            "eval", str(run), "--data", test, "--json", log=f"{run.name}-test"
        )
        opened = open_checkpoint(run, device="cpu")
        sums, counts = np.zeros(256), np.zeros(256)
        for losses, places in token_losses(opened, test):
            np.add.at(sums, places, losses)
            np.add.at(counts, places, 1)
        nats = [float(sums[a - 1 : b].sum() / counts[a - 1 : b].sum()) for a, b in BUCKETS]
        figures = {"bits": json.loads(answer)["bits_per_character"], "nats": nats}
        parameters = sum(p.numel() for p in opened.model.parameters())
        tokens = len(opened.tokenizer.encode("".join(texts_of(claim.out / "train.jsonl"))))
        return figures | {"parameters": parameters, "tokens": tokens, "cpu_seconds": seconds}

    return claim.kept(run / "compared", make)


def texts_of(file: Path) -> Iterator[str]:
    """Yield the texts of a file."""
    for line in file.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)["text"]


def token_losses(opened: Opened, file: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield losses of a text's tokens, and how many tokens are to their left, less 1."""
    log, callbacks = Log(QUIET), Callbacks()
    source = find_data(opened, (file,), None, log, callbacks)
    held_out = Evaluation(opened, source, 4096, callbacks).held_out
    with torch.no_grad():
        for number in range(len(held_out.bins)):
            batch = to_device(held_out.batch(number), torch.device("cpu"))
            labels = batch.fields["labels"]
            index = (labels != IGNORE).nonzero().squeeze(1)
            hidden = forward(opened.objective, opened.model, batch)
            _, losses = opened.model.token_loss(hidden, index, labels[index])
            places = np.concatenate([np.arange(length) for length in batch.lengths])
            yield losses.float().numpy(), places[index.numpy()]


def at_time_of(steps: list[int], bits: list[float], share: float) -> float:
    """Return bits a character when this share of the steps is done."""
    return float(np.interp(share * steps[-1], steps, bits))


def lower(name: str, claimed: list[float], other: list[float]) -> list[str]:
    """Return the cells of a comparison in which less is better."""
    cells = row(name, Comparison([-each for each in claimed], [-each for each in other]))
    return [name, mean_and_deviation(claimed), mean_and_deviation(other), *cells[3:]]


def pairs(claim: Claim, run: Path) -> dict[str, float]:
    """Return the figures of a run on all minimal pairs, and the CPU seconds."""

    def make() -> dict[str, float]:
        name = "-".join(run.relative_to(claim.out).parts)
        files = ["--pairs", str(claim.data / "pairs/blimp")]
        answer, seconds = claim.timed("judge", str(run), *files, "--json", log=name)
        return {"accuracy": json.loads(answer)["accuracy"], "cpu_seconds": seconds}

    return claim.kept(run / "pairs", make)


def main() -> None:
    """Train what is missing and print the tables."""
    claim = start(__doc__)
    write_texts(claim)
    rates = {model: chosen_rate(claim, model) for model in MODELS}
    runs = {m: [trained(claim, m, seed, rates[m]) for seed in claim.seeds] for m in MODELS}
    found = {model: [compared(claim, run) for run in runs[model]] for model in MODELS}
    scores = {model: [pairs(claim, run)["accuracy"] for run in runs[model]] for model in MODELS}
    minutes = {
        m: fmean(claim.kept(run, dict)["cpu_seconds"] / 60 for run in runs[m]) for m in MODELS
    }
    print_runs(claim, runs, rates, minutes, found)
    bits = {model: [each["bits"] for each in found[model]] for model in MODELS}
    rows = [lower("bits a character", bits[TRANSFORMER], bits[LSTM])]
    blimp = Comparison(scores[TRANSFORMER], scores[LSTM])
    rows.append(row("BLiMP, accuracy", blimp, digits=4))
    by_place = {m: list(zip(*(each["nats"] for each in found[m]), strict=True)) for m in MODELS}
    gaps = []
    for number, (first, last) in enumerate(BUCKETS):
        nats = {model: list(by_place[model][number]) for model in MODELS}
        rows.append(lower(f"nats, {first} to {last} to the left", *nats.values()))
        gaps.append([b - a for a, b in zip(*nats.values(), strict=True)])
    print()
    print_table(["", *MODELS, "better by", "p", "verdict"], rows)
    later = Comparison(gaps[-1], gaps[0])
    print(f"\nThe gap is larger late than early: {later.verdict} (p = {later.p():.2f})")
    print(f"\n{claim.cpu_minutes():.1f} CPU minutes in all")


def print_runs(
    claim: Claim,
    runs: dict[str, list[Path]],
    rates: dict[str, str],
    minutes: dict[str, float],
    found: dict[str, list[Figures]],
) -> None:
    """Print sizes, learning rates, CPU minutes, and what is reached in the same minutes."""
    least = min(minutes.values())
    rows = []
    for model in MODELS:
        at_time = [at_time_of(*curve(run), least / minutes[model]) for run in runs[model]]
        figures = found[model][0]
        cells = [f"{figures['parameters']:,}", rates[model], f"{minutes[model]:.2f}"]
        rows.append([model, *cells, mean_and_deviation(at_time)])
    tokens = found[LSTM][0]["tokens"]
    print(f"{tokens:,} tokens of text; {STEPS} steps of 2,048\n")
    head = ["", "parameters", "learning rate", "CPU minutes a run"]
    print_table([*head, f"bits a character after {least:.2f} minutes (`choose`)"], rows)


if __name__ == "__main__":
    main()
