"""Families of one's own in a folder, and the command line as the script `nlpkit` starts it."""

import subprocess
import sys
from pathlib import Path

from tests import _processes

# GPT-1 with a scale of its last states and a bias of its logits, under a name of its own.
OWN_LIGHT = """\
from nlpkit.config import FrozenConfig
from nlpkit.models.gpt import Config as Gpt, DEFAULT_OBJECTIVE


class Scale(FrozenConfig):
    start: float = 1.0
    places: list[str] = ["end"]


class Config(Gpt):
    scale: Scale = Scale()


MODEL_TYPE = "mylab-own"
VOCABULARY = ("token_embedding", "token_bias")
"""
OWN_MODEL = """\
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from nlpkit.models.gpt.model import *
from nlpkit.models.gpt.model import FORMAT as GPT, Model as Gpt


class Model(Gpt):
    def __init__(self, config, vocab_size, backend="auto"):
        super().__init__(config, vocab_size, backend)
        self.scale = nn.Parameter(torch.full((config.hidden_size,), config.scale.start))
        self.token_bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, *inputs, **named):
        return super().forward(*inputs, **named) * self.scale

    def logits(self, hidden):
        return F.linear(hidden, self.token_embedding, self.token_bias)

    def token_loss(self, hidden, index, targets, *weights):
        each = F.cross_entropy(self.logits(hidden[index]).float(), targets, reduction="none")
        total = each @ weights[0] if weights and weights[0] is not None else each.sum()
        return total, each.detach()


FORMAT = replace(
    GPT,
    architecture="OwnModel",
    sizes={**GPT.sizes, "scale": "scale"},
    defaults={**GPT.defaults, "scale": {"start": 1.5}},
    names={**GPT.names, "scale": "transformer.scale", "token_bias": "lm_head.bias"},
)
"""
# One that computes something else and still calls itself openai-gpt.
TWIN_LIGHT = "from nlpkit.models.gpt import Config, DEFAULT_OBJECTIVE, MODEL_TYPE, VOCABULARY\n"
TWIN_MODEL = """\
from nlpkit.models.gpt.model import *
from nlpkit.models.gpt.model import Model as Gpt


class Model(Gpt):
    def forward(self, *inputs, **named):
        return super().forward(*inputs, **named) * 2
"""
OBJECTIVE = """\
from nlpkit.objectives.clm import Config, Objective as Base


class Objective(Base):
    def example(self, ids, rng):
        return super().example(ids[::-1].copy(), rng)  # right to left
"""
# Characters as tokens, in a file that no shipped kind has.
TOKENIZER = '''\
import hashlib, json
from pathlib import Path

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.errors import FileError


class Config(FrozenConfig):
    """No settings."""


class Tokenizer:
    files = ("letters.json",)
    bos_id, eos_id, unk_id, pad_id = 0, 0, 1, None

    def __init__(self, letters):
        self.letters = letters
        self.vocab_size = 2 + len(letters)

    @classmethod
    def train(cls, texts, config):
        return cls(sorted({letter for text in texts for letter in text}))

    @classmethod
    def load(cls, path):
        try:
            return cls(json.loads((Path(path) / "letters.json").read_text()))
        except OSError as error:
            raise FileError(f"{path}: no letters.json") from error

    def save(self, directory):
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / "letters.json").write_text(json.dumps(self.letters))

    def encode(self, text):
        return [2 + self.letters.index(c) if c in self.letters else 1 for c in text]

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        return "".join(self.letters[i - 2] for i in ids if i > 1)

    def token(self, token_id):
        return ["<s>", "<unk>", *self.letters][token_id]

    def token_characters(self):
        return np.array([0, 1] + [1] * len(self.letters))

    def fingerprint(self):
        return hashlib.sha256("".join(self.letters).encode()).hexdigest()
'''
RECIPE = """\
name: tiny
model: {family: FAMILY, hidden_size: 32, num_layers: 2, num_heads: 4, max_positions: 64MORE}
tokenizer: {kind: cpm_ant, vocab_size: 120, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: OBJECTIVE, max_length: 64}
train: {steps: 4, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 2, save_every: 2, keep: 3}
"""


def package(folder: Path) -> Path:
    """Write the package `mylab` with two families and an objective into `folder`."""
    sources = {
        "__init__.py": "",
        "own/__init__.py": OWN_LIGHT,
        "own/model.py": OWN_MODEL,
        "twin/__init__.py": TWIN_LIGHT,
        "twin/model.py": TWIN_MODEL,
        "backwards.py": OBJECTIVE,
        "letters.py": TOKENIZER,
    }
    for name, text in sources.items():
        path = folder / "mylab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def recipe(family: str, objective: str = "clm") -> str:
    """Return the recipe of a small run; `_tiny.write` puts the corpus beside it."""
    text = RECIPE.replace("FAMILY", family).replace("OBJECTIVE", objective)
    return text.replace("MORE", ", scale: {start: 1.5}" if family == "mylab.own" else "")


def script(folder: Path, *arguments: str | Path, **environment: str) -> tuple[int, str, str]:
    """Run the command line in `folder` as the installed script does; return code, stdout, stderr.

    Python puts the script's directory in front of the path, not the working directory.
    """
    done = _processes.command(*arguments, cwd=folder, env=environment, script=True)
    return done.returncode, done.stdout, done.stderr


def installed_script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed script itself in `folder`."""
    program = Path(sys.executable).with_name("nlpkit")
    return subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
