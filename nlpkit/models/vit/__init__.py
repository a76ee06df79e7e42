"""Settings of ViT, an encoder of images that are cut into patches (Dosovitskiy et al. 2020).

The defaults are those of the base model, ViT-B/16.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from nlpkit.config import Layers, Size
from nlpkit.contracts.task import Task
from nlpkit.models.config import Activation, AttentionDropout, Dropout, ModelConfig

if TYPE_CHECKING:
    from nlpkit.contracts.objective import ModelSettings, Objectives

MODEL_TYPE = "vit"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "image_classification"  # of a checkpoint that names no objective
VOCABULARY = ()  # it reads and predicts no tokens


def _check_size(size: object) -> object:
    sides = size if isinstance(size, list) and len(size) == 2 else [size]
    if not all(type(side) is int and side > 0 for side in sides):
        raise ValueError("must be a number of pixels greater than 0, or [height, width]")
    return size


Sides = Annotated[list[Size], Field(min_length=2, max_length=2)]
Area = Annotated[Size | Sides, BeforeValidator(_check_size)]


class Config(ModelConfig):
    """Sizes of a ViT. A sequence is the class token and the patches of an image, row by row."""

    inputs: ClassVar[tuple[str, ...]] = ("patches",)
    CAN: ClassVar[tuple[str, ...]] = ("reads_images",)
    summary_first: ClassVar[bool] = True
    own_kind: ClassVar[str] = "full"

    image_size: Area = Field(224, description="pixels of a square image's side, or [height, width]")
    patch_size: Area = Field(16, description="pixels of a square patch's side, or [height, width]")
    num_channels: Size = Field(3, description="1: grey; 3: red, green and blue")
    hidden_size: Size = Field(768, description="width of the residual stream")
    num_layers: Layers = Field(12, description="number of layers")
    num_heads: Size = Field(12, description="attention heads")
    intermediate_size: Size = Field(3072, description="width inside the feed-forward layers")
    hidden_act: Activation = "gelu"
    qkv_bias: bool = Field(True, description="whether queries, keys and values have a bias")
    dropout: Dropout = 0.0
    attention_dropout: AttentionDropout = 0.0
    norm_eps: float = Field(1e-12, gt=0, description="epsilon of the layer norms")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")
    pooler: bool = Field(
        False, description="a dense layer on the class token's state, as transformers' ViTModel has"
    )
    pooler_output_size: Size | None = Field(
        None, description="width of the pooler; default: hidden_size"
    )
    pooler_act: Literal["tanh", "gelu", "relu", "gelu_new"] = Field(
        "tanh", description="activation of the pooler"
    )

    def unread(self, model: "ModelSettings | None", objectives: "Objectives") -> Mapping[str, str]:
        names = [name for name in type(self).model_fields if name.startswith("pooler")]
        tunes = any(issubclass(made, Task) for made in objectives)
        return dict.fromkeys(names if tunes else (), "in a task, whose model has no pooler")

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        sides = zip(("height", "width"), self.image_shape, self.patch_shape, strict=False)
        for side, image, patch in sides:
            if image % patch:
                raise ValueError(
                    f"patch_size: a patch's {side} of {patch} does not divide the image's of "
                    f"{image}"
                )
        return self

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return (*_pair(self.image_size), self.num_channels)

    @property
    def patch_shape(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return _pair(self.patch_size)

    @property
    def num_patches(self) -> int:
        """The patches of an image."""
        (height, width, _), (rows, columns) = self.image_shape, self.patch_shape
        return height // rows * (width // columns)

    @property
    def max_positions(self) -> int:
        """The tokens of an image: the class token and the patches."""
        return 1 + self.num_patches

    def for_task(self) -> "Config":
        """Return the settings without the pooler, which transformers' classifier does not have."""
        return self.model_copy(update={"pooler": False})


def _pair(size: int | list[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width
