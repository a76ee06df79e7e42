"""A recipe whose objective reads no text has no tokenizer: checked, built, trained, saved."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from nlpkit import recipe
from nlpkit.checkpoints import integrity
from nlpkit.data.store import Callbacks
from nlpkit.errors import RecipeError, UsageError
from nlpkit.plan import format_batch, make
from nlpkit.runs import build
from nlpkit.runs.build import model_part
from nlpkit.train.log import NORMAL, QUIET, Log
from tests import _tiny

OBJECTIVE = '''
import numpy as np
from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Field, Loss, Term
from nlpkit.contracts.task import Item, Task

class Config(FrozenConfig):
    """Nothing to set."""

class Objective(Task):
    """The class of an image: a row of pixels is a token."""

    reads_text = False
    columns = ("image", "label")
    parts = ("pixels",)
    inputs = ("pixels",)
    needs = ()
    fields = {"pixels": Field(np.float32), "label": Field(np.int64, per="sequence")}

    def texts(self, row):
        return ()

    def item(self, row, ids):
        image = row.value("image")
        return Item((image,), row.value("label"), len(image))

    def example(self, item, rng):
        return {"pixels": item.parts[0].astype(np.float32) / 255, "label": np.array([item.label])}

    def num_targets(self, batch):
        return {"pixels": len(batch["label"])}

    def loss(self, model, hidden, batch):
        import torch
        means = torch.stack([part.mean(0) for part in hidden.split(list(batch.lengths))])
        label = batch.fields["label"]
        return Loss({"pixels": Term(
            torch.nn.functional.cross_entropy(means, label, reduction="sum"), len(label))})
'''
FAMILY = '''
from nlpkit.models.config import ModelConfig

MODEL_TYPE = "pixels"
VOCABULARY = ()

class Config(ModelConfig):
    """Nothing to set."""

    inputs = ("pixels",)
'''
MODEL = """
import torch

from imagelab.rows import Config
from nlpkit.models.formats.hf_format import own_format

FORMAT = own_format(Config, "layer")
LORA_TARGETS = ("layer",)

class Model(torch.nn.Module):
    def __init__(self, config, vocab_size, backend):
        super().__init__()
        assert vocab_size == 0
        self.layer = torch.nn.Linear(4, 10)

    def forward(self, lengths, pixels):
        return self.layer(pixels)
"""
RECIPE = """\
name: digits
model: {family: imagelab.rows}
data: {train: {files: [FOLDER/x-images-idx3-ubyte, FOLDER/x-labels-idx1-ubyte]},
  valid_fraction: 0.2}
objective: {name: imagelab.pixels}
train: {steps: 6, tokens_per_step: 32, tokens_per_batch: 16, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 3, save_every: 3}
"""
TOKENIZER = "tokenizer: {kind: bpe, vocab_size: 300}\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the recipe of an image objective and family of one's own, data written."""
    package = tmp_path / "imagelab"
    (package / "rows").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "pixels.py").write_text(OBJECTIVE, encoding="utf-8")
    (package / "rows/__init__.py").write_text(FAMILY, encoding="utf-8")
    (package / "rows/model.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (60, 4, 4), np.uint8)
    labels = draw.integers(0, 10, 60, np.uint8)
    header = struct.pack(">IIII", 2051, *images.shape)
    (tmp_path / "x-images-idx3-ubyte").write_bytes(header + images.tobytes())
    header = struct.pack(">II", 2049, len(labels))
    (tmp_path / "x-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    place = tmp_path / "digits.yaml"
    place.write_text(RECIPE.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    return place


def test_recipe_without_text_needs_no_tokenizer(path: Path) -> None:
    resolved = recipe.load(str(path))
    assert resolved.recipe.tokenizer is None
    again = recipe.parse(resolved.to_yaml().encode(), "again", path.parent)
    assert again.recipe == resolved.recipe


def test_recipe_without_text_refuses_a_tokenizer_with_the_reason(path: Path) -> None:
    path.write_text(path.read_text() + TOKENIZER)
    with pytest.raises(RecipeError) as caught:
        recipe.load(str(path))
    assert str(caught.value).endswith(
        "digits.yaml:8:12: tokenizer: objective imagelab.pixels reads no text: remove the section "
        "tokenizer"
    )


def test_recipe_with_text_still_needs_one(path: Path) -> None:
    text = path.read_text().replace("imagelab.pixels", "mlm")
    path.write_text(text.replace("imagelab.rows", "bert"))
    with pytest.raises(RecipeError, match=r"1:1: tokenizer: missing \(kind: NAME to train one"):
        recipe.load(str(path))


def test_data_without_text_has_no_tokenizer(path: Path, tmp_path: Path) -> None:
    resolved = recipe.load(str(path))
    part = model_part(resolved)
    data = build.build_data(resolved, part, tmp_path / "run", Callbacks())
    assert data.tokenizer is None
    assert data.vocab_size == 0
    assert len(data.train) + len(data.valid) == 60
    assert 0 < len(data.valid) < 30
    assert data.train.tokens == 4 * len(data.train)  # a row of pixels each
    before = data.fingerprint
    labels = tmp_path / "x-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x09")
    assert build.build_data(resolved, part, tmp_path / "run", Callbacks()).fingerprint != before


def test_run_without_text_trains_and_saves_no_tokenizer(path: Path, tmp_path: Path, capsys) -> None:
    place = _tiny.pretrain(path, tmp_path / "run", verbosity=NORMAL)
    assert re.search(r"left out: \d+ rows held out$", capsys.readouterr().err, re.MULTILINE)
    assert integrity.find_corruption(place) is None
    assert not (tmp_path / "run/tokenizer").exists()
    assert not any("token" in file.name for file in place.iterdir())
    records = _tiny.metrics(tmp_path / "run")
    assert [r["step"] for r in records if "loss" in r] == [1, 2, 3, 4, 5, 6]


def test_plan_of_a_batch_without_tokens_says_why_not(path: Path, tmp_path: Path) -> None:
    plan = make(recipe.load(str(path)), tmp_path / "run", "cpu", Log(QUIET))
    assert plan.parameters == 4 * 10 + 10
    with pytest.raises(UsageError, match=r"objective imagelab.pixels reads no text"):
        list(format_batch(plan))
