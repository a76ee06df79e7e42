"""Is ELECTRA above masked language modelling at equal compute? (Clark et al. 2020, sec. 3.4)

    python bench/claims/electra.py OUT [--data ../shared/data] [--seeds 3]

"Substantially outperform the ones learned by BERT given the same model size, data, and compute":
an ELECTRA discriminator and a BERT of the same size are pretrained on the same English text for
equal CPU time, and tuned on SST-2 and SICK. The steps of BERT are chosen beforehand from the CPU
seconds a step of both, which short runs measure. For each condition and task the learning rate is
that of RATES which is best on held-out training rows with the first seed. The verdict is that of
the mean of both scores on the dev files. One run at a time; the same command resumes.
"""

import statistics
from pathlib import Path
from typing import Any

from _claims import ENGLISH, SIZES, Claim, print_table, print_tasks, start
from _runs import Task, as_options, texts

STEPS = 350  # of ELECTRA
CALIBRATION = 50, 250
CONDITIONS = {
    "ELECTRA": ("electra", [*SIZES, "model.num_layers=2", "model.embedding_size=128"]),
    "MLM": (
        "bert",
        [*SIZES, "model.num_layers=2", 'objective={"name": "mlm", "max_length": 128}'],
    ),
}
TASKS = [
    Task("SST-2", "gpt1_classify", "en_task/sst2", "accuracy"),
    Task(
        "SICK",
        "gpt1_similarity",
        "en_task/sick",
        "pearson",
        epochs=1,  # sequences are twice as long, and each row has both orders
        sets=["objective.regression=true", "objective.label=score"],
    ),
]


def equal_steps(claim: Claim) -> dict[str, int]:
    """Return how many steps each condition has, so that both take equal CPU time."""

    def make() -> dict[str, Any]:
        seconds: dict[str, list[float]] = {name: [] for name in CONDITIONS}
        for steps in CALIBRATION:
            for name, (recipe, sets) in CONDITIONS.items():
                place = claim.out / "calibration" / f"{name.lower()}-{steps}"
                more = [*sets, texts(claim.data, ENGLISH), "data.valid=[]", f"train.steps={steps}"]
                more += ["seed=1000", "train.eval_every=null"]
                run = [recipe, *as_options(more), "--resume", "never", "--out", str(place)]
                seconds[name].append(claim.timed("pretrain", *run, log="calibration")[1])
        return {
            "a_step": {
                name: (long - short) / (CALIBRATION[1] - CALIBRATION[0])
                for name, (short, long) in seconds.items()
            },
            "cpu_seconds": sum(sum(each) for each in seconds.values()),
        }

    a_step = claim.kept(claim.out / "calibration", make)["a_step"]
    return {name: round(STEPS * a_step["ELECTRA"] / each) for name, each in a_step.items()}


def main() -> None:
    """Train what is missing and print the tables."""
    claim = start(__doc__)
    steps = equal_steps(claim)
    bases: dict[str, list[Path]] = {name: [] for name in CONDITIONS}
    for seed in claim.seeds:
        for name, (recipe, sets) in CONDITIONS.items():
            more = [*sets, texts(claim.data, ENGLISH), f"train.steps={steps[name]}"]
            bases[name].append(claim.pretrained(name, recipe, seed, more))
    scores: dict[str, dict[str, list[float]]] = {name: {} for name in CONDITIONS}
    rates: dict[tuple[str, str], str] = {}
    for name, found in bases.items():
        for task in TASKS:
            rates[name, task.name] = tune(claim, task, found, scores[name])
    rows = []
    for name, found in bases.items():
        figures = [claim.kept(base, dict) for base in found]
        seconds = statistics.fmean(each["cpu_seconds"] for each in figures)
        chosen = ", ".join(f"{task.name} {rates[name, task.name]}" for task in TASKS)
        loss = statistics.fmean(each["mlm"] for each in figures)
        rows.append([name, str(steps[name]), f"{seconds / 60:.2f}", f"{loss:.3f}", chosen])
    print_table(["", "steps", "CPU minutes a run", "held-out mlm", "learning rates"], rows)
    print()
    print_tasks(("ELECTRA", scores["ELECTRA"]), ("MLM", scores["MLM"]))
    print(f"\n{claim.cpu_minutes():.1f} CPU minutes in all")


def tune(claim: Claim, task: Task, bases: list[Path], scores: dict[str, list[float]]) -> str:
    """Add the scores of a task, one for each base, to `scores`; return the learning rate."""
    rate = claim.best_rate(task, bases[0], claim.seeds[0])
    runs = zip(claim.seeds, bases, strict=True)
    scores[task.name] = [claim.tuned(task, base, seed, rate, chosen=True) for seed, base in runs]
    return rate


if __name__ == "__main__":
    main()
