"""The bases and tasks of `bench/tasks.py`, on the data of ../shared/data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """A task of ../shared/data: its files, the recipe it is trained with, how it is judged.

    `shown` are figures of `nlpkit eval`: the score, or `loss`. `label` is the column that the
    commonest answer of the training rows is counted in.
    """

    name: str
    base: str
    recipe: str
    files: str
    score: str
    label: str | None
    epochs: float = 3
    sets: list[str] = field(default_factory=list)
    shown: tuple[str, ...] = ()

    def file(self, data: Path, split: str) -> str:
        """Return the name of a file as YAML."""
        return json.dumps(str(data / f"{self.files}.{split}.jsonl"))

    def settings(self, data: Path, held_out: bool) -> list[str]:
        """Return the settings of a run that ends with one evaluation, after the last step.

        It is on the dev file, or on a tenth of the training rows, which are held out then.
        """
        sets = [f"data.train=[{self.file(data, 'train')}]"]
        if held_out:
            sets += ["data.valid=[]", "data.valid_fraction=0.1"]
        else:
            sets += [f"data.valid=[{self.file(data, 'dev')}]"]
        sets += [*self.sets, f"train.epochs={self.epochs}", "train.steps=null"]
        return [*sets, "train.best_by=loss", "train.eval_every=null"]


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
            *("train.steps=1600", "train.schedule=cosine", "train.warmup_ratio=0.06"),
            "train.eval_every=400",
        ],
    ),
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


def texts(data: Path, files: Sequence[str]) -> str:
    """Return the setting that trains on these files."""
    return f"data.train=[{', '.join(json.dumps(str(data / file)) for file in files)}]"
