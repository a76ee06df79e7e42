"""Settings that ModernBERT and its decoder have in common. Imports no torch.

The defaults are those of ModernBERT's base model (Warner et al. 2024, arXiv 2412.13663, table 4).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from nlpkit.config import Layers, Size
from nlpkit.models.config import Activation, AttentionDropout
from nlpkit.models.layers.alternating_config import AlternatingConfig

if TYPE_CHECKING:
    from nlpkit.contracts.objective import ModelSettings, Objectives


class ModernBertConfig(AlternatingConfig):
    """Sizes of a ModernBERT; the vocabulary's comes from the tokenizer."""

    task_tokens: ClassVar[tuple[str, str, str]] = ("[CLS]", "[SEP]", "[SEP]")
    padded_vocabulary: ClassVar[bool] = True
    default_types: ClassVar[tuple[bool, ...]] = (True, False, False)  # sec. 2.1.2
    default_window: ClassVar[int] = 64

    hidden_size: Size = Field(768, description="width of the residual stream")
    num_layers: Layers = Field(22, description="number of layers")
    num_heads: Size = Field(12, description="attention heads")
    intermediate_size: Size = Field(
        1152, description="width inside the feed-forward layers; their first matrix has it twice"
    )
    max_positions: Size = Field(8192, description="the longest sequence")
    hidden_act: Activation = "gelu"
    embedding_dropout: float = Field(0.0, ge=0, lt=1, description="on the embeddings")
    attention_dropout: AttentionDropout = Field(
        0.0, description="on the attention probabilities, and on what attention adds"
    )
    mlp_dropout: float = Field(0.0, ge=0, lt=1, description="inside the feed-forward layers")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")
    tie: bool = Field(True, description="whether one table serves for input and output")
    global_theta: float = Field(
        160000.0, gt=1, description="base of the rotary wavelengths of layers that see all tokens"
    )
    local_theta: float = Field(10000.0, gt=1, description="base in layers that see a window")

    def unread(self, model: "ModelSettings | None", objectives: "Objectives") -> Mapping[str, str]:
        """See `FrozenConfig`; `attention` and `num_layers` decide the types of layers."""
        types = model.layer_types if isinstance(model, ModernBertConfig) else (True, False)
        whole = {} if True in types else {"global_theta": "where all layers see a window"}
        return whole | ({} if False in types else {"local_theta": "where no layer sees a window"})

    @model_validator(mode="after")
    def _consistent(self) -> "ModernBertConfig":
        if self.width_per_head % 2:
            raise ValueError(
                f"num_heads: heads of hidden_size {self.hidden_size} are {self.width_per_head} "
                "wide, and rotary positions turn pairs of channels"
            )
        return self
