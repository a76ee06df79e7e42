"""What causal attention is worth: the same GPT-2 with each kind, on tinyshakespeare.

    python bench/claims/attention.py OUT [--data ../shared/data] [--seeds 3]

Every kind trains the same recipe: 4 layers x 128, 400 steps of 2,048 tokens in sequences of 256,
one learning rate. Held-out loss, tokens a second by the wall clock, and peak memory of the run.
Strides are 16, the square root of the length, windows and blocks 32, so that sparse kinds see about
as many tokens.

Verdicts, each for the held-out loss:
- text prefers `fixed` over `strided` (Child et al. 2019, arXiv:1904.10509, on enwik8);
- `cosformer` is better than `linear` (Qin et al. 2022, arXiv:2202.08791, on WikiText-103);
- AFT-local is near full attention (Zhai et al. 2021, arXiv:2105.14103, on enwik8): reproduced if
  the mean loss is at most 2 % above that of `causal`, not if every seed is further above.

One run at a time; the same command resumes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from _claims import NOT_REPRODUCED, REPRODUCED, Comparison, print_table, row, start
from _runs import mean_and_deviation, texts

from nlpkit.checkpoints.run_directory import METRICS

SETTINGS = [
    *("model.hidden_size=128", "model.num_heads=4", "model.max_positions=256"),
    *("tokenizer.vocab_size=1000", "train.steps=400", "train.save_every=400"),
    # Models of AdamW hardly look back after so few steps.
    *("train.optimizer=muon", "train.lr=4e-3"),
    "objective.max_length=256",
]
KINDS = {
    "causal": "{kind: causal}",
    "local_window": "{kind: local_window, window: 32}",
    "strided": "{kind: strided, stride: 16}",
    "strided, split": "{kind: strided, stride: 16, pattern: split}",
    "fixed": "{kind: fixed, stride: 16, summary: 2}",
    "fixed, split": "{kind: fixed, stride: 16, summary: 2, pattern: split}",
    "block_local": "{kind: block_local, block: 32}",
    "memory_compressed": "{kind: memory_compressed}",
    "linear": "{kind: linear}",
    "cosformer": "{kind: cosformer}",
    "AFT-full": "{kind: aft, form: full}",
    "AFT-local": "{kind: aft, form: local, window: 32}",
    "AFT-simple": "{kind: aft, form: simple}",
}
BETTER = {
    "fixed above strided": ("fixed", "strided"),
    "cosFormer above linear": ("cosformer", "linear"),
}
NEAR = 0.02  # of the loss of full attention


def main() -> None:
    """Train what is missing and print the tables."""
    claim = start(__doc__)
    losses: dict[str, list[float]] = {}
    rows = []
    for kind, setting in KINDS.items():
        sets = [*SETTINGS, texts(claim.data, ["en_lm/tinyshakespeare.txt"]), f"attention={setting}"]
        runs = [claim.pretrained(kind, "gpt2", seed, sets) for seed in claim.seeds]
        found = [claim.kept(run, dict) for run in runs]
        losses[kind] = [figures["loss"] for figures in found]
        speeds, peaks = zip(*map(_speed_and_memory, runs), strict=True)
        rows.append([
            kind, mean_and_deviation(losses[kind]), f"{median(speeds):,.0f}",
            f"{median(peaks) / 2**20:,.0f}", f"{fmean(f['cpu_seconds'] for f in found):.0f}",
        ])  # fmt: skip
    head = ["attention", "held-out loss, nats a token", "tokens/s", "MiB", "CPU seconds a run"]
    print_table(head, rows)
    print()
    verdicts = [
        # Lower is better.
        row(name, Comparison([-x for x in losses[claimed]], [-x for x in losses[other]]))
        for name, (claimed, other) in BETTER.items()
    ]
    print_table(
        ["claim", "its loss, times -1", "the other", "difference", "p", "verdict"], verdicts
    )
    print(f"\nAFT-local near full attention: {_near(losses['AFT-local'], losses['causal'])}")
    print(f"\n{claim.cpu_minutes():.1f} CPU minutes in all")


def _speed_and_memory(run: Path) -> tuple[float, float]:
    """Return the median of the tokens a second of the steps, and the peak memory in bytes."""
    lines = (run / METRICS).read_text(encoding="utf-8").splitlines()
    steps = [record for record in map(json.loads, lines) if "held_out" not in record]
    speed = median(record["tokens_per_second"] for record in steps)
    return speed, max(record["memory_bytes"] for record in steps)


def _near(found: Sequence[float], full: Sequence[float]) -> str:
    """Return how far these losses are above the mean of full attention's, and the verdict."""
    mean = fmean(full)
    above = [loss / mean - 1 for loss in found]
    verdict = "inconclusive"
    if fmean(above) <= NEAR:
        verdict = REPRODUCED
    elif min(above) > NEAR:
        verdict = NOT_REPRODUCED
    return f"{fmean(above):+.1%} ({min(above):+.1%} to {max(above):+.1%}), {verdict}"


if __name__ == "__main__":
    main()
