"""The updates of a workload of `bench/steps.py`: which texts ours takes, and so the others take.

They are asked of nlpkit itself: its data, its packer and its stream of steps, as in a run. The
run's own `metrics.jsonl` is held against them afterwards.
"""

import json
import pickle
import subprocess
import sys
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _steps_recipes import OF_TASK, PROMPT, Workload, recipe

from nlpkit import recipe as recipes
from nlpkit.contracts.batch import IGNORE, Batch
from nlpkit.contracts.reader import Counts
from nlpkit.data.documents import read_documents
from nlpkit.data.files import find_inputs as resolve
from nlpkit.data.loader import Examples, Progress, Stream
from nlpkit.data.settings import Config as DataConfig
from nlpkit.data.store import Callbacks
from nlpkit.models.config import ModelConfig
from nlpkit.models.flops import step_flops
from nlpkit.runs.build import build_data, model_part

_SEEDS = range(1, 50)
_BLOCK = 50  # batches that are sorted together by `group_by_length` of transformers
# A sequence: "input_ids" and "labels" as transformers reads them, "size" with soft prompts.
Text = dict[str, Any]


@dataclass
class Plan:
    """The updates of a workload, and what they cost."""

    workload: Workload
    recipe: Path
    seed: int
    per_round: int
    updates: list[list[Text]]
    grouped: list[list[Text]]  # batches of `group_by_length`, for texts of their own lengths
    vocabulary: int
    config: ModelConfig  # of our model

    def flops(self, texts: list[Text]) -> float:
        """Return the FLOPs that an update of these texts needs, without padding."""
        labels = [text["labels"] for text in texts if np.ndim(text["labels"])]
        targets = sum(int((each != IGNORE).sum()) for each in labels)
        sizes = [text["size"] for text in texts]
        return step_flops(self.workload.family, self.config, self.vocabulary, sizes, targets)

    def save(self, path: Path, classes: int) -> None:
        """Write what a process with Trainer reads."""
        about = {
            "family": self.workload.family, "classes": classes, "vocabulary": self.vocabulary,
            "size": asdict(self.workload.size), "batches": (self.updates, self.grouped),
            "prompt": PROMPT if self.workload.family == "cpm_ant" else 0,
        }  # fmt: skip
        path.write_bytes(pickle.dumps(about))


def tokens(updates: list[list[Text]]) -> list[int]:
    """Return the real tokens of each update."""
    return [sum(text["size"] for text in texts) for texts in updates]


def positions(updates: list[list[Text]]) -> float:
    """Return the positions of padded batches for each token."""
    padded = sum(len(texts) * max(text["size"] for text in texts) for texts in updates)
    return padded / sum(tokens(updates))


