"""Tiny runs of every family, and of tasks that begin with them."""

import json
from pathlib import Path

from tests import _tiny

DATA = Path(__file__).resolve().parents[1] / "data"
SIZES = "hidden_size: 32, num_layers: 1, num_heads: 4"
POSITIONS = f"{SIZES}, max_positions: 128"
WIDE = f"{POSITIONS}, intermediate_size: 48"
BPE, UNIGRAM = "{kind: bpe, vocab_size: 500}", "{kind: unigram, vocab_size: 500}"
WORDPIECE = "{kind: wordpiece, vocab_size: 400}"
# Of each family: the model, the tokenizer, the objective of its first run.
START = {
    "gpt2": (POSITIONS, BPE, "{name: clm, max_length: 64}"),
    "gpt_neo": (WIDE, BPE, "{name: clm, max_length: 64}"),
    "gpt_neox": (WIDE, BPE, "{name: clm, max_length: 64}"),
    "llama": (f"{WIDE}, num_key_heads: 2", BPE, "{name: clm, max_length: 64}"),
    "gpt": (POSITIONS, "{kind: gpt1_bpe, vocab_size: 500}", "{name: clm, max_length: 64}"),
    "bert": (WIDE, WORDPIECE, "[{name: nsp, max_length: 64}, {name: mlm}]"),
    "distilbert": (WIDE, WORDPIECE, "{name: mlm, max_length: 64}"),
    "roberta": (WIDE, BPE, "{name: mlm, max_length: 64}"),
    "modernbert": (WIDE, WORDPIECE, "{name: mlm, max_length: 64}"),
    "modernbert_decoder": (WIDE, BPE, "{name: clm, max_length: 64}"),
    "albert": (f"{WIDE}, embedding_size: 16", UNIGRAM, "{name: wwm, max_length: 64}"),
    "deberta_v2": (WIDE, WORDPIECE, "{name: wwm, max_length: 64}"),
    "electra": (WIDE, WORDPIECE, "{name: rtd, max_length: 64}"),
    "xlm": (POSITIONS, WORDPIECE, "{name: mlm, max_length: 64}"),
    "xlnet": (f"{SIZES}, intermediate_size: 48", UNIGRAM, "{name: plm, max_length: 64}"),
    "t5": (
        f"{SIZES}, head_dim: 8, intermediate_size: 48",
        "{kind: unigram, vocab_size: 700}",
        "{name: span_corruption, max_length: 64}",
    ),
}
TRAIN = """\
train: {steps: STEPS, tokens_per_step: 1024, tokens_per_batch: 512, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: null, save_every: 50, keep: 1}
"""
ROWS = 24


class Runs:
    """Tiny runs in a folder, made when they are first asked for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.made: dict[tuple[str, str], Path] = {}
        for part in ("train", "valid"):
            stories = (DATA / f"en/{part}/stories.jsonl").read_text("utf-8").splitlines()[:100]
            texts = [json.loads(line)["text"].replace("\n", " ") for line in stories]
            (folder / f"{part}.txt").write_text("\n".join(texts) + "\n", "utf-8")
            rows = [{"source": text[:30], "target": text[:3]} for text in texts[:40]]
            lines = [json.dumps(row) + "\n" for row in rows]
            (folder / f"copy.{part}.jsonl").write_text("".join(lines), "utf-8")
            pairs = zip(texts[:20], texts[20:40], strict=True)
            near = [
                {"text_a": one[:30], "text_b": other[:30], "label": float(number)}
                for number, (one, other) in enumerate(pairs)
            ]
            lines = [json.dumps(row) + "\n" for row in near]
            (folder / f"near.{part}.jsonl").write_text("".join(lines), "utf-8")
            for name in ("classify/{}.tsv", "entail/{}.csv", "choice/{}.jsonl"):
                lines = (DATA / "en" / name.format(part)).read_text("utf-8").splitlines(True)
                kept = "".join(lines[: ROWS + 1])
                (folder / name.replace("/{}", f".{part}")).write_text(kept, "utf-8")
            blocks = (DATA / f"spans/en_tag.{part}.conll").read_text("utf-8").split("\n\n")[:ROWS]
            (folder / f"tag.{part}.conll").write_text("\n\n".join(blocks) + "\n", "utf-8")

    def first(self, family: str, objective: str = "") -> Path:
        """Return the checkpoint of a family's first run."""
        sizes, tokenizer, own = START[family]
        sections = f"model: {{family: {family}, {sizes}}}\ntokenizer: {tokenizer}\n"
        return self._run(family, "", sections, "{}.txt", objective or own, 4)

    def tuned(self, family: str, name: str, files: str, objective: str, steps: int = 8) -> Path:
        """Return the checkpoint of a task that begins with the first run."""
        start = f"init_from: {self.first(family)}\n"
        return self._run(family, name, start, files, objective, steps)

    def _run(self, family, name, sections, files, objective, steps) -> Path:
        key = (family, name or objective)
        if key not in self.made:
            path = self.folder / f"{family}-{len(self.made)}.yaml"
            train, valid = (self.folder / files.format(part) for part in ("train", "valid"))
            path.write_text(
                f"name: {family}\n{sections}data: {{train: [{train}], valid: [{valid}]}}\n"
                f"objective: {objective}\n{TRAIN.replace('STEPS', str(steps))}",
                encoding="utf-8",
            )
            self.made[key] = _tiny.pretrain(path, path.with_suffix(""))
        return self.made[key]
