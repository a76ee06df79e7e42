"""Is whole-word masking above token masking in Chinese? (Cui et al. 2019, arXiv:1906.08101)

    python bench/claims/whole_word.py OUT [--data ../shared/data] [--seeds 3]

The paper judges by tuning tasks. Two BERTs of the same size are pretrained on the same Chinese text
with the same steps, characters being the tokens: `wwm` masks the characters of a word together,
words by jieba, and `mlm` each by itself. Both are tuned on ChnSentiCorp and CCPM with the same
recipe and learning rate. The verdict is that of the mean of both scores on the dev files. One run
at a time; the same command resumes.
"""

import statistics

from _claims import SIZES, print_tasks, start
from _runs import Task, texts

STEPS = 300
RATE = "5e-4"
CHINESE = ["zh_lm/clue_small.txt", "zh_lm/wiki_cmrc_contexts.jsonl"]
CONDITIONS = {"whole words": "wwm", "tokens": "mlm"}
TASKS = [
    Task("ChnSentiCorp", "gpt1_classify", "zh_task/chnsenticorp", "accuracy", epochs=1),
    Task(
        "CCPM",
        "gpt1_choice",
        "zh_task/ccpm",
        "accuracy",
        epochs=1,
        sets=["objective.context=input", "objective.label=target"],
    ),
]


def main() -> None:
    """Train what is missing and print the table."""
    claim = start(__doc__)
    scores: dict[str, dict[str, list[float]]] = {
        name: {task.name: [] for task in TASKS} for name in CONDITIONS
    }
    losses: dict[str, list[float]] = {name: [] for name in CONDITIONS}
    for seed in claim.seeds:
        for name, objective in CONDITIONS.items():
            sets = [*SIZES, "model.num_layers=2", texts(claim.data, CHINESE)]
            sets += [f"train.steps={STEPS}", f"objective.name={objective}"]
            base = claim.pretrained(name, "bert_wwm_zh", seed, sets)
            losses[name].append(claim.kept(base, dict)["loss"])
            for task in TASKS:
                score = claim.tuned(task, base, seed, RATE, chosen=True)
                scores[name][task.name].append(score)
    claimed, other = CONDITIONS
    print_tasks((claimed, scores[claimed]), (other, scores[other]))
    means = [f"{name} {statistics.fmean(found):.3f}" for name, found in losses.items()]
    print(f"\nHeld-out loss, each of its own targets, nats a token: {', '.join(means)}")
    print(f"\n{claim.cpu_minutes():.1f} CPU minutes in all")


if __name__ == "__main__":
    main()
