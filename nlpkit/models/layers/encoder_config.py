"""Settings that families with an encoder share. Importable without torch.

Defaults are those of BERT's base model (Devlin et al. 2018, arXiv 1810.04805) and of the original
Transformer's (Vaswani et al. 2017, arXiv 1706.03762); a family overrides what differs.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Layers, Size
from nlpkit.contracts.task import Task
from nlpkit.models.config import POST_NORM_RATE, Activation, AttentionDropout, Dropout, ModelConfig

if TYPE_CHECKING:
    from nlpkit.contracts.objective import ModelSettings, Objectives

# What `EncoderModel.encode` tells attention of the texts of a sequence, beside token types.
TEXT_FIELDS = frozenset({"token_type_ids", "text"})


class PostNormConfig(ModelConfig):
    """Sizes of a post-norm encoder; the vocabulary's comes from the tokenizer."""

    rate_share: ClassVar[float] = POST_NORM_RATE
    summary_first: ClassVar[bool] = True
    own_kind: ClassVar[str] = "full"
    task_tokens: ClassVar[tuple[str, str, str]] = ("[CLS]", "[SEP]", "[SEP]")

    hidden_size: Size = Field(768, description="width of the residual stream")
    num_layers: Layers = Field(12, description="number of layers")
    num_heads: Size = Field(12, description="attention heads")
    max_positions: Size = Field(512, description="learned positions: the longest sequence")
    hidden_act: Activation = "gelu"
    dropout: Dropout = 0.1
    attention_dropout: AttentionDropout = 0.1
    norm_eps: float = Field(1e-12, gt=0, description="epsilon of the layer norms")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")
    tie: bool = Field(True, description="whether one table serves for input and output")

    if TYPE_CHECKING:

        @property
        def intermediate_size(self) -> int: ...


class EncoderConfig(PostNormConfig):
    """Sizes of a post-norm encoder with token types."""

    CAN: ClassVar[tuple[str, ...]] = ("pairs", "languages", "scores_pairs")
    capability_settings: ClassVar[tuple[str, ...]] = ("type_vocab_size",)

    intermediate_size: Size = Field(3072, description="width inside the feed-forward layers")
    type_vocab_size: Size = Field(2, description="token types: texts of a sequence")

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inputs that `forward` requires."""
        return ("input_ids", "token_type_ids") if self.type_vocab_size > 1 else ("input_ids",)

    @property
    def capabilities(self) -> frozenset[str]:
        """See `ModelConfig`; a single token type tells no texts apart."""
        found = super().capabilities
        return found if self.type_vocab_size > 1 else found - {"pairs", "languages"}


class DetectorConfig(EncoderConfig):
    """Sizes of an encoder that, with a generator, tells the tokens which that replaced."""

    switch: ClassVar[str]  # the setting that is null without a generator
    of_generator: ClassVar[tuple[str, ...]]  # the settings that nothing else reads

    def unread(self, model: "ModelSettings | None", objectives: "Objectives") -> Mapping[str, str]:
        if not self.has_generator:
            names = [name for name in self.of_generator if name != self.switch]
            return dict.fromkeys(names, f"without {self.switch}")
        tunes = any(issubclass(made, Task) for made in objectives)
        return dict.fromkeys(self.of_generator if tunes else (), "in a task, without a generator")

    @property
    def has_generator(self) -> bool:
        """Whether there is a generator."""
        return self.setting(self.switch) is not None

    @property
    def num_generator_layers(self) -> int:
        """The number of the generator's layers; 0 without a generator."""
        if not self.has_generator:
            return 0
        return max(1, round(self.num_layers * self.setting("generator_layers")))

    @property
    def capabilities(self) -> frozenset[str]:
        """See `ModelConfig`; the discriminator's states tell replaced tokens, they predict none."""
        found = super().capabilities
        return found - {"predicts_tokens"} | {"generator"} if self.has_generator else found

    def for_task(self) -> Self:
        """Return the settings of the discriminator alone, which is what a task tunes."""
        return self.model_copy(update={self.switch: None})


class RobertaConfig(EncoderConfig):
    """Sizes of an encoder with RoBERTa's tokens and positions (Liu et al. 2019)."""

    task_tokens: ClassVar[tuple[str, str, str]] = ("<s>", "</s>", "</s>")
    delimiters: ClassVar[int] = 2  # Liu et al. 2019 put </s></s> between two texts
    mask_token: ClassVar[str] = "<mask>"

    norm_eps: float = Field(1e-5, gt=0, description="epsilon of the layer norms")
    padding_idx: int = Field(
        1,
        ge=0,
        description="id of the padding token, as in the tokenizer (bpe: 1; unigram, wordpiece: 0); "
        "positions are counted from the number after",
    )

    @property
    def position_rows(self) -> int:
        """The rows of the table of positions; those up to `padding_idx` are of no token."""
        return self.max_positions + self.padding_idx + 1


class EncoderDecoderConfig(ModelConfig):
    """Sizes of an encoder and a decoder; the recipe's `attention` is the decoder's own."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "source_ids", "source_lengths")
    CAN: ClassVar[tuple[str, ...]] = ("encodes_source",)

    hidden_size: Size = Field(512, description="width of the residual stream")
    num_layers: Layers = Field(
        6, description="layers of the decoder, and of the encoder by default"
    )
    encoder_layers: Layers | None = Field(
        None, description="layers of the encoder; null: num_layers"
    )
    num_heads: Size = Field(8, description="attention heads")
    intermediate_size: Size = Field(2048, description="width inside the feed-forward layers")
    dropout: Dropout = 0.1
    attention_dropout: AttentionDropout = 0.0
    tie: bool = Field(True, description="whether one table serves for input and output")

    @property
    def encoder_depth(self) -> int:
        """The layers of the encoder."""
        return self.encoder_layers or self.num_layers

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        """Return why the decoder cannot have this kind of attention, or None."""
        if choice.visibility != "causal":
            return "the decoder needs a kind that sees nothing to the right"
        return super().refuses_attention(choice)


class PostNormPairConfig(EncoderDecoderConfig):
    """Sizes of an encoder and a decoder with norms after the layers, and positions."""

    rate_share: ClassVar[float] = POST_NORM_RATE
    own_kind: ClassVar[str] = "causal"

    max_positions: Size = Field(512, description="the longest source and the longest target")
    hidden_act: Literal["relu", "gelu", "gelu_new", "swish"] = Field(
        "relu", description="activation, as transformers names it"
    )
    output_bias: bool = Field(False, description="whether each token has a bias in the output")
