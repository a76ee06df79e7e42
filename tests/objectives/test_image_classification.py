"""Image classification: pixels, patches, shifts, what is wrong with an image or its row.

Oracles: torch's convolution, transformers' image processor, hand arithmetic.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nlpkit import recipe
from nlpkit.contracts.reader import Counts, RowError
from nlpkit.data import images
from nlpkit.data.items import Row, TaskDataset
from nlpkit.data.loader import HELD_OUT, Examples
from nlpkit.errors import DataError, RecipeError, UsageError
from nlpkit.models.vit import Config as Sizes
from nlpkit.objectives.image_classification import Config, Objective
from tests import _images, _tiny

GREY = Sizes(image_size=[4, 6], patch_size=2, num_channels=1)
COLOUR = Sizes(image_size=[4, 6], patch_size=2)


def _objective(sizes: Sizes = GREY, **settings) -> Objective:
    return Objective(Config(labels=["a", "b"], **settings), None, sizes)


def _row(image: object, label: object = "b") -> Row:
    return Row({"image": image, "label": label}, "x", 1)


def _cells(*cells: str) -> Row:
    return Row({str(number): cell for number, cell in enumerate(cells, 1)}, "x.csv", 3)


def _made(objective: Objective, image: np.ndarray) -> np.ndarray:
    row = _row(image)
    assert objective.texts(row) == ()
    return objective.example(objective.item(row, []), np.random.default_rng(0))["patches"]


@pytest.mark.parametrize(("sizes", "channels"), [(GREY, 1), (COLOUR, 3)])
def test_patches_times_weights_are_torchs_convolution(sizes: Sizes, channels: int) -> None:
    drawn = np.random.default_rng(0).normal(size=(4, 6, channels)).astype(np.float32)
    weight = torch.randn(5, channels, 2, 2)
    pixels = torch.from_numpy(drawn).permute(2, 0, 1)[None]
    expected = F.conv2d(pixels, weight, stride=2).flatten(2)[0].T
    found = torch.from_numpy(images.patches(drawn, 2, 2)) @ weight.flatten(1).T
    torch.testing.assert_close(found, expected)
    example = _made(_objective(sizes, scale=1.0, mean=0.0, std=1.0), drawn)
    assert example.shape == (7, channels * 4)
    assert not example[0].any()  # the class token's place
    assert np.array_equal(example[1:], images.patches(drawn, 2, 2))


def test_pixels_are_scaled_and_normalized_for_each_channel() -> None:
    image = np.full((4, 6, 3), (10, 20, 30), np.uint8)
    objective = _objective(COLOUR, scale=0.1, mean=[1.0, 2.0, 4.0], std=[1.0, 2.0, 0.5])
    # By hand: (1 - 1) / 1, (2 - 2) / 2, (3 - 4) / 0.5; a patch has its channels one by one.
    assert _made(objective, image)[1].tolist() == [0.0] * 8 + [-2.0] * 4
    plain = _made(_objective(), np.full((4, 6), 255, np.uint8))  # 255 / 255 = 1
    assert plain[1:].tolist() == [[1.0] * 4] * 6


def test_rows_of_csv_have_a_column_for_each_pixel() -> None:
    pixels = [str(n) for n in range(24)]
    image = np.arange(24).reshape(4, 6, 1)
    for label, cells in (("25", [*pixels, "b"]), ("1", ["b", *pixels])):
        objective = _objective(label=label)
        assert objective.columns == (label,)
        item = objective.item(_cells(*cells), [])
        assert np.array_equal(item.parts[0], image)
        assert (item.parts[0].dtype, item.label, item.size) == (np.uint8, 1, 7)
    named = Row({"label": "a", **{f"p{n}": n for n in pixels}}, "x.csv", 2)  # with a header
    assert np.array_equal(_objective().item(named, []).parts[0], image)
    fractions = _objective(label="25").item(_cells(*["0.5"] * 24, "a"), [])
    assert fractions.parts[0].dtype == np.float32


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (_cells(*["1"] * 23, "9", "9", "b"), '25 columns beside the class "26"; an image of 4 x 6 '
         "with 1 channel has 24"),
        (_cells(*["1"] * 25), "there is no column 26"),
        (_cells(*["1"] * 25, "c"), '"26" is \'c\', none of the classes a, b'),
        (_row(np.zeros((6, 4), np.uint8)), "an image of 6 x 4, and the model reads 4 x 6; set "
         "objective.resize: true"),
        (_row(np.zeros((4, 6, 3), np.uint8)), "an image with 3 channels, and the model reads 1; "
         "set model.num_channels: 3"),
        (_row(np.zeros(24)), "has 1 dimensions; an image has 2 or 3"),
        (_row([[1, 2], [3]]), '"image" has rows of different lengths, or no numbers'),
        (_row([[None] * 6] * 4), '"image" has a pixel that is no number'),
        (_row([[float("nan")] * 6] * 4), '"image" has a pixel that is no number'),
        (_row("x.png"), '"image" is a string, not an image'),
        (_row(np.zeros((4, 6)), 1.5), '"label" is a number (1.5), not a string or an integer'),
    ],
)  # fmt: skip
def test_row_that_does_not_fit_says_what_is_wrong(row: Row, said: str) -> None:
    label = "label" if "label" in row.values else "26"
    with pytest.raises(RowError) as caught:
        _objective(label=label).texts(row)
    assert said in caught.value.what


@pytest.mark.parametrize(("cell", "shown"), [("x", "'x'"), ("", "''"), ("nan", "'nan'")])
def test_pixel_that_is_no_number_is_named(cell: str, shown: str) -> None:
    with pytest.raises(RowError) as caught:
        _objective(label="25").texts(_cells("1", "2", cell, *["1"] * 21, "b"))
    assert caught.value.what == f'"3" is {shown}; a pixel is a number'
    row = Row({"a": {}, "b": 1, "label": 0}, "x.jsonl", 1)
    with pytest.raises(RowError, match="a pixel is a number"):
        images.image_of_columns(row, "label", (1, 2, 1))


def test_grey_image_is_read_by_a_model_of_three_channels() -> None:
    grey = np.arange(24, dtype=np.uint8).reshape(4, 6)
    item = _objective(COLOUR).item(_row(grey), [])
    assert np.array_equal(item.parts[0], np.stack([grey] * 3, axis=2))


def test_shift_moves_training_images_only() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(4, 6)
    objective = _objective(shift=2, scale=1.0, mean=0.0, std=1.0)
    item = objective.item(_row(image), [])
    corpus = TaskDataset([([item], 1.0)], Counts(), Counter(), "")
    train, valid = (Examples(corpus, objective, 1, split) for split in (0, HELD_OUT))
    whole = images.patches(image[:, :, None], 2, 2)
    assert all(np.array_equal(valid.make(0, epoch)["patches"][1:], whole) for epoch in range(9))
    found = {train.make(0, epoch)["patches"].tobytes() for epoch in range(60)}
    assert 15 < len(found) <= 25  # 5 x 5 moves
    assert np.array_equal(train.make(0, 3)["patches"], train.make(0, 3)["patches"])
    # By hand: down by one and left by two; the border fills the gap.
    moved = images.shift(image[:, :, None], 1, -2)[:, :, 0]
    assert moved[0].tolist() == [2, 3, 4, 5, 5, 5]
    assert moved[1].tolist() == [2, 3, 4, 5, 5, 5]
    assert moved[2].tolist() == [8, 9, 10, 11, 11, 11]
    assert np.array_equal(images.shift(image[:, :, None], 0, 0)[:, :, 0], image)


@pytest.mark.parametrize(("sizes", "channels"), [(GREY, 1), (COLOUR, 3)])
@pytest.mark.parametrize("resample", [{}, {"resample": "bicubic"}, {"resample": "nearest"}])
def test_image_processor_of_transformers_makes_the_same_pixels(
    sizes, channels, resample, tmp_path
) -> None:
    pytest.importorskip("PIL")
    from transformers import AutoImageProcessor

    settings = {"mean": 0.1307, "std": 0.3081, "scale": 1 / 16, "resize": True} | resample
    objective = _objective(sizes, **settings)
    text = objective.checkpoint_files()["preprocessor_config.json"]
    (tmp_path / "preprocessor_config.json").write_text(text)
    written = json.loads(text)
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    draw = np.random.default_rng(0)
    for shape in ((4, 6), (9, 7)):  # the second is resized
        image = draw.integers(0, 256, (*shape, channels), np.uint8)
        made = processor(images=image, input_data_format="channels_last", return_tensors="pt")
        theirs = made.pixel_values[0]
        expected = images.patches(theirs.permute(1, 2, 0).numpy(), 2, 2)
        np.testing.assert_allclose(_made(objective, image)[1:], expected, atol=1e-5)
    again = Objective.with_preprocessor(Config(labels=["a", "b"]), written)
    assert again == objective.config  # so that a run that goes on has the same task


def test_processor_with_a_step_that_is_not_done_here_is_refused() -> None:
    Objective.with_preprocessor(Config(), {"do_center_crop": False, "do_resize": True})
    with pytest.raises(ValueError, match=r"^do_center_crop: not supported"):
        Objective.with_preprocessor(Config(), {"do_center_crop": True, "do_resize": True})


def test_processor_without_rescaling_and_normalizing_is_understood() -> None:
    written = {"do_rescale": False, "do_normalize": False, "image_mean": [0.9], "resample": 3}
    found = Objective.with_preprocessor(Config(mean=0.3), {**written, "image_std": None})
    assert (found.scale, found.mean, found.std, found.resize) == (1.0, 0.3, 1.0, False)
    assert found.resample == "bicubic"
    defaults = Objective.with_preprocessor(Config(), {})
    assert (defaults.scale, defaults.mean, defaults.std) == (1 / 255, 0.5, 0.5)


def test_resizing_needs_pillow_and_whole_pixels(monkeypatch) -> None:
    objective = _objective(resize=True)
    with pytest.raises(RowError, match="only images with integers from 0 to 255 can be resized"):
        objective.texts(_row(np.full((8, 8), 0.5)))
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UsageError, match=r": pillow is not installed \(pip install pillow\)$"):
        objective.texts(_row(np.zeros((8, 8), np.uint8)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"mean": [0.5, 0.5]}, "objective.mean: 2 values; the model reads 1 channel"),
     ({"std": 0.0}, "objective.std: must be greater than 0")],
)  # fmt: skip
def test_means_that_do_not_fit_are_refused(settings, said) -> None:
    with pytest.raises(ValueError, match=said):
        _objective(**settings)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("family: vit, image_size: 8, patch_size: 4, num_channels: 1, ", "family: gpt, ",
         r"6:19: objective\.name: image_classification needs reads_images .* it trains: vit"),
        ("{name: image_classification}", "{name: classification}\ntokenizer: {kind: bpe}",
         r"6:19: objective\.name: classification needs has_vocabulary"),
        # The objective is the mistake, not the section tokenizer.
        ("family: vit, image_size: 8, patch_size: 4, num_channels: 1, ",
         "tokenizer: {kind: bpe}\nfamily: gpt, ",
         r"objective\.name: image_classification needs reads_images .* it trains: vit"),
        ("{name: image_classification}", "{name: mlm}",
         r"6:19: objective\.name: mlm needs predicts_tokens .* it trains: albert"),
        ("patch_size: 4", "patch_size: 3", "a patch's height of 3 does not divide the image's"),
        ("image_classification}", "image_classification}\nattention: {kind: cpm_ant}",
         r"7:19: attention\.kind: cpm_ant does not fit the model: it reads context"),
        ("image_classification}", "image_classification, labels: [a, b], choices: [a, c]}",
         r"objective\.choices: 'c' is none of labels, a, b"),
        ("image_classification}", "image_classification}\nattention: {kind: causal}",
         r"6:19: objective\.name: image_classification reads the state of the first token, which "
         r"sees no other token with attention causal; set attention: \{kind: full\}"),
    ],
)  # fmt: skip
def test_recipe_that_does_not_fit_is_named_with_its_line(tmp_path, old, new, said) -> None:
    path = _images.write(tmp_path)
    text = path.read_text().replace(old, new, 1).replace(", dropout: 0.1}", "}")
    if "gpt" in new:
        text = text.replace(", intermediate_size: 32", "")
    if "tokenizer" in new and "gpt" in new:
        text = text.replace("tokenizer: {kind: bpe}\n", "") + "tokenizer: {kind: bpe}\n"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(path))


def test_wrong_setting_of_the_objective_asks_for_no_tokenizer(tmp_path: Path) -> None:
    path = _images.write(tmp_path)
    text = path.read_text().replace("image_classification}", "image_classification, head: mpl}")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        recipe.load(str(path))
    (problem,) = error.value.problems
    assert problem.endswith('expected one of linear, mlp, got the text "mpl", did you mean mlp?')


def test_image_of_another_size_is_named_with_its_number(tmp_path: Path) -> None:
    path = _images.write(tmp_path)
    _images.write_idx(tmp_path, "b", np.zeros((3, 4, 4), np.uint8), np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"b-images-idx3-ubyte:1: an image of 4 x 4, and the model"):
        _tiny.pretrain(path, tmp_path / "run")
