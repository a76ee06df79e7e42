"""What `bench/steps.py` trains: families, sizes, files of text, recipes. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REAL = ROOT.parent / "shared/data"
FAMILIES, VERBS, LENGTHS = ("gpt", "bert", "cpm_ant"), ("pretrain", "finetune"), ("full", "varied")
OF_TASK = {"gpt": "classification", "bert": "classification", "cpm_ant": "cpm_ant_nlg"}
PROMPT = 8  # soft-prompt tokens of CPM-Ant, as in its recipe
# What CPM-Ant reads has the ending `_zh`.
_SHIPPED = {
    "data": ["data/en/train/*.jsonl"], "rows": ["data/en/classify/train.tsv"],
    "data_zh": ["data/zh/train/*.jsonl"], "rows_zh": ["data/zh/nlg/train.jsonl"],
}  # fmt: skip
_REAL = {
    "data": ["en_lm/wikitext2.*.txt", "en_lm/c4_demo.jsonl"], "rows": ["en_task/sst2.train.jsonl"],
    "data_zh": ["zh_lm/clue_small.txt"], "rows_zh": ["zh_task/kdconv.train.jsonl"],
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Sizes of a model and of its updates; a head is 64 wide, as in the papers."""

    layers: int
    width: int
    tokens: int  # of an update
    length: int  # longest sequence of pretraining
    task_length: int  # longest sequence of fine-tuning
    vocabulary: int  # that is asked for; short text gives fewer tokens

    def __str__(self) -> str:
        return f"{self.layers} x {self.width}"


SIZES = {
    "tiny": Size(1, 64, 256, 64, 32, 400),
    "small": Size(4, 256, 4096, 512, 128, 8192),
    "paper": Size(12, 768, 1024, 512, 128, 40478),
}


@dataclass(frozen=True)
class Workload:
    """A family that is pretrained or fine-tuned, on full rows or texts of their own lengths."""

    family: str
    verb: str
    lengths: str
    size_name: str

    @property
    def name(self) -> str:
        """The name on the command line."""
        return f"{self.family}-{self.verb}-{self.lengths}"

    @property
    def size(self) -> Size:
        """The size by its name."""
        return SIZES[self.size_name]

    @property
    def is_full(self) -> bool:
        """Whether all sequences have the same length."""
        return self.lengths == "full"

    @property
    def is_classification(self) -> bool:
        """Whether a sequence has a class."""
        return self.verb == "finetune" and OF_TASK[self.family] == "classification"

    @property
    def source(self) -> str:
        """The files that the workload reads: a name of `usual_files`."""
        # Full rows of a task are made of the text of pretraining.
        kind = "rows" if self.verb == "finetune" and not self.is_full else "data"
        return f"{kind}_zh" if self.family == "cpm_ant" else kind


def usual_files() -> dict[str, list[str]]:
    """Return the files that are read: real texts of ../shared/data, or else the shipped ones."""
    folder, files = (REAL, _REAL) if REAL.is_dir() else (ROOT, _SHIPPED)
    return {name: [str(folder / file) for file in each] for name, each in files.items()}


def model(workload: Workload) -> dict[str, Any]:
    """Return the section `model`; dropout as in the papers, but none of probabilities."""
    size = workload.size
    made: dict[str, Any] = {
        "hidden_size": size.width, "num_layers": size.layers, "num_heads": size.width // 64,
    }  # fmt: skip
    if workload.family == "cpm_ant":
        # The width inside is CPM-Ant's share, the rest as in its recipe.
        prompts = {"prompt_types": 4, "prompt_length": PROMPT, "segment_types": 8}
        buckets = {"num_buckets": 128, "max_distance": 512}
        inner = {"intermediate_size": size.width * 5 // 2}
        return {"family": "cpm_ant"} | made | inner | prompts | buckets
    made |= {"max_positions": size.length, "attention_dropout": 0.0}
    if workload.family == "bert":
        return {"family": "bert"} | made | {"intermediate_size": 4 * size.width}
    return {"family": "gpt"} | made


def recipe(
    workload: Workload, files: list[str], *, steps: int, start: Path | None, cache: Path
) -> dict[str, Any]:
    """Return the recipe of our run; `start` is the checkpoint that is fine-tuned."""
    size, family = workload.size, workload.family
    made: dict[str, Any] = {
        "name": workload.name,
        "data": {"train": files, "valid": [], "cache": str(cache)},
        "train": {
            "steps": steps, "tokens_per_step": size.tokens, "optimizer": "adamw", "lr": 1e-4,
            "schedule": "linear", "warmup_steps": 1,
        },
    }  # fmt: skip
    if start is not None:
        objective: dict[str, Any] = {"name": OF_TASK[family], "max_length": size.task_length}
        if workload.is_classification:
            objective["lm_weight"] = 0.0  # transformers has no auxiliary loss
        return made | {"init_from": str(start), "objective": objective}
    kind = {"gpt": "bpe", "bert": "wordpiece", "cpm_ant": "cpm_ant"}[family]
    objective = {"name": {"gpt": "clm", "bert": "mlm"}.get(family, family)}
    objective["max_length"] = size.length
    if family == "cpm_ant":
        # A piece that is not full is dropped.
        objective["min_piece"] = size.length - PROMPT - 2 if workload.is_full else 16
    else:
        objective["contiguous"] = workload.is_full
    return made | {
        "model": model(workload),
        "tokenizer": {"kind": kind, "vocab_size": size.vocabulary},
        "objective": objective,
    }
