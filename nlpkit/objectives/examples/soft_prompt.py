"""CPM-Ant's inputs: a soft prompt and text as context.

P tokens of a soft prompt, T tokens in all.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from nlpkit.contracts.batch import Field
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Tokenizer

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
