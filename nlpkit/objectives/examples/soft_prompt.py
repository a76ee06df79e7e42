"""CPM-Ant's inputs: a soft prompt and text as context, and tokens or slots that are targets.

P tokens of a soft prompt, T tokens in all, M slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from nlpkit.contracts.abilities import Prompt, ScoringInput
from nlpkit.contracts.batch import IGNORE, Field
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.objectives.examples.text import lay_out

PROMPT_SEGMENT, INFILLING_SEGMENT, GENERATION_SEGMENT = 0, 1, 2
TASK_SEGMENTS = (INFILLING_SEGMENT, GENERATION_SEGMENT)
INPUTS: Mapping[str, Field] = {
    "input_ids": Field(np.int64),
    "segment": Field(np.int64),
    "position": Field(np.int64),
    "context": Field(np.bool_),
}


class Blocks(Protocol):
    """The index of the soft prompt of each kind of example."""

    @property
    def infilling(self) -> int: ...
    @property
    def generation(self) -> int: ...


class PromptSettings(ModelSettings, Protocol):
    """The settings of the model's `Config` that objectives with a soft prompt read."""

    @property
    def prompts(self) -> Blocks: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def prompt_types(self) -> int: ...


def text_frame(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the ids of `<s>` and `</s>`, the first and the last token of CPM-Ant's texts.

    Raises:
        ValueError: the tokenizer does not have both.
    """
    if tokenizer.bos_id is None or tokenizer.eos_id is None:
        raise ValueError(
            "tokenizer: this objective needs begin and end tokens; this tokenizer does not have "
            "both; use one of kind cpm_ant"
        )
    return tokenizer.bos_id, tokenizer.eos_id


def prompt_ids(number: int, vocab_size: int, model_config: PromptSettings) -> np.ndarray:
    """Return the ids (P,) of soft prompt `number`; they follow the vocabulary."""
    length = model_config.prompt_length
    return vocab_size + number * length + np.arange(length)


def make_example(
    soft: np.ndarray, ids: Sequence[np.ndarray | Sequence[int]], context: np.ndarray, segment: int
) -> dict[str, np.ndarray]:
    """Return the inputs and labels (T,) of text, of which `ids` has the parts.

    Its tokens are targets where `context` (T - P,) is False.
    """
    example = make_context(soft, np.concatenate(ids), segment)
    example["context"][len(soft) :] = context
    labels = np.full(len(example["input_ids"]), IGNORE)
    labels[:-1] = np.where(example["context"][1:], IGNORE, example["input_ids"][1:])
    return example | {"labels": labels}


def continue_text(
    soft: np.ndarray, bos_id: int, ids: Sequence[int], new_tokens: int, max_tokens: int
) -> Prompt:
    """Return soft prompt, `<s>` and text as context, followed by `new_tokens` slots.

    Text and slots have at most `max_tokens` tokens. A text that is too long loses its start.
    """
    kept = np.asarray(ids, np.int64)[max(len(ids) + new_tokens - max_tokens, 0) :]
    given = make_context(soft, np.concatenate([[bos_id], kept]), GENERATION_SEGMENT)
    size = len(given["input_ids"])
    source = np.full(new_tokens, -1)
    source[0] = size - 1
    slots = _targets(GENERATION_SEGMENT, size + np.arange(new_tokens))
    return Prompt(given, slots, source, kept, penalize_text=False, cut=len(ids) - len(kept))


def fill_blanks(
    soft: np.ndarray,
    frame: tuple[int, int],
    parts: Sequence[Sequence[int]],
    blanks: Sequence[int],
    max_tokens: int,
) -> Prompt:
    """Return soft prompt, `<s>`, text and `</s>` as context, and one slot for each blank token.

    `frame` has the ids of `<s>` and `</s>`. Positions count text and blanks. Text and slots have
    at most `max_tokens` tokens; a longer text loses its start, up to the first blank, then its end.

    Raises:
        ValueError: the text from the first blank to the last is too long.
    """
    text, is_blank, cut = lay_out(parts, blanks, max_tokens)
    hole = np.concatenate([[False], is_blank, [False]])
    given = make_context(soft, np.concatenate([frame[:1], text, frame[1:]]), INFILLING_SEGMENT)
    given["position"][len(soft) :] = len(soft) + np.flatnonzero(~hole)
    index = np.flatnonzero(hole)
    # The token before a hole is another hole or the last given token so far.
    given_so_far = np.cumsum(~hole)[index - 1]
    source = np.where(hole[index - 1], -1, len(soft) + given_so_far - 1)
    slots = _targets(INFILLING_SEGMENT, len(soft) + index)
    return Prompt(given, slots, source, text, penalize_text=False, open=False, cut=cut)


def hide_tokens(
    soft: np.ndarray, frame: Sequence[int], ids: np.ndarray, targets: Sequence[int], task: int
) -> ScoringInput:
    """Return soft prompt, `<s>` and text, in which the tokens `targets` are hidden.

    `frame` has the id of `<s>` and, if the text ends with it, of `</s>`; `task` is 0 for infilling
    and 1 for generation.
    """
    tokens = np.concatenate([frame[:1], ids, frame[1:]]).astype(np.int64)
    inputs = make_context(soft, tokens, TASK_SEGMENTS[task])
    index = np.asarray(targets)
    rows = len(soft) + index  # the token before: `<s>` is before the text's first token
    inputs["context"][rows + 1] = False
    return ScoringInput(inputs, rows, index)


def make_context(soft: np.ndarray, ids: np.ndarray, segment: int) -> dict[str, np.ndarray]:
    """Return the inputs (T,) of soft prompt and text that all tokens see."""
    segments = np.full(len(soft) + len(ids), segment)
    segments[: len(soft)] = PROMPT_SEGMENT
    return {
        "input_ids": np.concatenate([soft, ids]),
        "segment": segments,
        "position": np.arange(len(segments)),
        "context": np.ones(len(segments), np.bool_),
    }


def _targets(segment: int, position: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "segment": np.full(len(position), segment),
        "position": position,
        "context": np.zeros(len(position), np.bool_),
    }
