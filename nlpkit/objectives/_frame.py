"""The tokens that a family has before, between and after the texts of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nlpkit.objectives.contract import ModelSettings
    from nlpkit.tokenizers.contract import Extendable


class Frame:
    """The frame of sequences: start, delimiters between the texts, end."""

    def __init__(self, tokenizer: Extendable, model_config: ModelSettings):
        start, delimiter, end = model_config.task_tokens
        self.start = _ids(tokenizer, start)
        (self.delimiter,) = _ids(tokenizer, delimiter)
        self.between = (self.delimiter,) * model_config.delimiters
        self.summary = _ids(tokenizer, model_config.summary_token)
        self.end = (*_ids(tokenizer, end), *self.summary)

    def size(self, texts: int = 1) -> int:
        """Return the number of tokens around this number of texts."""
        return len(self.start) + len(self.between) * (texts - 1) + len(self.end)

    def ids(self, texts: Sequence[np.ndarray], dtype: type = np.int32) -> np.ndarray:
        """Return the ids (T,) of a sequence with these texts."""
        framed: np.ndarray = np.empty(self.size(len(texts)) + sum(map(len, texts)), dtype)
        at = len(self.start)
        framed[:at] = self.start
        for number, text in enumerate(texts):
            if number:
                framed[at : at + len(self.between)] = self.between
                at += len(self.between)
            framed[at : at + len(text)] = text
            at += len(text)
        framed[at:] = self.end
        return framed

    def types_of_one(self, size: int) -> np.ndarray:
        """Return the token types (T,) of a sequence of `size` tokens with one text."""
        types = np.zeros(size, np.int64)
        if self.summary:
            types[-1] = 2
        return types

    def types(self, ids: np.ndarray) -> np.ndarray:
        """Return the token types (T,): 0 up to the first delimiter, then 1 (Devlin et al. 2018).

        A summary token behind the texts has type 2 (Yang et al. 2019).
        """
        ends = ids == self.delimiter
        types = (np.cumsum(ends) - ends).clip(max=1).astype(np.int64)
        if self.summary:
            types[-1] = 2
        return types


def tokens(model_config: ModelSettings) -> tuple[str, ...]:
    """Return the frame's tokens, which the vocabulary must have."""
    named = (*model_config.task_tokens, model_config.summary_token)
    return tuple(dict.fromkeys(filter(None, named)))


def _ids(tokenizer: Extendable, token: str) -> tuple[int, ...]:
    """Return the id of a token, or () if there is none."""
    if not token:
        return ()
    found = tokenizer.special_id(token)
    assert found is not None  # `tokens` asked for it
    return (found,)
