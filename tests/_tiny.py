"""A recipe and a corpus so small that a whole run takes a second."""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nlpkit import recipe
from nlpkit.checkpoints import changes, files
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.errors import NlpkitError
from nlpkit.train.log import QUIET, TIME_KEYS, Log
from nlpkit.train.signals import StopFlag
from tests import _processes

command = _processes.command

RECIPE = """\
name: tiny
model: {family: cpm_ant, hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48,
  prompt_types: 4, prompt_length: 4, segment_types: 4, num_buckets: 32, max_distance: 64,
  dropout: 0.1}
tokenizer: {kind: cpm_ant, vocab_size: 200, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: cpm_ant, max_length: 64, min_piece: 4}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""
WORDS = "天地人山水花鸟鱼虫春夏秋冬日月星云风雨雪来去看见说走坐红绿蓝白黑大小多少上下左右前后"


def write(folder: Path, *, documents: int = 120, text: str = RECIPE) -> Path:
    """Write recipe and corpus into `folder` (made if need be); return the recipe's path."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for name, count in (("train.txt", documents), ("valid.txt", 12)):
        lines = ["".join(draw.choices(WORDS, k=draw.randint(6, 90))) for _ in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = folder / "tiny.yaml"
    text = text.replace("TRAIN", str(folder / "train.txt"))
    path.write_text(text.replace("VALID", str(folder / "valid.txt")), encoding="utf-8")
    return path


class StopAfter(StopFlag):
    """Asks to stop once the flag was read so many times, as a signal at a random moment would."""

    def __init__(self, reads: int):
        super().__init__()
        self.reads = reads

    @property
    def raised(self) -> bool:
        self.reads -= 1
        return self.reads < 0


class StopAtStep(StopFlag):
    """Asks to stop once `metrics.jsonl` of a run has a record of a step."""

    def __init__(self, run: Path, step: int):
        super().__init__()
        self.file, self.record = run / "metrics.jsonl", f'{{"step": {step},'

    @property
    def raised(self) -> bool:
        return self.file.exists() and self.record in self.file.read_text(encoding="utf-8")


def pretrain(
    path: Path,
    out: Path,
    *sets: str,
    stop: StopFlag | None = None,
    allow_change: bool = False,
    resume: str = "auto",
    verbosity: int = QUIET,
    device: str = "cpu",
) -> Path:
    """Run the recipe in this process; return the final checkpoint."""
    from accelerate.state import AcceleratorState

    from nlpkit.runs import pretrain

    AcceleratorState._reset_state(reset_partial_state=True)
    resolved = recipe.load(str(path), [*sets, f"out={json.dumps(str(out))}"])
    directory = RunDirectory(out)
    with directory.locked():
        changes.check_changes(directory, resolved, allow_change)
        return pretrain.pretrain(
            resolved,
            directory,
            device=device,
            resume=resume,
            log=Log(verbosity),
            stop=stop or StopFlag(),
        )


def pretrain_with_stops(
    path: Path, out: Path, reads: list[int], *sets: str, device: str = "cpu"
) -> Path:
    """Run the recipe, stopped after so many looks at the flag, again and again, then to its end."""
    for count in reads:
        try:
            pretrain(path, out, *sets, stop=StopAfter(count), device=device)
        except NlpkitError:
            continue
    return pretrain(path, out, *sets, device=device)


def reseal(checkpoint: Path, name: str, text: str) -> None:
    """Put `text` into a file of a checkpoint, with its size and hash in the manifest."""
    (checkpoint / name).write_text(text, encoding="utf-8")
    manifest = json.loads((checkpoint / files.MANIFEST).read_text("utf-8"))
    raw = text.encode()
    manifest["files"][name] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (checkpoint / files.MANIFEST).write_text(json.dumps(manifest))


def metrics(out: Path) -> list[dict[str, Any]]:
    """Return the records of `metrics.jsonl` without what differs from run to run."""
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [{k: v for k, v in record.items() if k not in TIME_KEYS} for record in records]


def figures_of_both(one: Path, two: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the figures of each step and evaluation of two runs; they must have the same number."""
    for ours, theirs in zip(metrics(one), metrics(two), strict=True):
        yield ours.get("held_out", ours), theirs.get("held_out", theirs)
