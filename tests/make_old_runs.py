"""Makes tests/old_runs: runs of the commit f0ab896, interrupted in the middle.

Run it with that commit's nlpkit on the path: python make_old_runs.py DIRECTORY

Each run is killed (SIGKILL) in the middle of writing the record of step 5, after the save at step
3. expected.json holds what the same runs give when nothing stops them.
"""

import argparse
import hashlib
import itertools
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

RUNS = {
    "cpm_ant": "pretrain",
    "gpt": "pretrain",
    "gpt_classify": "finetune",
    "gpt_lora": "finetune",
    "cpm_ant_nlg": "finetune",
}
TIMES = ("seconds", "tokens_per_second", "memory_bytes")
TRAIN = """\
train: {steps: 6, save_every: 3, eval_every: 3, keep: 5, precision: fp32, warmup_steps: 2,
  tokens_per_step: 192, tokens_per_batch: 96, lr: 1.0e-2, adam_eps: 1.0e-4}
"""
DATA = "data: {{train: [{0}.train.{1}], valid: [{0}.valid.{1}], cache: cache}}\n"
CLASSES = "init_from: gpt/checkpoints/step-00000003\n" + DATA.format("classes", "tsv")
RECIPES = {
    "cpm_ant": """\
model: {family: cpm_ant, hidden_size: 16, num_layers: 2, num_heads: 2, intermediate_size: 32,
  prompt_types: 3, prompt_length: 4, segment_types: 3, num_buckets: 8, max_distance: 16,
  dropout: 0.1}
tokenizer: {kind: cpm_ant, vocab_size: 120, min_frequency: 1}
objective: {name: cpm_ant, max_length: 32, min_piece: 4}
"""
    + DATA.format("zh", "jsonl"),
    "gpt": """\
model: {family: gpt, hidden_size: 8, num_layers: 2, num_heads: 2, max_positions: 32,
  embedding_dropout: 0.1, attention_dropout: 0.1, residual_dropout: 0.1}
tokenizer: {kind: bpe, vocab_size: 280}
objective: {name: clm, max_length: 32}
"""
    + DATA.format("en", "txt"),
    "gpt_classify": CLASSES + "objective: {name: classification, max_length: 32}\n",
    "gpt_lora": CLASSES
    + "objective: {name: classification, max_length: 32}\nlora: {rank: 2, dropout: 0.1}\n",
    "cpm_ant_nlg": """\
init_from: cpm_ant/checkpoints/step-00000003
objective: {name: cpm_ant_nlg, max_length: 32}
"""
    + DATA.format("nlg", "jsonl"),
}
WHO = ("老师", "孩子", "农民", "医生", "小狗", "燕子", "爷爷", "姐姐")
WHERE = ("在河边", "在院子里", "在山上", "在学校", "在桥下", "在田里")
DOES = ("唱歌", "种菜", "看书", "等朋友", "数星星", "晒太阳", "讲故事", "喝水")
THINGS = ("kettle", "ladder", "garden", "letter", "bridge", "jacket", "window", "basket")
GOOD, BAD = ("bright", "warm", "neat", "lovely"), ("broken", "cold", "bent", "awful")
# What the command line is, but for its end: half a line of metrics.jsonl, and no goodbye.
KILLED = """\
import json, os, runpy, signal
from nlpkit.train.log import Metrics
whole = Metrics.write
def write(self, record):
    if record["step"] == 5:
        self._file.write(json.dumps(record).encode()[:40])
        os.kill(os.getpid(), signal.SIGKILL)
    whole(self, record)
Metrics.write = write
runpy.run_module("nlpkit", run_name="__main__")
"""


