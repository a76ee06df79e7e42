"""A family and an objective of a user's own that read images: no tokenizer, no vocabulary.

Oracle: transformers' ViTForImageClassification with the same weights.
"""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from nlpkit import recipe
from nlpkit.errors import RecipeError, UsageError
from nlpkit.objectives._task import Item
from nlpkit.plan import describe, draw_mask, make
from nlpkit.runs.convert import convert
from nlpkit.runs.opened import open_checkpoint
from nlpkit.train.log import QUIET, Log
from tests import _tiny
from tests.conftest import REAL_DATA
from tests.parts.image_classes import Config, Objective

RECIPE = """\
name: digits
model: {family: tests.parts.patches, image_size: 8, patch_size: 4, hidden_size: 16, dropout: 0.1}
data: {train: {files: [FOLDER/a-images-idx3-ubyte, FOLDER/a-labels-idx1-ubyte]},
  valid: {files: [FOLDER/b-images-idx3-ubyte, FOLDER/b-labels-idx1-ubyte]}}
objective: {name: tests.parts.image_classes}
train: {steps: 30, tokens_per_step: 100, tokens_per_batch: 50, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 10, save_every: 10,
  schedule: constant}
"""
GPT = "family: gpt, hidden_size: 16, num_heads: 2"


def _idx(folder: Path, name: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Write images and labels as MNIST has them."""
    header = struct.pack(">IIII", 2051, *images.shape)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    header = struct.pack(">II", 2049, len(labels))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def _images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise with one bright quarter, and which quarter that is."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 60, (count, 8, 8), np.uint8)
    labels = draw.integers(0, 4, count).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        top, left = 4 * (label // 2), 4 * (label % 2)
        image[top : top + 4, left : left + 4] += 150
    return images, labels


def _write(folder: Path) -> Path:
    _idx(folder, "a", *_images(80, 0))
    _idx(folder, "b", *_images(30, 1))
    path = folder / "digits.yaml"
    path.write_text(RECIPE.replace("FOLDER", str(folder)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of the recipe, whole."""
    folder = tmp_path_factory.mktemp("images")
    _tiny.pretrain(_write(folder), folder / "whole")
    return folder


@pytest.mark.parametrize(("side", "patch", "channels"), [(8, 4, 1), (6, 2, 3)])
def test_logits_are_those_of_transformers(tmp_path, side, patch, channels) -> None:
    theirs = ViTForImageClassification(
        ViTConfig(
            image_size=side, patch_size=patch, num_channels=channels, hidden_size=16,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, num_labels=3,
            initializer_range=0.3,
        )
    ).eval()  # fmt: skip
    torch.nn.init.normal_(theirs.vit.embeddings.cls_token)
    torch.nn.init.normal_(theirs.vit.embeddings.position_embeddings)
    theirs.save_pretrained(tmp_path)
    opened = open_checkpoint(tmp_path, device="cpu", family="tests.parts.patches")
    shape = (2, side, side, channels) if channels > 1 else (2, side, side)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    objective = Objective(Config(labels=["a", "b", "c"]), None, opened.part.config)
    rows = [_Row({"image": image, "label": "b"}) for image in images]
    items = [objective.item(row, []) for row in rows]
    made = [objective.example(item, np.random.default_rng(0))["patches"] for item in items]
    pixels = torch.from_numpy(images.reshape(2, side, side, channels)).permute(0, 3, 1, 2)
    lengths = [len(patches) for patches in made]
    with torch.no_grad():
        hidden = opened.model(lengths, torch.from_numpy(np.concatenate(made)))
        expected = theirs(pixels / 255 * 2 - 1).logits
        logits = theirs.classifier(opened.model.summary(hidden, lengths))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


class _Row:
    """A row without a file."""

    def __init__(self, values: dict):
        self.values = values

    def value(self, column: str):
        return self.values[column]

    array = value


def test_run_resumes_bit_for_bit_and_learns(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "digits.yaml", run / "broken", [13, 30])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    ours, whole = (
        load_file(p / "model.safetensors") for p in (last, run / "whole/checkpoints/latest")
    )
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    scores = [r["held_out"]["metrics"] for r in _tiny.metrics(run / "whole") if "held_out" in r]
    assert scores[-1]["accuracy"] == 1.0  # a bright quarter is easy to see


@pytest.mark.slow
def test_eval_scores_predictions_of_the_run_and_of_two_files(run: Path) -> None:
    answers = run / "answers.jsonl"
    done = _tiny.command("eval", run / "whole", "--json", "--predictions", answers)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    labels = (run / "b-labels-idx1-ubyte").read_bytes()[8:]
    assert [row["target"] for row in rows] == [str(label) for label in labels]
    right = sum(row["prediction"] == row["target"] for row in rows)
    assert figures["metrics"] == {"accuracy": right / 30}
    files = [f"--data={run}/a-{name}" for name in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    done = _tiny.command("eval", run / "whole", "--json", *files)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 80


def test_checkpoint_without_vocabulary_is_opened_and_converted(run: Path, tmp_path: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    assert opened.tokenizer is None
    assert opened.objective.config.labels == ["0", "1", "2", "3"]
    convert(run / "whole", tmp_path / "out")
    again = open_checkpoint(tmp_path / "out", device="cpu")
    ours, written = opened.model.state_dict(), again.model.state_dict()
    assert ours.keys() == written.keys()
    assert all(torch.equal(ours[name], written[name]) for name in ours)
    # transformers opens it, too, and computes the same states.
    theirs = ViTModel.from_pretrained(tmp_path / "out", add_pooling_layer=False).eval()
    pixels = torch.rand(1, 1, 8, 8) * 2 - 1
    blank = torch.zeros(1, 16)
    patches = pixels[0, 0].reshape(2, 4, 2, 4).transpose(1, 2).reshape(4, 16)
    with torch.no_grad():
        expected = theirs(pixels).last_hidden_state[0]
        found = again.model([5], torch.cat([blank, patches]))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(UsageError, match=r"--vocab: family tests.parts.patches has no vocabulary"):
        convert(run / "whole", tmp_path / "other", vocabulary=tmp_path)


def test_run_goes_on_from_a_checkpoint_without_vocabulary(run: Path, tmp_path: Path) -> None:
    start = f'init_from="{run}/whole/checkpoints/latest"'
    _tiny.pretrain(run / "digits.yaml", tmp_path / "more", start, "train.steps=2")
    losses = [r["loss"] for r in _tiny.metrics(tmp_path / "more") if "loss" in r]
    assert losses[0] < 0.7  # log(4) is 1.39: it begins with what was learned


def test_plan_of_images(run: Path, tmp_path: Path) -> None:
    plan = make(recipe.load(str(run / "digits.yaml")), tmp_path / "run", "cpu", Log(QUIET))
    described = describe(plan)
    assert described["data"]["vocabulary"] == 0
    assert described["packing"]["share_of_tokens_with_loss"] == 0.2  # 4 patches, 1 class token
    assert described["model"]["parameters"] == sum(
        p.numel() for p in open_checkpoint(run / "whole", device="cpu").model.parameters()
    )
    with pytest.raises(UsageError, match=r"shown by its tokens, and .*image_classes reads no text"):
        draw_mask(plan, tmp_path / "mask.png")


def test_folders_of_png_files_are_trained_on(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number, (pixels, label) in enumerate(zip(*_images(24, 2), strict=True)):
        folder = tmp_path / "pictures" / f"quarter{label}"
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(folder / f"{number}.png")
    data = f'data={{train: ["{tmp_path}/pictures"], format: images, valid_fraction: 0.2}}'
    place = _tiny.pretrain(_write(tmp_path), tmp_path / "run", data, "train.steps=2")
    notes = json.loads((place / "nlpkit.json").read_text())
    assert notes["objective"]["labels"] == [f"quarter{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "family: tests.parts.patches, image_size: 8, patch_size: 4, hidden_size: 16, ",
            f"{GPT}, residual_",
            r"5:19: objective\.name: .*image_classes needs model\.image_size, model\.patch_size",
        ),
        ("{name: tests.parts.image_classes}", "{name: classification}\ntokenizer: {kind: bpe}",
         r"5:19: objective\.name: classification needs has_vocabulary"),
        ("patch_size: 4", "patch_size: 3", "patch_size: 3 does not divide image_size"),
        ("image_classes}", "image_classes}\nattention: {kind: cpm_ant}",
         r"6:19: attention\.kind: cpm_ant does not fit the model: it reads context"),
    ],
)  # fmt: skip
def test_recipe_that_does_not_fit_is_named_with_its_line(tmp_path, old, new, said) -> None:
    path = _write(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(path))


class _Blind(Objective):
    """One that needs nothing of the model."""

    needs = ()


@pytest.mark.parametrize(
    ("family", "reads", "said"),
    [
        (GPT, False, "x reads no text, and family gpt has a vocabulary"),
        ("family: tests.parts.patches", True,
         "x reads text, and family tests.parts.patches has no vocabulary"),
    ],
)  # fmt: skip
def test_text_and_vocabulary_go_together(tmp_path, monkeypatch, family, reads, said) -> None:
    module = type("x", (), {"Config": Config, "Objective": _Blind})
    real = recipe.registry.load
    monkeypatch.setattr(
        recipe.registry, "load", lambda folder, name: module if name == "x" else real(folder, name)
    )
    monkeypatch.setattr(_Blind, "reads_text", reads)
    monkeypatch.setattr(_Blind, "inputs", ("input_ids", "patches"))
    text = f"name: a\nmodel: {{{family}}}\ndata: {{train: [a.txt]}}\nobjective: {{name: x}}\n"
    text += "train: {steps: 9, warmup_steps: 1}\n" + ("tokenizer: {kind: bpe}\n" if reads else "")
    with pytest.raises(RecipeError, match=f"4:19: objective.name: {said}"):
        recipe.parse(text.encode(), "a.yaml", tmp_path)


def test_image_of_another_size_is_named_with_its_number(tmp_path: Path) -> None:
    path = _write(tmp_path)
    _idx(tmp_path, "b", np.zeros((3, 4, 4), np.uint8), np.zeros(3, np.uint8))
    with pytest.raises(
        Exception, match=r"b-images-idx3-ubyte:1: an image of 4 x 4; the model reads"
    ):
        _tiny.pretrain(path, tmp_path / "run")


def test_patches_are_cut_row_by_row() -> None:
    config = type("C", (), {"image_size": 4, "patch_size": 2, "channels": 1})
    objective = Objective(Config(labels=["a", "b"]), None, config)
    item = objective.item(
        _Row({"image": np.arange(16, dtype=np.uint8).reshape(4, 4), "label": "b"}), []
    )
    assert isinstance(item, Item)
    assert item.label == 1
    assert item.parts[0].tolist() == [
        [0, 0, 0, 0], [0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]
    ]  # fmt: skip


@pytest.mark.real_data
@pytest.mark.slow
def test_handwritten_digits_are_told_apart(tmp_path: Path) -> None:
    text = RECIPE.replace(
        "{name: tests.parts.image_classes}",
        "{name: tests.parts.image_classes, columns: 64, white: 16, label: '65'}",
    )
    start, end = text.index("data:"), text.index("objective:")
    names = [REAL_DATA / f"images/optdigits.{part}.csv" for part in ("tra", "tes")]
    text = f"{text[:start]}data: {{train: ['{names[0]}'], valid: ['{names[1]}']}}\n{text[end:]}"
    path = tmp_path / "digits.yaml"
    path.write_text(text, encoding="utf-8")
    sets = ["train.steps=400", "train.tokens_per_step=2176", "train.tokens_per_batch=2176"]
    sets += ["model.patch_size=2", "model.hidden_size=32", "train.lr=0.003", "train.eval_every=400"]
    _tiny.pretrain(path, tmp_path / "run", *sets, "train.save_every=400")
    scores = [r["held_out"]["metrics"] for r in _tiny.metrics(tmp_path / "run") if "held_out" in r]
    assert scores[-1]["accuracy"] > 0.9  # ten classes: 0.1 by chance