def make(
    workload: Workload, files: dict[str, list[str]], folder: Path, rounds: int, per_round: int
) -> Plan:
    """Return the plan of so many rounds; its recipe and the text of full rows lie in `folder`.

    Raises:
        SystemExit: the text is too short for full rows.
    """
    steps = rounds * per_round
    chosen = _files(workload, files, folder, steps)
    start = _start(workload, files, folder) if workload.verb == "finetune" else None
    path = folder / f"{workload.name}.yaml"
    made = recipe(workload, chosen, steps=steps, start=start, cache=folder / "cache")
    path.write_text(json.dumps(made), encoding="utf-8")
    resolved = recipes.load(str(path))
    part = model_part(resolved)
    data = build_data(resolved, part, folder, Callbacks())
    settings = resolved.recipe.train
    for seed in _SEEDS:
        stream = Stream(
            Examples(data.train, data.objective, seed), budget=settings.batch_budget,
            batches_per_step=settings.batches_per_step, progress=Progress(0, steps),
        )  # fmt: skip
        pool = [
            [text for batch in stream[number].batches for text in _texts(workload, batch)]
            for number in range(steps if workload.is_full else -(-steps // _BLOCK) * _BLOCK)
        ]
        updates = pool[:steps]
        sizes = {text["size"] for texts in updates for text in texts}
        # A stream of text has one row that is not full, its last.
        if not workload.is_full or (len(sizes) == 1 and len(set(map(len, updates))) == 1):
            break
    else:
        raise SystemExit(f"{workload.name}: {', '.join(chosen)}: too short for {steps} updates")
    plan = Plan(
        *(workload, path, seed, per_round, updates),
        [] if workload.is_full else _grouped(pool, rounds, per_round),
        *(data.vocab_size, part.config),
    )
    plan.save(folder / f"{workload.name}.pickle", part.outputs)
    return plan


def _files(workload: Workload, files: dict[str, list[str]], folder: Path, steps: int) -> list[str]:
    """Return the files that the run reads: those named, or one with the text of full rows."""
    named = files[workload.source]
    if not workload.is_full or (workload.verb == "pretrain" and workload.family != "cpm_ant"):
        return named
    config = DataConfig.model_validate({"train": named})
    inputs, _ = resolve(config, None, folder)
    text = "\n".join(document.text for document in read_documents(inputs, config, Counts()))
    path = folder / f"{workload.name}.jsonl"
    rows: list[dict[str, Any]] = [{"text": text}]
    if workload.verb == "finetune":
        # Eight characters a token are more than enough; the task cuts what is too long.
        size, length = 8 * workload.size.task_length, workload.size.task_length // 2
        count = 2 * steps * workload.size.tokens // workload.size.task_length
        starts = [place * size % max(1, len(text) - size) for place in range(count)]
        cut = [text[start : start + size].strip() for start in starts]
        rows = [{"text": each, "label": i % 2} for i, each in enumerate(cut)]
        if OF_TASK[workload.family] == "cpm_ant_nlg":
            rows = [{"input": each[length:], "target": each[:length]} for each in cut]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return [str(path)]


def _start(workload: Workload, files: dict[str, list[str]], folder: Path) -> Path:
    """Return the checkpoint that is fine-tuned: one step of pretraining, made at the first use."""
    before = Workload(workload.family, "pretrain", "varied", workload.size_name)
    out = folder / f"{workload.family}-start"
    if not out.exists():
        path = folder / f"{out.name}.yaml"
        made = recipe(before, files[before.source], steps=1, start=None, cache=folder / "cache")
        path.write_text(json.dumps(made), encoding="utf-8")
        command = ["pretrain", str(path), "--device", "cpu", "--out", str(out), "-q"]
        subprocess.run(
            [sys.executable, "-m", "nlpkit", *command], check=True, stdout=subprocess.DEVNULL
        )
    return out


def _texts(workload: Workload, batch: Batch) -> list[Text]:
    """Return the sequences of a batch; transformers' CPM-Ant puts the soft prompt in front."""
    fields, made = batch.fields, []
    prompt = PROMPT if workload.family == "cpm_ant" else 0
    for number, (start, end) in enumerate(pairwise([0, *np.cumsum(batch.lengths)])):
        ids = fields["input_ids"][start + prompt : end]
        if workload.is_classification:
            labels = int(fields["label"][number])
        elif workload.family == "gpt":  # transformers moves them by one itself
            labels = ids
        else:
            labels = fields["labels"][start + prompt : end]
        made.append({"input_ids": ids, "labels": labels, "size": int(end - start)})
    return made


def _grouped(pool: list[list[Text]], rounds: int, per_round: int) -> list[list[Text]]:
    """Return batches of like lengths for these rounds, out of as many as there are in `pool`.

    Few texts could not be grouped well. So those of all updates of the pool are sorted in blocks,
    as transformers does, and batches are taken from the whole range of lengths. Each round has as
    many tokens as others, or nearly: the longest batches are with the shortest.
    """
    rng = np.random.default_rng(0)
    texts = [text for each in pool for text in each]
    batches: list[list[Text]] = []
    for block in np.array_split(rng.permutation(len(texts)), -(-len(pool) // _BLOCK)):
        by_size = sorted(block, key=lambda index: -texts[index]["size"])
        batches += [[texts[i] for i in each] for each in np.array_split(by_size, _BLOCK)]
    batches.sort(key=lambda batch: sum(text["size"] for text in batch))
    steps = rounds * per_round
    taken = ((np.arange(steps) + 0.5) * len(batches) / steps).astype(int)
    parts = taken.reshape(per_round, rounds)
    parts[1::2] = parts[1::2, ::-1].copy()
    return [batches[i] for r in rng.permutation(rounds) for i in rng.permutation(parts[:, r])]
