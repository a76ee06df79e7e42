"""The base of every family's `Config`: its kinds of attention and its capabilities.

An objective lists what it needs of a model in `needs`: settings of the family's `Config`, or words
of `CAPABILITIES`.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import LAYOUT_FIELDS, Visibility
from nlpkit.contracts.model import Family

CAPABILITIES = {
    "causal": "a state depends only on its own token and the tokens to its left",
    "prefix": "as causal, but every token also sees all tokens of a context",
    "bidirectional": "a state depends on all tokens of its sequence",
    "pairs": "a sequence may consist of two texts, which token types distinguish",
    "encodes_source": "the model reads a source sequence and predicts a target sequence",
    "languages": "token types, or embeddings of languages, tell the languages of texts apart",
    "context_free": "a state depends on its own token alone",
    "given_positions": "positions may be given, so that they restart within a sequence",
    "ranges": "a token sees the range of its sequence that the objective gives (`seen_range`)",
    "full_sequences": "all tokens of some sequences see all of them (`hybrid`)",
    "has_vocabulary": "the model reads and predicts tokens",
    "predicts_tokens": "the states that the model returns predict tokens",
    "scores_pairs": "a head scores sequences of two texts",
    "begins_with_token": "a special token stands before the texts of a sequence",
    "two_streams": "a second stream of states predicts a token without its content",
    "generator": "a second, smaller model fills in masked tokens",
    "reads_images": "the model reads images, cut into patches",
    "two_vocabularies": "sources may have a vocabulary of their own",
}
OF_FIELDS = {"ranges": {"first", "last"}, "full_sequences": {"full"}}  # that all kinds read

# Settings that families have in common.
Activation = Annotated[
    Literal["gelu", "relu", "gelu_new"],
    Field(description="activation, as transformers names it; gelu_new: the tanh form of gelu"),
]
Dropout = Annotated[
    float, Field(ge=0, lt=1, description="on the embeddings and on what the layers add")
]
AttentionDropout = Annotated[
    float, Field(ge=0, lt=1, description="on the attention probabilities; not every backend can")
]

# `rate_share` of post-norm models: GPT-1, 256 wide, learns best at 8e-4 and nothing at 2e-3.
POST_NORM_RATE = 0.4


def check_heads(num_heads: int, hidden_size: int, other: str = "") -> None:
    """Raise `ValueError` if the width is no multiple of the heads.

    The message names a number that fits; `other` is the end of it, another remedy.
    """
    if hidden_size % num_heads:
        divisors = [n for n in range(1, hidden_size + 1) if hidden_size % n == 0]
        best = min(divisors, key=lambda n: abs(n - num_heads))
        raise ValueError(
            f"num_heads: {num_heads} does not divide hidden_size {hidden_size}; try {best}{other}"
        )


class ModelConfig(FrozenConfig):
    """The base of every family's `Config`; a family overrides what differs."""

    if TYPE_CHECKING:  # settings of families with layers

        @property
        def hidden_size(self) -> int: ...
        @property
        def num_layers(self) -> int: ...
        @property
        def num_heads(self) -> int: ...

    # Fields of the batch that `forward` passes to attention.
    ATTENTION_FIELDS: ClassVar[frozenset[str]] = frozenset()
    inputs: ClassVar[tuple[str, ...]] = ("input_ids",)  # required by `forward`
    # Words of `CAPABILITIES` that hold with all settings. A family that reads images has
    # `image_shape` and `patch_shape`.
    CAN: ClassVar[tuple[str, ...]] = ()
    capability_settings: ClassVar[tuple[str, ...]] = ()  # settings that decide the capabilities
    # The tokens that a state depends on in a family without attention, such as a recurrent one.
    visibility: ClassVar[Visibility | None] = None
    # Tokens before, between and after the texts of a task (Radford et al. 2018, sec. 3.3). The
    # first may be "": none.
    task_tokens: ClassVar[tuple[str, str, str]] = ("_start_", "_delimiter_", "_classify_")
    delimiters: ClassVar[int] = 1  # how often the second one stands between two texts
    summary_token: ClassVar[str] = ""  # behind the last of them, if the family has such a token
    summary_first: ClassVar[bool] = False  # whether the first token's state summarizes a sequence
    mask_token: ClassVar[str] = "[MASK]"  # stands for a token that is to be predicted
    target_tokens: ClassVar[tuple[str, str]] = ("<pad>", "</s>")  # begin and end a target sequence
    instead_of_heads: ClassVar[str] = ""  # what else helps where heads do not divide the width
    own_kind: ClassVar[str] = ""  # of attention, in all layers, if the recipe names none
    # Width for each layer of a model made to a size (`model.size`, `model.depth`).
    width_per_layer: ClassVar[int] = 64
    # Its learning rate, as a share of that of a pre-norm decoder of this width.
    rate_share: ClassVar[float] = 1.0
    # Whether released models have more rows than tokens, for speed on TPUs; these rows are cut.
    padded_vocabulary: ClassVar[bool] = False
    # Of targets of a source, unless the objective says otherwise (Szegedy et al. 2016, sec. 7).
    label_smoothing: ClassVar[float] = 0.0

    # The run's, not the recipe's, as the size of any vocabulary; `vocab_size` is the targets'.
    source_vocab_size: SkipJsonSchema[int | None] = Field(
        None, exclude=True, description="tokens of sources with a vocabulary of their own"
    )
    attention: SkipJsonSchema[tuple[AttentionChoice, ...]] = Field(
        (), exclude=True, description="kinds, repeated over the layers; the recipe's section"
    )

    @property
    def state_size(self) -> int:
        """Width of the states that the model returns."""
        return self.hidden_size

    @property
    def width_per_head(self) -> int:
        """Width of a head of attention."""
        return self.setting("head_dim") or self.hidden_size // self.num_heads

    @property
    def position_limit(self) -> int | None:
        """The most tokens of a sequence that the model has positions for; None: no limit."""
        return getattr(self, "max_positions", None)

    @property
    def dropout_of_attention(self) -> float:
        """The dropout rate of the probabilities of attention."""
        return float(self.setting("attention_dropout", 0.0))

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Raise `TypeError` for a word that is none, or that is a member in place of a word."""
        super().__pydantic_init_subclass__(**kwargs)
        words = CAPABILITIES.keys()
        if wrong := {*cls.CAN} - words | vars(cls).keys() & words:
            raise TypeError(f"{min(wrong)}: `CAN` lists the capabilities; {', '.join(words)}")

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        has_own = type(self).width_per_head is not ModelConfig.width_per_head
        if not has_own and self.setting("head_dim") is None and self.setting("num_heads"):
            check_heads(self.num_heads, self.hidden_size, self.instead_of_heads)
        return self

    def can(self, word: str) -> bool:
        """Return whether the model has a capability."""
        return word in self.capabilities

    @property
    def capabilities(self) -> frozenset[str]:
        """The words of `CAPABILITIES` that hold with these settings."""
        family, kinds = sys.modules[type(self).__module__], self.kinds
        found = {*self.CAN, *(["begins_with_token"] if self.task_tokens[0] else [])}
        if vars(family).get("VOCABULARY", Family.VOCABULARY):
            found |= {"has_vocabulary", "predicts_tokens"}
        seen = {kind.visibility for kind in kinds} if kinds else {self.visibility}
        if len(seen) == 1:
            found |= {each for each in seen if each is not None}
        read = self.ATTENTION_FIELDS.intersection(*(kind.module.FIELDS for kind in kinds))
        found |= {word for word, fields in OF_FIELDS.items() if kinds and fields <= read}
        return frozenset(found)

    def for_task(self) -> "ModelConfig":
        """Return the settings of the model that a task tunes, without what only pretraining has."""
        return self

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """The kinds of attention if the recipe names none; empty in a family without attention."""
        return (AttentionChoice.of(self.own_kind),) if self.own_kind else ()

    @property
    def kinds(self) -> tuple[AttentionChoice, ...]:
        """The kinds of attention, repeated over the layers.

        Settings that are null there are those of the family: see `AttentionChoice.with_defaults`.
        """
        return tuple(map(self._with_defaults, self.attention)) or self.default_attention

    def _with_defaults(self, choice: AttentionChoice) -> AttentionChoice:
        return choice.with_defaults(self.default_attention[0].visibility, self.position_limit)

    @property
    def has_default_attention(self) -> bool:
        """Whether attention is the family's own where the kinds' optional fields are absent."""
        own = {choice.module.KERNEL for choice in self.default_attention}
        return all(
            own == {kernel} and kernel is not None
            for kernel in (choice.module.KERNEL_WITHOUT_FIELDS for choice in self.attention)
        )

    @property
    def attention_length(self) -> int | None:
        """The most tokens of a sequence that the kinds of attention allow; None: no limit."""
        bounded = [choice.config for choice in self.kinds if choice.is_bounded]
        return min((config.max_length for config in bounded), default=None)

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        """Return why the family cannot have this kind of attention, or None."""
        if not self.default_attention:
            return "the family has no attention to choose; remove the section attention"
        kind = choice.module
        missing = kind.required_fields(choice.config) - {*LAYOUT_FIELDS} - self.ATTENTION_FIELDS
        if missing:
            return f"it reads {', '.join(sorted(missing))}, which the family does not provide"
        dropout = self.dropout_of_attention
        if dropout and choice.is_custom and not kind.DROPOUT:
            return (
                f"it has no probabilities for dropout, and model.attention_dropout is {dropout}; "
                "set that to 0.0"
            )
        if choice.is_bounded and self._with_defaults(choice).config.max_length is None:
            return "the family has no longest sequence; set attention.max_length"
        return choice.refuses_heads(self.num_heads, self.setting("num_key_heads"))
