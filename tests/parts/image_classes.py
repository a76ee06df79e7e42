"""Classes of images: the label from the state of the class token.

Rows have `image`, uint8 (height, width) or (height, width, 3), as the readers of pictures give it,
or a column a pixel, as tables of small pictures do.
P patches of an image, S images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.data.items import Row
from nlpkit.objectives._task import Item, RowError, Task
from nlpkit.objectives.contract import Field, Loss, Term

if TYPE_CHECKING:
    import torch

    from nlpkit.data.pack import Batch


class Config(FrozenConfig):
    """Which columns a row has."""

    image: str = Setting("image", min_length=1, description="column of the image")
    columns: int = Setting(0, ge=0, description="pixels in so many first columns, not in `image`")
    white: float = Setting(255, gt=0, description="the greatest value of a pixel")
    label: str = Setting("label", min_length=1, description="column of the class")
    labels: list[str] | None = Setting(
        None, min_length=2, description="the classes; default: those of the training rows, sorted"
    )
    dropout: float = Setting(0.0, ge=0, lt=1, description="on the state, before the linear layer")


class Objective(Task):
    """Examples and loss of image classification."""

    parts = ("classes",)
    inputs = ("patches",)
    fields: Mapping[str, Field] = {
        "patches": Field(np.float32),
        "label": Field(np.int64, per="sequence"),
    }
    needs = ("image_size", "patch_size", "channels", "hidden_size")
    reads_text = False
    metrics = ("accuracy",)

    def __init__(self, config: Config, tokenizer: Any, model_config: Any):
        super().__init__(config, tokenizer, model_config)
        numbers = [str(i) for i in range(1, config.columns + 1)]
        self.columns = (*(numbers or [config.image]), config.label)
        self.dropout = config.dropout

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """The number of classes."""
        return len(self.config.labels or ())

    @classmethod
    def complete(cls, config: Config, rows: Iterable[Row]) -> Config:
        """Return `config` with the classes of the training rows, unless it names them."""
        if config.labels is not None:
            return config
        found = sorted({str(row.value(config.label)) for row in rows})
        return config.model_copy(update={"labels": found})

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return nothing to tokenise; raise `RowError` where the image or its class is unfit."""
        self._label(row)
        self._pixels(row)
        return ()

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the patches of a row's image, the class token's place before them."""
        config = self.model_config
        across, size = config.image_size // config.patch_size, config.patch_size
        cut = self._pixels(row).reshape(across, size, across, size, config.channels)
        patches = cut.transpose(0, 2, 4, 1, 3).reshape(across**2, -1)  # as a convolution reads
        whole = np.concatenate([np.zeros((1, patches.shape[1]), patches.dtype), patches])
        return Item((whole,), self._label(row), len(whole))

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return patches (1 + P, …) between -1 and 1, and the class; nothing is random."""
        patches = item.parts[0].astype(np.float32) / self.config.white * 2 - 1
        return {"patches": patches, "label": np.array(item.label, np.int64)}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of images."""
        return {"classes": len(batch["label"])}

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the classes."""
        return self.predict(model, hidden, batch)[0]

    def predict(
        self, model: Any, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[tuple[str, str]]]:
        """Return the loss, and for each image the likeliest class and the right one."""
        import torch.nn.functional as F

        right = batch.fields["label"]
        logits = model.head(model.summary(hidden, batch.lengths)).float()
        loss_sum = F.cross_entropy(logits, right, reduction="sum")
        names = self.config.labels
        pairs = zip(logits.argmax(1).tolist(), right.tolist(), strict=True)
        return (
            Loss({"classes": Term(loss_sum, len(right))}),
            [(names[guess], names[label]) for guess, label in pairs],
        )

    def _label(self, row: Row) -> int:
        name = str(row.value(self.config.label))
        if name not in self.config.labels:
            known = ", ".join(self.config.labels[:10])
            raise RowError(f'"{self.config.label}" is {name!r}, none of the classes {known}')
        return self.config.labels.index(name)

    def _pixels(self, row: Row) -> np.ndarray:
        """Return (height, width, channels)."""
        side, channels = self.model_config.image_size, self.model_config.channels
        if self.config.columns:
            try:
                pixels = np.array([float(row.text(name)) for name in self.columns[:-1]], np.float32)
            except ValueError as error:
                raise RowError(f"a pixel is no number: {error}") from error
        else:
            pixels = row.array(self.config.image)
        if pixels.size != side * side * channels or pixels.shape[1:2] not in ((), (side,)):
            raise RowError(
                f"an image of {' x '.join(map(str, pixels.shape))}; the model reads {side} x {side}"
                f" with {channels} channel{'s' * (channels > 1)}"
            )
        return pixels.reshape(side, side, channels)
