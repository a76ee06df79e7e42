"""Runs of ViT: trained, resumed, evaluated with a confusion table, converted, tuned, proved.

Oracles: transformers' pipeline, scikit-learn's confusion matrix.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from transformers import ViTConfig, ViTForImageClassification

from nlpkit import recipe, selftest
from nlpkit.data.store import Callbacks
from nlpkit.errors import NlpkitError, RecipeError, UsageError
from nlpkit.evaluate import held_out
from nlpkit.evaluate import source as data_of
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.vit.model import Model
from nlpkit.objectives.image_classification import Objective
from nlpkit.plan import describe, draw_mask, make
from nlpkit.runs.convert import Options, convert
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.selftest import batching
from nlpkit.selftest.subject import Bench
from nlpkit.train.log import NORMAL, QUIET, Log
from nlpkit.train.signals import StopFlag
from tests import _images, _tiny
from tests.conftest import REAL_DATA

TASK = """\
name: digits
init_from: RUN
lora: {rank: 2, alpha: 4}
data: {train: {files: [FOLDER/a-images-idx3-ubyte, FOLDER/a-labels-idx1-ubyte]}}
objective: {name: image_classification}
train: {steps: 3, tokens_per_step: 50, lr: 1.0e-2, warmup_steps: 1, precision: fp32, save_every: 3}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A folder with a run of the recipe, whole."""
    folder = tmp_path_factory.mktemp("images")
    _tiny.pretrain(_images.write(folder), folder / "whole", "train.keep=3")
    return folder


def test_log_calls_images_images(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _tiny.pretrain(run / "digits.yaml", run / "told", "train.steps=1", verbosity=NORMAL)
    said = capsys.readouterr().err
    assert re.search(r" images: \d+ rows, \d+ tokens, ", said)
    assert " text: " not in said


def _evaluated(opened: Opened, *files: Path) -> tuple[dict, list[dict]]:
    log = Log(QUIET)
    source = data_of.find_data(opened, [str(file) for file in files], None, log, Callbacks())
    evaluation = held_out.Evaluation(opened, source, 4096, Callbacks())
    return evaluation.evaluate(None, Settings(), log, StopFlag())


@pytest.mark.slow
def test_run_resumes_bit_for_bit_and_learns(run: Path) -> None:
    # Random shifts resume, too.
    sets = ("objective.shift=1", "train.steps=12", "train.eval_every=5", "train.save_every=5")
    _tiny.pretrain(run / "digits.yaml", run / "shifted", *sets)
    last = _tiny.pretrain_with_stops(run / "digits.yaml", run / "broken", [13, 30], *sets)
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "shifted")
    ours, whole = (
        load_file(p / "model.safetensors") for p in (last, run / "shifted/checkpoints/latest")
    )
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    scores = [r["held_out"]["metrics"] for r in _tiny.metrics(run / "whole") if "held_out" in r]
    assert scores[-1]["accuracy"] == 1.0  # a bright quarter is easy to see


def test_pipeline_of_transformers_answers_as_eval(run: Path) -> None:
    pytest.importorskip("PIL")
    from transformers import pipeline

    path = run / "whole/checkpoints/step-00000010"  # not all of its answers are right
    opened = open_checkpoint(path, device="cpu")
    figures, rows = _evaluated(opened)
    pipe = pipeline("image-classification", str(path))
    images, labels = _images.quarters(30, 1)
    losses = []
    for image, label, row in zip(images, labels, rows, strict=True):
        # A path or a picture would be made RGB; this model reads one channel.
        answers = pipe(image[:, :, None], top_k=4)
        assert answers[0]["label"] == row["prediction"]
        (share,) = [each["score"] for each in answers if each["label"] == str(label)]
        losses.append(-np.log(share))
    assert np.mean(losses) == pytest.approx(figures["loss"], abs=1e-5)


def test_pictures_in_folders_are_trained_on_and_answered_by_the_pipeline(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from transformers import pipeline

    for number, (pixels, label) in enumerate(zip(*_images.quarters(24, 2), strict=True)):
        folder = tmp_path / "pictures" / f"quarter{label}"
        folder.mkdir(parents=True, exist_ok=True)
        picture = image.fromarray(pixels)  # grey; half of them are larger
        (picture.resize((12, 12)) if number % 2 else picture).save(folder / f"{number}.png")
    data = f'data={{train: ["{tmp_path}/pictures"], format: images, valid_fraction: 0.2}}'
    sets = [data, "train.steps=2", "model.num_channels=3", "objective.resize=true"]
    place = _tiny.pretrain(_images.write(tmp_path), tmp_path / "run", *sets)
    notes = json.loads((place / "nlpkit.json").read_text())["objective"]
    assert notes["labels"] == [f"quarter{i}" for i in range(4)]
    assert (notes["scale"], notes["mean"], notes["resize"]) == (1 / 255, 0.5, True)
    opened = open_checkpoint(place, device="cpu")
    _, rows = _evaluated(opened)
    assert len(rows) > 2
    _, rows = _evaluated(opened, tmp_path / "pictures/quarter0/*.png")
    pipe = pipeline("image-classification", str(place))
    for path, row in zip(sorted((tmp_path / "pictures/quarter0").iterdir()), rows, strict=True):
        assert pipe(str(path))[0]["label"] == row["prediction"]


def test_classifier_of_transformers_is_evaluated_with_its_own_processor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    names = ["0", "1", "2", "3"]
    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=24, initializer_range=0.5,
        id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)},
    )  # fmt: skip
    theirs = ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    processor = {"do_normalize": False, "do_rescale": True, "rescale_factor": 0.02}
    (tmp_path / "theirs/preprocessor_config.json").write_text(json.dumps(processor))
    images, labels = _images.quarters(20, 3)
    _images.write_idx(tmp_path, "c", images, labels)
    opened = open_checkpoint(tmp_path / "theirs", device="cpu")
    files = [tmp_path / f"c-{name}-ubyte" for name in ("images-idx3", "labels-idx1")]
    figures, rows = _evaluated(opened, *files)
    with torch.no_grad():
        pixels = torch.from_numpy(images[:, None] * 0.02).float()
        expected = theirs(pixels, labels=torch.from_numpy(labels).long())
    assert figures["loss"] == pytest.approx(expected.loss.item(), abs=1e-5)
    assert [row["prediction"] for row in rows] == [names[i] for i in expected.logits.argmax(1)]
    # A run that starts from it keeps its processor, unless the recipe says something else.
    start = f'init_from="{tmp_path}/theirs"'
    path = _images.write(tmp_path)
    path.write_text(path.read_text().partition("model:")[0] + "data:" +
                    path.read_text().partition("data:")[2])  # fmt: skip
    place = _tiny.pretrain(path, tmp_path / "run", start, "train.steps=1", "objective.std=0.25")
    written = json.loads((place / "preprocessor_config.json").read_text())
    found = [written[n] for n in ("rescale_factor", "image_mean", "image_std")]
    assert found == [0.02, [0.0], [0.25]]
    named = tmp_path / "theirs/preprocessor_config.json"
    named.write_text(json.dumps(processor | {"do_center_crop": True}))
    said = f"{named}: do_center_crop: not supported"
    with pytest.raises(NlpkitError, match=said):
        _tiny.pretrain(path, tmp_path / "other", start, "train.steps=1")
    with pytest.raises(NlpkitError, match="do_center_crop: not supported"):
        open_checkpoint(tmp_path / "theirs", device="cpu")


def test_confusion_table_equals_scikit_learn(run: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    opened = open_checkpoint(run / "whole/checkpoints/step-00000010", device="cpu")
    figures, rows = _evaluated(opened)
    found = figures["confusion"]
    right, predicted = ([row[name] for row in rows] for name in ("target", "prediction"))
    expected = metrics.confusion_matrix(right, predicted, labels=found["labels"])
    assert found["counts"] == expected.tolist()
    lines = held_out.format_table(figures).split("\n\n")[1].splitlines()
    assert lines[0].split() == ["right", "\\", "predicted", *"0123"]
    assert [line.split() for line in lines[1:]] == [
        [name, *map(str, counts)] for name, counts in zip("0123", found["counts"], strict=True)
    ]


def test_confusion_of_many_classes_names_the_most_frequent_errors() -> None:
    labels = [f"c{i}" for i in range(30)]
    answers = [("c1", "c2")] * 3 + [("c2", "c1")] * 2 + [("c5", "c5")] * 9
    found = held_out.count_confusion(labels, answers)
    assert [line.split() for line in held_out.format_confusion(found).splitlines()] == [
        ["right", "predicted", "rows"], ["c2", "c1", "3"], ["c1", "c2", "2"]
    ]  # fmt: skip


def test_checkpoint_is_converted_with_its_image_processor(run: Path, tmp_path: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    assert opened.tokenizer is None
    convert(run / "whole", tmp_path / "out")
    again = open_checkpoint(tmp_path / "out", device="cpu")
    assert again.objective.config == opened.objective.config
    ours, written = opened.model.state_dict(), again.model.state_dict()
    assert ours.keys() == written.keys()
    assert all(torch.equal(ours[name], written[name]) for name in ours)
    places = (opened.path, tmp_path / "out")
    assert len({(path / "preprocessor_config.json").read_text() for path in places}) == 1
    with pytest.raises(UsageError, match=r"--vocab: family vit has no vocabulary"):
        convert(run / "whole", tmp_path / "other", Options(vocabulary=tmp_path))


def test_adapters_are_trained_merged_and_read_by_peft(run: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    path = tmp_path / "task.yaml"
    text = TASK.replace("RUN", f"{run}/whole").replace("FOLDER", str(run))
    path.write_text(text, encoding="utf-8")
    place = _tiny.pretrain(path, tmp_path / "tuned")
    convert(place, tmp_path / "merged")
    opened = open_checkpoint(tmp_path / "merged", device="cpu")
    assert opened.objective.config.labels == ["0", "1", "2", "3"]
    base = ViTForImageClassification.from_pretrained(run / "whole/checkpoints/latest")
    theirs = peft.PeftModel.from_pretrained(base, place).eval()
    merged = ViTForImageClassification.from_pretrained(tmp_path / "merged").eval()
    pixels = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        expected = merged(pixels).logits
        torch.testing.assert_close(theirs(pixels).logits, expected, atol=1e-5, rtol=1e-5)
        theirs.save_pretrained(tmp_path / "theirs")
    # The names that peft writes are those in transformers' memory.
    assert any(
        ".q_proj." in name for name in load_file(tmp_path / "theirs/adapter_model.safetensors")
    )
    settings = json.loads((place / "adapter_config.json").read_text())
    written = json.loads((tmp_path / "theirs/adapter_config.json").read_text())
    written["base_model_name_or_path"] = settings["base_model_name_or_path"]
    (tmp_path / "theirs/adapter_config.json").write_text(json.dumps(written))
    convert(tmp_path / "theirs", tmp_path / "again")
    found = [load_file(tmp_path / name / "model.safetensors") for name in ("merged", "again")]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], tensor) for name, tensor in found[1].items())


def test_run_goes_on_from_a_checkpoint_with_a_hidden_layer(run: Path, tmp_path: Path) -> None:
    more = ("objective.head=mlp", "train.steps=2", "objective.dropout=0.1")
    place = _tiny.pretrain(run / "digits.yaml", tmp_path / "mlp", *more)
    names = {*load_file(place / "model.safetensors")}
    assert {"vit.pooler.dense.weight", "mlp_head.weight"} <= names
    start = f'init_from="{place}"'
    last = _tiny.pretrain(run / "digits.yaml", tmp_path / "more", start, "train.steps=1")
    names = {*load_file(last / "model.safetensors")}
    # Sec. 3.2 of the paper: tuning begins with a new linear layer.
    assert "classifier.weight" in names
    assert not names & {"vit.pooler.dense.weight", "mlp_head.weight"}


def test_run_goes_on_from_its_own_checkpoint_with_its_head(run: Path, tmp_path: Path) -> None:
    start = f'init_from="{run}/whole/checkpoints/latest"'
    _tiny.pretrain(run / "digits.yaml", tmp_path / "more", start, "train.steps=2")
    losses = [r["loss"] for r in _tiny.metrics(tmp_path / "more") if "loss" in r]
    assert losses[0] < 0.7  # log(4) is 1.39: it begins with what was learned


def test_head_of_a_checkpoint_from_before_a_setting_is_kept(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "whole/checkpoints/latest", tmp_path / "old")
    notes = json.loads((tmp_path / "old/nlpkit.json").read_text())
    del notes["objective"]["resample"]
    (tmp_path / "old/nlpkit.json").write_text(json.dumps(notes))
    (tmp_path / "old/manifest.json").unlink()
    _tiny.pretrain(
        run / "digits.yaml", tmp_path / "more", f'init_from="{tmp_path}/old"', "train.steps=2"
    )
    losses = [r["loss"] for r in _tiny.metrics(tmp_path / "more") if "loss" in r]
    assert losses[0] < 0.7  # log(4) is 1.39: it begins with what was learned


def test_plan_of_images(run: Path, tmp_path: Path) -> None:
    plan = make(recipe.load(str(run / "digits.yaml")), tmp_path / "run", "cpu", Log(QUIET))
    described = describe(plan)
    assert described["data"]["vocabulary"] == 0
    assert described["packing"]["share_of_tokens_with_loss"] == 0.2  # 4 patches, 1 class token
    model = open_checkpoint(run / "whole", device="cpu").model
    assert described["model"]["parameters"] == sum(p.numel() for p in model.parameters())
    with pytest.raises(UsageError, match=r"shown by its tokens, and .*image_classification reads"):
        draw_mask(plan, tmp_path / "mask.png")


def test_wrong_setting_of_an_objective_without_a_tokenizer_is_named_alone(run: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.load(str(run / "digits.yaml"), ["objective.shft=1"])
    assert "objective.shft: unknown setting, did you mean shift?" in str(caught.value)
    assert "tokenizer" not in str(caught.value)


def test_generate_is_refused(run: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    said = "this model was trained for image_classification and does not generate text"
    with pytest.raises(UsageError, match=said):
        Writer(opened.model, opened.tokenizer, opened.objective, Settings())


def test_confusion_is_drawn(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from nlpkit.report.figures import confusion_figure

    confusion_figure(["a", "b"], [[3, 1], [0, 2]], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


@contextmanager
def _bench(run: Path) -> Iterator[Bench]:
    AcceleratorState._reset_state(reset_partial_state=True)
    resolved = recipe.load(str(run / "digits.yaml"), ["objective.shift=1"])
    with selftest.bench(resolved, device="cpu", log=Log(QUIET), stop=StopFlag()) as made:
        yield made


@pytest.mark.slow
def test_selftest_proves_all(run: Path) -> None:
    with _bench(run) as bench:
        found = list(selftest.prove(bench))
    assert len(found) == 4
    assert [(proof.name, proof.figure) for proof in found if not proof.passed] == []


class Neighbour(Model):
    """Answers for an image by the state of the next one of its pack."""

    def summary(self, hidden, lengths):
        return super().summary(hidden, lengths).roll(-1, 0)


class Lost(Objective):
    """Counts one image less than it has."""

    def num_targets(self, batch):
        return {"classes": len(batch["label"]) - 1}


class Loose(Objective):
    """Moves images by numbers that do not depend on the example."""

    def augment(self, item, rng):
        return super().augment(item, np.random.default_rng())


@pytest.mark.slow
def test_selftest_finds_planted_defects(run: Path) -> None:
    with _bench(run) as bench:
        subject = bench.subject
        assert batching.compare_packed_sums(subject)[0]
        assert batching.compare_gradients(bench)[0]
        assert batching.check_batches(bench)[0]
        subject.model.__class__ = Neighbour
        assert not batching.compare_packed_sums(subject)[0]
        subject.model.__class__ = Model
        subject.objective.__class__ = Lost
        passed, figure = batching.compare_gradients(bench)
        assert not passed
        assert "targets of classes are counted as" in figure
        subject.objective.__class__ = Loose
        subject.examples.augment = subject.objective.augment
        passed, figure = batching.check_batches(bench)
        assert (passed, figure) == (False, "a stream resumed in the middle has other batches")


@pytest.mark.slow
@pytest.mark.real_data
def test_handwritten_digits_are_told_apart(tmp_path: Path) -> None:
    names = [REAL_DATA / f"images/optdigits.{part}.csv" for part in ("tra", "tes")]
    text = _images.RECIPE
    start, end = text.index("data:"), text.index("objective:")
    text = f"{text[:start]}data: {{train: ['{names[0]}'], valid: ['{names[1]}']}}\n{text[end:]}"
    settings = "{name: image_classification, scale: 0.0625, label: '65'}"
    path = tmp_path / "digits.yaml"
    path.write_text(text.replace("{name: image_classification}", settings), encoding="utf-8")
    sets = ["train.steps=400", "train.tokens_per_step=640", "train.tokens_per_batch=640",
            "model.hidden_size=64", "model.num_heads=4", "train.lr=0.002", "train.eval_every=400",
            "train.save_every=400"]  # fmt: skip
    _tiny.pretrain(path, tmp_path / "run", *sets)
    scores = [r["held_out"]["metrics"] for r in _tiny.metrics(tmp_path / "run") if "held_out" in r]
    assert scores[-1]["accuracy"] > 0.9  # ten classes: 0.1 by chance
