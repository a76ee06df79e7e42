"""An encoder of images cut into patches (ViT; Dosovitskiy et al. 2020, arXiv:2010.11929)."""

from pydantic import Field, model_validator

from nlpkit.attention.contract import Choice
from nlpkit.models.config import ModelConfig

MODEL_TYPE = "vit"
DEFAULT_OBJECTIVE = "tests.parts.image_classes"
VOCABULARY = ()


class Config(ModelConfig):
    """Sizes. A sequence is the class token and the patches of an image, row by row."""

    inputs = ("patches",)

    image_size: int = Field(8, gt=0, description="height and width of an image, in pixels")
    patch_size: int = Field(2, gt=0, description="height and width of a patch, in pixels")
    channels: int = Field(1, gt=0, description="1: grey, 3: red, green and blue")
    hidden_size: int = Field(32, gt=0, description="width of the residual stream")
    num_layers: int = Field(2, gt=0, description="number of blocks")
    num_heads: int = Field(2, gt=0, description="attention heads")
    intermediate_size: int = Field(64, gt=0, description="width inside the feed-forward layers")
    norm_eps: float = Field(1e-12, gt=0, description="epsilon of the layer norms")
    dropout: float = Field(0.0, ge=0, lt=1, description="on what a sublayer adds")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        for name, by in (("hidden_size", "num_heads"), ("image_size", "patch_size")):
            if getattr(self, name) % getattr(self, by):
                raise ValueError(f"{by}: {getattr(self, by)} does not divide {name}")
        return self

    @property
    def default_attention(self) -> tuple[Choice, ...]:
        """Every patch sees every other of its image."""
        return (Choice.of("full"),)

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2
