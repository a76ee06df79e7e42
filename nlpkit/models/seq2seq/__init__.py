"""Settings of a recurrent encoder and decoder (Sutskever et al. 2014; Cho et al. 2014).

The encoder makes a context vector c of the source: its last state. `context` says how the decoder
gets it, and `previous_output` whether a step also reads the token before. With a `score`, c is
computed anew for each step, by attention to all states of the encoder. So the textbook models are

- c as the first state only: `context: initial_state, previous_output: false`
- c as the input of each step: `context: every_step, previous_output: false`, where the decoder may
  have its own first state: `first_state: learned`
- c and the previous output at each step: `context: every_step`
- Sutskever et al. 2014 (arXiv:1409.3215): `context: initial_state`
- Cho et al. 2014 (arXiv:1406.1078): `context: both, cell: gru, reset: before, joined: maxout`
- Bahdanau et al. 2014 (arXiv:1409.0473): `context: both, score: additive, num_directions: 2`, the
  cell and `joined` as Cho's
- Luong et al. 2015 (arXiv:1508.04025): `context: initial_state` with a `score`

The layout on disk is nlpkit's own.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Layers, Size
from nlpkit.models.layers.recurrent_config import RESET_OF_GRU, Cell, CellsConfig, Reset

MODEL_TYPE = "seq2seq"  # in config.json; transformers has no such family
DEFAULT_OBJECTIVE = "seq2seq"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "output_embedding", "token_bias")  # first dimension: vocabulary


class Config(CellsConfig):
    """Sizes, how the decoder gets the context, and attention; lengths are not limited."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "source_ids", "source_lengths")
    CAN: ClassVar[tuple[str, ...]] = ("encodes_source", "two_vocabularies")
    target_tokens: ClassVar[tuple[str, str]] = ("<s>", "</s>")
    visibility = "causal"
    width_per_layer: ClassVar[int] = 256

    cell: Cell = Field("lstm", description="of encoder and decoder: rnn, lstm or gru")
    reset: Reset = Field("after", description=RESET_OF_GRU)
    hidden_size: Size = Field(
        500, description="width of the decoder's states, and of each direction's"
    )
    num_layers: Layers = Field(2, description="layers of the encoder, and of the decoder")
    num_directions: Literal[1, 2] = Field(
        1, description="of the encoder; 2: another one reads from the right"
    )
    context: Literal["initial_state", "every_step", "both"] = Field(
        "initial_state", description="how the decoder gets the context vector of the source"
    )
    first_state: Literal["zeros", "learned"] = Field(
        "zeros",
        description="the decoder's first state where context is every_step, so that it is not the "
        "encoder's last one; learned: one for all sources",
    )
    previous_output: bool = Field(
        True, description="whether each step of the decoder reads the token before"
    )
    score: Literal["dot", "general", "additive"] | None = Field(
        "general",
        description="of attention to the source: Luong's dot or general, additive (Bahdanau's, "
        "Luong's concat); null: no attention",
    )
    window: Literal["global", "local_m", "local_p"] = Field(
        "global",
        description="what attention sees: the whole source, or Luong's window around the same "
        "position (local_m) or a predicted one (local_p)",
    )
    window_size: Size = Field(
        10, description="D of a local window: positions to each side of its centre"
    )
    input_feeding: bool = Field(
        False, description="whether a step reads the attentional state of the step before (Luong)"
    )
    joined: Literal["tanh", "concat", "sum", "maxout"] = Field(
        "tanh",
        description="what predicts a token, from attention's context c and the state h: "
        "tanh(W [c; h]) (Luong), [c; h] itself, or c + h; maxout, also without attention: the "
        "larger one of each two numbers of W [c; h; the token before] (Cho, Bahdanau)",
    )
    dropout: float = Field(
        0.2, ge=0, lt=1, description="on embeddings, between layers and on the last states"
    )

    def refuses_attention(self, choice: AttentionChoice) -> str:
        how = "model.score and model.window set the attention to the source"
        return f"{how}; remove the section attention"

    def without_effect(self) -> dict[str, str]:
        unread = {
            "window_size": (self.window == "global", "with window global"),
            "reset": (self.cell != "gru", f"with cell {self.cell}"),
            "first_state": (self.context != "every_step", f"with context {self.context}"),
            "joined": (not self.joins_context, "with score null"),
        }
        return {name: why for name, (is_unread, why) in unread.items() if is_unread}

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.score is None and (self.window != "global" or self.input_feeding):
            which = "input_feeding" if self.input_feeding else f"window {self.window}"
            raise ValueError(f"score: {which} needs attention; set dot, general or additive")
        if self.score == "dot" and self.num_directions == 2:
            raise ValueError(
                "score: dot needs encoder states as wide as the decoder's; "
                "set num_directions: 1, or score: general"
            )
        if self.score is not None and self.joined == "sum" and self.num_directions == 2:
            raise ValueError(
                "joined: sum needs encoder states as wide as the decoder's; "
                "set num_directions: 1, or joined: concat"
            )
        return self

    @property
    def source_size(self) -> int:
        """Width of the encoder's states, of both directions together."""
        return self.num_directions * self.hidden_size

    @property
    def step_size(self) -> int:
        """Width of what a step of the decoder reads; 1, a constant, where it reads nothing."""
        width = self.input_size if self.previous_output else 0
        width += self.source_size if self.context != "initial_state" else 0
        width += self.output_size if self.input_feeding else 0
        return width or 1

    @property
    def output_size(self) -> int:
        """Width of what predicts a token."""
        concatenated = self.score is not None and self.joined == "concat"
        return self.hidden_size + (self.source_size if concatenated else 0)

    @property
    def joins_context(self) -> bool:
        """Whether a context stands beside the state before the output: attention's, or c."""
        return self.score is not None or self.joined == "maxout"

    @property
    def attends_before(self) -> bool:
        """Whether attention goes by the state before a step, whose input it is (Bahdanau)."""
        return self.score is not None and self.context != "initial_state"
