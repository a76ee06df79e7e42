"""Classifies images by the state of the class token (Dosovitskiy et al. 2020, sec. 3.1).

A row has an image, as the readers `idx` and `images` give it, or a column for each pixel, row by
row, as csv files of small images have. Pixels become (pixel * scale - mean) / std, as in
transformers' image processors; the settings are saved as `preprocessor_config.json`, too.
S images, H height, W width, D channels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import Field as Setting

from nlpkit.contracts.batch import Batch, Field, Loss, Term
from nlpkit.contracts.objective import PREPROCESSOR, TrainedModel
from nlpkit.contracts.reader import Row, RowError
from nlpkit.contracts.task import Item
from nlpkit.data import images
from nlpkit.json_types import JsonMapping
from nlpkit.objectives.tasks.states import ClassConfig, ClassTask, read_class
from nlpkit.plural import number_of

if TYPE_CHECKING:
    import torch


# What a `preprocessor_config.json` may ask for.
_STEPS = ("do_convert_rgb", "do_resize", "do_rescale", "do_normalize")
# In the order of their numbers in pillow and in `preprocessor_config.json`.
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
_RESAMPLE: tuple[Resample, ...] = get_args(Resample)


class Config(ClassConfig):
    """The columns of a row, and what becomes of its pixels.

    Pixel settings that are not given are those of the image processor of `init_from`; without one,
    they are transformers' defaults.
    """

    image: str = Setting(
        "image", min_length=1,
        description="column of the image; without it, all columns but the class are pixels",
    )  # fmt: skip
    scale: float | None = Setting(
        None, gt=0, description="factor of the pixels; default: 1/255, for pixels from 0 to 255"
    )
    mean: float | list[float] | None = Setting(
        None, description="subtracted from scaled pixels, for all channels or each; default: 0.5"
    )
    std: float | list[float] | None = Setting(
        None, description="divides what is left, for all channels or each; default: 0.5"
    )
    resize: bool | None = Setting(
        None, description="whether images of other sizes are resized; needs pillow; default: false"
    )
    resample: Resample | None = Setting(
        None, description="how they are resized, as pillow names it; default: bilinear"
    )
    shift: int = Setting(
        0, ge=0, description="training images are moved by up to so many random pixels"
    )
    head: Literal["linear", "mlp"] = Setting(
        "linear", description="mlp: with a hidden layer and tanh, as in the pretraining of ViT"
    )
    dropout: float = Setting(0.0, ge=0, lt=1, description="on the input of the head")

    def without_effect(self) -> dict[str, str]:
        why = "without resize: true, here or in the preprocessor_config.json of init_from"
        return {} if self.resize else {"resample": why}


class Objective(ClassTask):
    """Examples and loss of image classification."""

    parts = ("classes",)
    inputs = ("patches",)
    fields: Mapping[str, Field] = {
        "patches": Field(np.float32),
        "label": Field(np.int64, per="sequence"),
    }
    needs = ("reads_images",)
    reads_text = False
    reads_summary = True
    metrics = ("accuracy",)

    def __init__(self, config: Config, tokenizer: None, model_config: Any):
        config = self.with_preprocessor(config, {})
        super().__init__(config, tokenizer, model_config)  # type: ignore[arg-type]
        self.image_shape, self.patch_shape = model_config.image_shape, model_config.patch_shape
        self.size = model_config.max_positions  # tokens of an image
        # A file without a header has numbered columns only.
        self.columns = (config.label,) if config.label.isdecimal() else (config.image, config.label)
        self.dropout = config.dropout
        self.mean, self.std = self._by_channel("mean"), self._by_channel("std")
        if not (self.std > 0).all():
            raise ValueError("objective.std: must be greater than 0")

    @property
    def head_kind(self) -> str:  # type: ignore[override]
        """The kind of task, which decides the model in transformers."""
        return f"image_classification{'_mlp' * (self.config.head == 'mlp')}"

    @classmethod
    def with_preprocessor(cls, config: Config, settings: JsonMapping) -> Config:
        """Return `config` with what it does not set from a `preprocessor_config.json`."""
        settings = {name: value for name, value in settings.items() if value is not None}
        asked = [name for name, value in settings.items() if name.startswith("do_") and value]
        if unknown := sorted({*asked} - {*_STEPS}):
            raise ValueError(
                f"{unknown[0]}: not supported: apply it to the files yourself and set it to false"
            )
        normalized = settings.get("do_normalize", True)
        given = {
            "scale": settings.get("rescale_factor", 1 / 255)
            if settings.get("do_rescale", True)
            else 1.0,
            "mean": _single(settings.get("image_mean", 0.5)) if normalized else 0.0,
            "std": _single(settings.get("image_std", 0.5)) if normalized else 1.0,
            "resize": settings.get("do_resize", False),
            "resample": _RESAMPLE[settings.get("resample", _RESAMPLE.index("bilinear"))],
        }
        unset = {name: value for name, value in given.items() if getattr(config, name) is None}
        return config.model_validate(config.model_dump() | unset)

    def checkpoint_files(self) -> dict[str, str]:
        """Return the settings of transformers' processor."""
        height, width, channels = self.image_shape
        settings = {
            "image_processor_type": "ViTImageProcessor",
            **({"do_convert_rgb": True} if channels == 3 else {}),
            "do_resize": self.config.resize,
            "size": {"height": height, "width": width},
            "resample": _RESAMPLE.index(self.config.resample),
            "do_rescale": True,
            "rescale_factor": self.config.scale,
            "do_normalize": True,
            "image_mean": self.mean.tolist(),
            "image_std": self.std.tolist(),
        }
        return {PREPROCESSOR: json.dumps(settings, indent=2) + "\n"}

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return nothing to tokenise; raise `RowError` for an image or a class that is unfit."""
        read_class(row, self.config)
        self._image(row)
        return ()

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the image (H, W, D) of a row; its tokens are the class token and the patches."""
        label = self.config.labels.index(read_class(row, self.config))
        return Item((self._image(row),), label, self.size)

    def augment(self, item: Item, rng: np.random.Generator) -> Item:
        """Return the item with its image moved by random pixels; for training only."""
        limit = self.config.shift
        if not limit:
            return item
        down, right = rng.integers(-limit, limit + 1, 2).tolist()
        return replace(item, parts=(images.shift(item.parts[0], down, right),))

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the patches (1 + P, …), the class token's place before them, and the class."""
        pixels = item.parts[0].astype(np.float64) * self.config.scale
        image = ((pixels - self.mean) / self.std).astype(np.float32)
        patches = images.patches(image, *self.patch_shape)
        place = np.zeros((1, patches.shape[1]), np.float32)
        return {
            "patches": np.concatenate([place, patches]),
            "label": np.array([item.label], np.int64),
        }

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {"classes": len(batch["label"])}

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the classes."""
        return self.predict(model, hidden, batch)[0]

    def predict(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[tuple[str, str]]]:
        """Return the loss, and the most likely class and the right class of each image."""
        import torch.nn.functional as F

        right = batch.fields["label"]
        logits = model.head(model.summary(hidden, batch.lengths)).float()
        loss_sum = F.cross_entropy(logits, right, reduction="sum")
        names = self.config.labels
        pairs = zip(logits.argmax(1).tolist(), right.tolist(), strict=True)
        found = [(names[guess], names[label]) for guess, label in pairs]
        return Loss({"classes": Term(loss_sum, len(right))}), found

    def _by_channel(self, name: str) -> np.ndarray:
        """Return the setting `name` for each channel, (D,)."""
        channels = self.image_shape[2]
        values = np.atleast_1d(np.asarray(getattr(self.config, name), np.float64))
        if len(values) not in (1, channels):
            raise ValueError(
                f"objective.{name}: {number_of(len(values), 'values')}; the model reads {channels} "
                f"channel{'s' * (channels > 1)}"
            )
        return np.broadcast_to(values, (channels,))

    def _image(self, row: Row) -> np.ndarray:
        """Return (H, W, D); raise `RowError` if the model cannot read the image."""
        height, width, channels = self.image_shape
        if self.config.image not in row.values:
            return images.image_of_columns(row, self.config.label, (height, width, channels))
        image = images.image_in(row, self.config.image)
        if image.shape[2] == 1 and channels == 3:  # as pillow makes a grey image RGB
            image = image.repeat(3, axis=2)
        if image.shape[2] != channels:
            raise RowError(
                f"an image with {image.shape[2]} channels, and the model reads {channels}; "
                f"set model.num_channels: {image.shape[2]}"
            )
        if image.shape[:2] != (height, width):
            if not self.config.resize:
                raise RowError(
                    f"an image of {image.shape[0]} x {image.shape[1]}, and the model reads "
                    f"{height} x {width}; set objective.resize: true"
                )
            image = images.resize(image, height, width, self.config.resample)
        return image


def _single(values: float | list[float]) -> float | list[float]:
    """Return the value that all channels have, or their values."""
    return values[0] if isinstance(values, list) and len({*values}) == 1 else values
