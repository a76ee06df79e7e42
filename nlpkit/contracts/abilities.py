"""What only some objectives can do: continue or score a text, fill in blanks, do without labels.

An objective with a method of one of these classes has all its members.

T given tokens, M new tokens or targets, S source tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from nlpkit.json_types import JsonObject

if TYPE_CHECKING:
    from nlpkit.contracts.reader import Row

DEFAULT_NEW_TOKENS = 128
# What an objective has that takes these abilities from another one.
MEMBERS = (
    *("continue_text", "max_length", "eos_token_ids", "suppress_tokens", "drop_unknown"),
    *("encode_input", "max_new_tokens", "source_front", "sample_input", "decode_output"),
    "fill_blanks",
)


@dataclass(frozen=True)
class Prompt:
    """The input of generation: T given tokens and M slots for new tokens.

    Slot m is predicted from the state of the slot before it or of a given token
    (`predicted_from`). `source` has the S source tokens of an encoder-decoder model.
    """

    given: Mapping[str, np.ndarray]  # inputs of the model's `forward`, (T,) each
    slots: Mapping[str, np.ndarray]  # inputs of the new tokens, (M,) each, without `input_ids`
    predicted_from: np.ndarray  # (M,) int64: index in `given`, or -1: the slot before
    text: np.ndarray  # ids of the text in `given`, without prompts and special tokens
    open: bool = True  # whether an end token may stop it before its last slot
    cut: int = 0  # tokens of the text that did not fit and were removed
    source: Mapping[str, np.ndarray] = field(default_factory=dict)  # inputs of `forward`, (S,)
    penalize_text: bool = True  # whether a repetition penalty counts `text` beside the output


@runtime_checkable
class Continues(Protocol):
    """The method by which a class is known to be `Generative`."""

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the prompt for a text, with `new_tokens` (< `max_length`) slots.

        Raises:
            ValueError: the objective cannot predict anything from this text.
        """


@runtime_checkable
class Generative(Continues, Protocol):
    """The additional members of an objective whose model can generate text."""

    max_length: int  # the largest sum of given and new tokens
    eos_token_ids: tuple[int, ...]  # tokens that end a text
    suppress_tokens: tuple[int, ...]  # tokens that were never targets and are not generated
    drop_unknown: bool


@runtime_checkable
class EncodesInput(Protocol):
    """The additional method of an objective whose input is not one text as it is."""

    def encode_input(self, text: str) -> list[int]:
        """Return the ids of an input, with what the objective puts in front of or inside it."""


@runtime_checkable
class ReadsSource(EncodesInput, Protocol):
    """The additional members of an objective whose model reads the input as a source sequence."""

    max_new_tokens: int  # the largest number of new tokens; `max_length` is that of the source
    source_front: tuple[int, ...]  # tokens before each source


@runtime_checkable
class DecodesOutput(Protocol):
    """The additional members of an objective whose outputs are more than text: sentinels."""

    sample_input: str  # an input, for those who try the model

    def decode_output(self, ids: Sequence[int]) -> str:
        """Return the output of generated tokens."""


@runtime_checkable
class Filling(Protocol):
    """The additional method of an objective whose model can fill in blanks."""

    def fill_blanks(self, parts: Sequence[Sequence[int]], blanks: Sequence[int]) -> Prompt:
        """Return the prompt for the ids before, between and after blanks.

        `blanks` has the number of tokens of each blank.

        Raises:
            ValueError: the text is too long.
        """


@runtime_checkable
class AnswersUnlabelled(Protocol):
    """The additional method of a task that can answer rows without labels."""

    def stand_in(self, row: Row) -> JsonObject:
        """Return a valid label, by column, for a row that has none; its answer is not read.

        Raises:
            RowError: the row lacks more than the label.
        """


@dataclass(frozen=True)
class ScoringInput:
    """A sequence of T input tokens with which M tokens of a text are scored."""

    inputs: Mapping[str, np.ndarray]  # of the model's `forward`, (T,) each
    rows: np.ndarray  # (M,) index of the input token whose state predicts the target
    targets: np.ndarray  # (M,) index of the target among the text's tokens


@runtime_checkable
class ScoresText(Protocol):
    """The method by which a class is known to be `Scoring`."""

    def score_text(
        self, ids: np.ndarray, words: np.ndarray, given: int, method: str
    ) -> list[ScoringInput]:
        """Return the inputs that score the tokens of a text after the first `given` ones.

        Each token is a target at most once; one without any context, such as the first token where
        texts have no begin token, is no target. `words` (T,) has the number of each token's word.
        """


@runtime_checkable
class Scoring(ScoresText, Protocol):
    """The additional members of an objective whose model can score a text: log-probabilities."""

    scoring_methods: tuple[str, ...]  # the first is the default for whole texts
    answer_method: str  # the default for a text behind a given one, such as an answer to a prompt
    max_text: int  # the largest number of tokens of a text in a sequence of `config.max_length`
    config: Any
    drop_unknown: bool
