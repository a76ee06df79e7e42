"""Is grammar learned better without unmasked targets? (Huebner et al. 2021, BabyBERTa, CoNLL)

    python bench/claims/unmask.py OUT [--data ../shared/data] [--seeds 3]

The paper: small RoBERTas that never see a target as it is (`unmask: 0`) score higher on minimal
pairs of grammar than those that see a tenth of them. Both are pretrained on the same English text
with the same steps, and judged by `nlpkit judge --pairs` on BLiMP. One run at a time; the same
command resumes.
"""

import json
import statistics
from pathlib import Path

from _claims import ENGLISH, SIZES, Claim, Comparison, print_table, row, start
from _runs import texts

STEPS = 300
CONDITIONS = {"never unmasked": "0", "10 % unmasked": "0.1"}


def main() -> None:
    """Train what is missing and print the tables."""
    claim = start(__doc__)
    scores: dict[str, list[float]] = {name: [] for name in CONDITIONS}
    losses: dict[str, list[float]] = {name: [] for name in CONDITIONS}
    for seed in claim.seeds:
        for name, unmask in CONDITIONS.items():
            sets = [*SIZES, "model.num_layers=2", texts(claim.data, ENGLISH)]
            sets += [f"train.steps={STEPS}", f"objective.unmask={unmask}"]
            run = claim.pretrained(name, "roberta", seed, sets)
            losses[name].append(claim.kept(run, dict)["loss"])
            scores[name].append(pairs(claim, run)["accuracy"])
    claimed, other = CONDITIONS
    rows = [row("BLiMP, accuracy", Comparison(scores[claimed], scores[other]), digits=4)]
    print_table(["", claimed, other, "difference", "p", "verdict"], rows)
    means = [f"{name} {statistics.fmean(found):.3f}" for name, found in losses.items()]
    print(f"\nHeld-out loss, each of its own targets, nats a token: {', '.join(means)}")
    print(f"\n{claim.cpu_minutes():.1f} CPU minutes in all")


def pairs(claim: Claim, run: Path) -> dict[str, float]:
    """Return the figures of a run on all minimal pairs, and the CPU seconds."""

    def make() -> dict[str, float]:
        name = "-".join(run.relative_to(claim.out).parts)
        files = ["--pairs", str(claim.data / "pairs/blimp")]
        answer, seconds = claim.timed("judge", str(run), *files, "--json", log=name)
        return {"accuracy": json.loads(answer)["accuracy"], "cpu_seconds": seconds}

    return claim.kept(run / "pairs", make)


if __name__ == "__main__":
    main()