def nlpkit(folder: Path, *arguments: str, killed: bool = False) -> str:
    """Run the command line in `folder` on one thread of the CPU; return its stdout."""
    start = ["-c", KILLED] if killed else ["-m", "nlpkit"]
    done = subprocess.run(
        [sys.executable, *start, *arguments, "--device", "cpu"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != (-9 if killed else 0):
        raise SystemExit(f"{arguments}: ended with {done.returncode}\n{done.stderr}")
    return done.stdout


def write_inputs(folder: Path) -> None:
    """Write texts, rows and recipes of all runs."""
    draw = random.Random(1)
    zh, en, classes, nlg = [], [], ["text\tlabel"], []
    for _ in range(68):
        clauses = (draw.choice(WHO) + draw.choice(WHERE) + draw.choice(DOES) for _ in range(2))
        zh.append(json.dumps({"text": "，".join(clauses) + "。"}, ensure_ascii=False))
        first, second = draw.sample(THINGS, 2)
        en.append(f"the {first} is {draw.choice(GOOD)} but the {second} is {draw.choice(BAD)}")
    for _ in range(48):
        label, words = draw.choice((("good", GOOD), ("bad", BAD)))
        classes.append(f"our {draw.choice(THINGS)} is {draw.choice(words)} today\t{label}")
    for who, where in draw.sample(list(itertools.product(WHO, WHERE)), 38):
        row = {"input": f"{who}{where}{draw.choice(DOES)}。", "target": who}
        nlg.append(json.dumps(row, ensure_ascii=False))
    for name, ending, lines, header, count in (
        ("zh", "jsonl", zh, 0, 60),
        ("en", "txt", en, 0, 60),
        ("classes", "tsv", classes, 1, 40),
        ("nlg", "jsonl", nlg, 0, 30),
    ):
        end = header + count
        for part, chosen in (("train", lines[:end]), ("valid", lines[:header] + lines[end:])):
            path = folder / f"{name}.{part}.{ending}"
            path.write_text("\n".join(chosen) + "\n", encoding="utf-8")
    for name, text in RECIPES.items():
        text = f"name: {name}\nout: {name}\n{text}{TRAIN}"
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def outcome(run: Path) -> dict[str, Any]:
    """Return the records of a run of 6 steps, and what its last checkpoint holds."""
    records = []
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        records.append({k: v for k, v in json.loads(line).items() if k not in TIMES})
    files = {}
    for path in sorted((run / "checkpoints/step-00000006").glob("*.safetensors")):
        tensors = {name: t.astype(np.float64) for name, t in sorted(load_file(path).items())}
        sums = {
            n: [round(float(x), 9) for x in (t.sum(), abs(t).sum())] for n, t in tensors.items()
        }
        files[path.name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "sums": sums}
    return {"metrics": records, "files": files}


def machine() -> dict[str, Any]:
    """Return what the bits of a run depend on, as far as it is known."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    wanted = ("model name", "cpu family", "model", "stepping", "flags")
    cpu = [line for line in lines if line.split("\t")[0].strip() in wanted]
    return {
        "cpu": next((line.split(": ")[1] for line in cpu if "model name" in line), ""),
        "cpu_sha256": hashlib.sha256("\n".join(cpu).encode()).hexdigest(),
        "platform": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
    }


def dropout_sha256() -> str:
    """Return a hash of the masks that torch draws here; another build may draw others."""
    torch.manual_seed(1)
    masks = [torch.nn.functional.dropout(torch.ones(size), 0.1) > 0 for size in (7, 96, 3000)]
    return hashlib.sha256(torch.cat(masks).numpy().tobytes()).hexdigest()


def move_base(run: Path, base: str) -> None:
    """Name the base of adapters from where they lie; f0ab896 wrote an absolute path."""
    for place in run.glob("checkpoints/step-*"):
        settings, manifest = place / "adapter_config.json", place / "manifest.json"
        content = json.loads(settings.read_text()) | {"base_model_name_or_path": base}
        settings.write_text(json.dumps(content, indent=2) + "\n")
        known, data = json.loads(manifest.read_text()), settings.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        known["files"][settings.name] = {"bytes": len(data), "sha256": digest}
        manifest.write_text(json.dumps(known, indent=1))


def main() -> None:
    """Make the runs in the directory that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    out = parser.parse_args().directory.absolute()
    out.mkdir(parents=True)
    expected: dict[str, Any] = {"machine": machine(), "dropout_sha256": dropout_sha256()}
    expected["runs"] = {}
    write_inputs(out)
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(shutil.copytree(out, Path(temporary) / "whole"))
        for name, verb in RUNS.items():
            nlpkit(whole, verb, f"{name}.yaml")
            nlpkit(out, verb, f"{name}.yaml", killed=True)
            (out / name / "lock").unlink()
            opened = json.loads(nlpkit(out, "eval", f"{name}/checkpoints/step-00000003", "--json"))
            del opened["checkpoint"]
            expected["runs"][name] = {"verb": verb, "opened": opened} | outcome(whole / name)
    move_base(out / "gpt_lora", "../../../gpt/checkpoints/step-00000003")
    shutil.rmtree(out / "cache")
    text = json.dumps(expected, ensure_ascii=False).replace("}, ", "},\n")
    (out / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
