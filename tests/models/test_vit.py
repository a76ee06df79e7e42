"""ViT against transformers: states, losses, gradients, files, the pooler, classifiers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from pydantic import ValidationError
from torch import Tensor

from nlpkit.checkpoints import hf_layout, hf_model, hf_writing
from nlpkit.data.images import patches
from nlpkit.errors import FileError
from nlpkit.models import lora
from nlpkit.models.vit import Config
from nlpkit.models.vit.model import FORMAT, Model
from tests._families import oracle
from tests._families.oracle import CLOSE

SIZES = {
    "image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 32, "num_layers": 2,
    "num_heads": 4, "intermediate_size": 48,
}  # fmt: skip


def _theirs(architecture: str = "ViTForImageClassification", **settings) -> torch.nn.Module:
    sizes = {
        "image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "num_labels": 3,
    }  # fmt: skip
    return oracle.drawn(architecture, transformers.ViTConfig(**sizes | settings))


def _images(config: Config, count: int = 3) -> tuple[Tensor, Tensor, list[int]]:
    """Return images as transformers takes them, and as packed patches with their lengths."""
    height, width, channels = config.image_shape
    drawn = np.random.default_rng(0).normal(size=(count, height, width, channels))
    images = drawn.astype(np.float32)
    parts = []
    for image in images:
        cut = patches(image, *config.patch_shape)
        parts += [np.full((1, cut.shape[1]), 7, np.float32), cut]  # 7: the class token's place
    packed = torch.from_numpy(np.concatenate(parts))
    return torch.from_numpy(images).permute(0, 3, 1, 2), packed, [config.max_positions] * count


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"image_size": [6, 12], "patch_size": [2, 4], "num_channels": 3},
        {"image_size": [4, 8], "hidden_act": "relu", "qkv_bias": False},
    ],
    ids=["grey", "rectangles", "relu"],
)
def test_states_loss_and_gradients_equal_transformers(tmp_path: Path, settings) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("vit", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    head = {n.removeprefix("head."): t for n, t in loaded.state.items() if n.startswith("head.")}
    model.head = loaded.head.new(32, 3, 0.0)
    model.head.load_state_dict(head)
    pixels, packed, lengths = _images(loaded.config)
    labels = torch.tensor([2, 0, 1])
    expected = theirs(pixels, labels=labels, output_hidden_states=True)
    seen: list[Tensor] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, given, output: seen.append(output))
    hidden = model(lengths, packed)
    for ours, state in zip(seen, expected.hidden_states[1:], strict=True):
        torch.testing.assert_close(ours, state.flatten(0, 1), **CLOSE)
    last = theirs.vit(pixels).last_hidden_state.flatten(0, 1)
    torch.testing.assert_close(hidden, last, **CLOSE)
    logits = model.head(model.summary(hidden, lengths))
    torch.testing.assert_close(logits, expected.logits, **CLOSE)
    loss = F.cross_entropy(logits, labels)
    torch.testing.assert_close(loss, expected.loss, **CLOSE)
    expected.loss.backward()
    loss.backward()
    # In memory transformers has other names than on disk: the gradients are saved as weights.
    for parameter in theirs.parameters():
        parameter.data = parameter.grad
    theirs.save_pretrained(tmp_path / "gradients")
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = hf_writing.to_hf("vit", loaded.config, gradients, head=loaded.head)[""][1]
    wanted = hf_layout.read(tmp_path / "gradients")[1]
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, **CLOSE)


@pytest.mark.parametrize(
    "more",
    [{}, {"image_size": [6, 12], "patch_size": [2, 4], "qkv_bias": False},
     {"pooler_output_size": 20, "pooler_act": "relu"}],
)  # fmt: skip
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES | {"pooler": True} | more)
    oracle.assert_opens_both_ways("vit", config, "ViTModel", tmp_path)


def test_pooler_output_equals_transformers(tmp_path: Path) -> None:
    theirs = _theirs("ViTModel", pooler_output_size=20)
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("vit", tmp_path)
    pixels, packed, lengths = _images(loaded.config)
    hidden = model(lengths, packed)
    expected = theirs(pixels)
    torch.testing.assert_close(hidden, expected.last_hidden_state.flatten(0, 1), **CLOSE)
    torch.testing.assert_close(model.pooled(hidden, lengths), expected.pooler_output, **CLOSE)
    assert not loaded.config.for_task().pooler  # as ViTForImageClassification


def test_model_saved_without_pooler_loads_with_a_report(tmp_path: Path) -> None:
    config = transformers.ViTConfig(**{"image_size": 8, "patch_size": 4, "num_channels": 1,
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 48})  # fmt: skip
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    _, loaded = oracle.ours("vit", tmp_path)
    assert sorted(loaded.missing) == ["vit.pooler.dense.bias", "vit.pooler.dense.weight"]


def test_body_of_masked_image_modeling_is_read(tmp_path: Path) -> None:
    theirs = _theirs("ViTForMaskedImageModeling", encoder_stride=4)
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("vit", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    pixels, packed, lengths = _images(loaded.config)
    expected = theirs.vit(pixels).last_hidden_state.flatten(0, 1)
    torch.testing.assert_close(model(lengths, packed), expected, **CLOSE)


@pytest.mark.parametrize("kind", ["image_classification", "image_classification_mlp"])
def test_heads_open_in_transformers(tmp_path: Path, kind: str) -> None:
    from nlpkit.models.vit.model import TASK_HEADS

    torch.manual_seed(0)
    model = Model(Config(**SIZES), 0)
    head = TASK_HEADS[kind]
    model.head = head.new(32, 3, 0.0)
    names = ["a", "b", "c"]
    folders = hf_writing.to_hf("vit", model.config, model.state_dict(), head=head, labels=names)
    hf_writing.write_folders(tmp_path, folders)
    pixels, packed, lengths = _images(model.config)
    summary = model.summary(model.eval()(lengths, packed), lengths)
    if kind == "image_classification":
        theirs, report = transformers.AutoModelForImageClassification.from_pretrained(
            tmp_path, output_loading_info=True
        )
        assert not any(report.values())
        assert theirs.config.id2label == dict(enumerate(names))
        torch.testing.assert_close(theirs(pixels).logits, model.head(summary), **CLOSE)
    else:  # its hidden layer is the pooler; the classes are not taken for those of a classifier
        theirs = transformers.ViTModel.from_pretrained(tmp_path)
        expected = torch.tanh(model.head.dense(summary))
        torch.testing.assert_close(theirs(pixels).pooler_output, expected, **CLOSE)
        _, report = transformers.ViTForImageClassification.from_pretrained(
            tmp_path, output_loading_info=True
        )
        assert "classifier.weight" in report["missing_keys"]
    settings, tensors = hf_layout.read(tmp_path)
    loaded = hf_model.from_hf("vit", tmp_path, settings, tensors)
    assert loaded.head == head
    state = model.state_dict()
    assert loaded.state.keys() == state.keys()
    assert all(torch.equal(loaded.state[name], tensor) for name, tensor in state.items())


def test_image_packed_with_others_is_the_image_alone() -> None:
    torch.manual_seed(0)
    model = Model(Config(**SIZES), 0).eval()
    _, packed, lengths = _images(model.config)
    whole = model(lengths, packed).split(lengths)
    for image, states in zip(packed.split(lengths), whole, strict=True):
        torch.testing.assert_close(model(lengths[:1], image), states, **CLOSE)


def test_image_of_other_patches_is_refused() -> None:
    model = Model(Config(**SIZES), 0)
    with pytest.raises(ValueError, match="an image of 3 patches; the model reads 4"):
        model([4], torch.zeros(4, 16))


def test_adapters_leave_the_patches_alone() -> None:
    # transformers has a convolution there, so peft's adapters of linear layers do not fit it.
    names = lora.linear_names(FORMAT, Model, Config(**SIZES))
    assert "patch" not in names
    assert names["layers.0.query"] == "vit.encoder.layer.0.attention.attention.query"
    assert len(names) == 2 * 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"patch_size": 3}, "patch_size: a patch's height of 3 does not divide the image's of 8"),
        ({"image_size": [8, 6]}, "a patch's width of 4 does not divide the image's of 6"),
        ({"num_heads": 5}, "num_heads: 5 does not divide hidden_size 32; try 4"),
        ({"image_size": [8, 8, 1]}, r"greater than 0, or \[height, width\]"),
        ({"patch_size": 0}, r"must be a number of pixels greater than 0, or \[height, width\]"),
        ({"patch_size": "4"}, "must be a number of pixels"),
    ],
)
def test_sizes_that_do_not_fit_are_named(change, said) -> None:
    with pytest.raises(ValidationError, match=said):
        Config(**SIZES | change)


def test_settings_of_another_model_are_refused(tmp_path: Path) -> None:
    _theirs().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text()) | {"hidden_act": "selu"}
    path.write_text(json.dumps(settings))
    with pytest.raises(FileError, match="hidden_act is 'selu'; this family has gelu, relu"):
        oracle.ours("vit", tmp_path)
