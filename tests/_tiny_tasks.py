"""Tiny runs of tasks: a CPM-Ant or a GPT trained a few steps, and rows for it to be adapted to."""

import json
import random
from pathlib import Path

from tests._tiny import RECIPE, WORDS, pretrain, write

TRAIN = """\
train: {steps: 8, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 4, save_every: 3, keep: 9}
"""
HEAD = """\
name: NAME
out: FOLDER/runs/NAME
init_from: START
data: {train: [FOLDER/NAME.train.jsonl], valid: [FOLDER/NAME.valid.jsonl]}
"""
NLG = HEAD + "objective: {name: cpm_ant_nlg, max_length: 48}\n" + TRAIN
NLU = HEAD + "objective: {name: cpm_ant_nlu, max_length: 48, cue: 天, answer: 人}\n" + TRAIN
CLASSES = HEAD + "objective: {name: classification, max_length: 32}\n" + TRAIN
GPT = (
    RECIPE.replace(
        "intermediate_size: 48,\n  prompt_types: 4, prompt_length: 4, segment_types: 4, "
        "num_buckets: 32, max_distance: 64,\n"
        "  dropout: 0.1",
        "max_positions: 64",
    )
    .replace("cpm_ant, hidden", "gpt, hidden")
    .replace("{kind: cpm_ant, vocab_size: 200, min_frequency: 1}", "{kind: bpe, vocab_size: 400}")
    .replace("{name: cpm_ant, max_length: 64, min_piece: 4}", "{name: clm, max_length: 64}")
)


def rows_of(task: str, count: int, seed: int) -> list[dict]:
    """Return rows that can be learned: the target repeats the input, or the class is in it."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        text = "".join(draw.choices(WORDS, k=draw.randint(3, 12)))
        if task == "nlg":
            rows.append({"input": text, "target": text[:4]})
        elif task == "nlu":
            options = ["".join(draw.choices(WORDS, k=3)) for _ in range(draw.randint(2, 4))]
            target = draw.randrange(len(options))
            options[target] = text[:2]
            rows.append({"input": text, "options": options, "target": target})
        else:
            label = draw.choice(["good", "bad", "so so"])
            rows.append({"text": {"good": "花", "bad": "雪", "so so": "山"}[label] + text,
                         "label": label})  # fmt: skip
    return rows


def write_rows(path: Path, rows: list[dict]) -> Path:
    """Write rows as jsonl."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def start(folder: Path, family: str = "cpm_ant", *sets: str) -> Path:
    """Pretrain a few steps; return the run."""
    text = RECIPE if family == "cpm_ant" else GPT.replace("gpt, hidden", f"{family}, hidden")
    path = write(folder / family, documents=60, text=text)
    out = folder / f"{family}-run"
    pretrain(path, out, "train.steps=4", "train.eval_every=null", *sets)
    return out


def task(folder: Path, name: str, text: str, run: Path) -> Path:
    """Write a task's rows and recipe; return the recipe's path."""
    write_rows(folder / f"{name}.train.jsonl", rows_of(name, 60, 1))
    write_rows(folder / f"{name}.valid.jsonl", rows_of(name, 13, 2))
    text = text.replace("NAME", name).replace("START", str(run / "checkpoints/latest"))
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")
    return path


def three(folder: Path) -> Path:
    """Pretrain tiny models in `folder`; write rows and recipes of three tasks; return it."""
    ant, gpt = start(folder), start(folder, "gpt")
    for name, text, run in (("nlg", NLG, ant), ("nlu", NLU, ant), ("classes", CLASSES, gpt)):
        task(folder, name, text, run)
    return folder
