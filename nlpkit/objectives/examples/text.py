"""The base of objectives on running text: documents are cut into pieces, all of one length.

I pieces, D documents.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nlpkit.contracts.batch import Spans
from nlpkit.contracts.objective import ModelSettings, Objective

if TYPE_CHECKING:
    from nlpkit.contracts.tokenizer import Tokenizer


class TextObjective(Objective):
    """An optional base class of objectives on running text, with the usual default values.

    Each document is cut into pieces of `max_length` - `extra` tokens, where `extra` is the number
    of additional tokens of an example. A last piece shorter than `min_piece` is dropped.
    """

    extra = 0
    min_piece = 1

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: ModelSettings):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions.
        """
        super().__init__(config, tokenizer, model_config)
        check_length(config.max_length, model_config)

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the pieces of documents of these `lengths` (D,)."""
        return cut_documents(lengths, self.config.max_length - self.extra, self.min_piece)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,)."""
        return pieces + self.extra


def cut_documents(lengths: np.ndarray, size: int, min_size: int) -> Spans:
    """Return pieces of `size` tokens; a document's last one is dropped if below `min_size`."""
    lengths = np.asarray(lengths, np.int64)
    full, remainder = np.divmod(lengths, size)
    kept = full + (remainder >= min_size)
    document = np.repeat(np.arange(len(kept)), kept)
    first = np.cumsum(kept) - kept
    start = (np.arange(len(document)) - np.repeat(first, kept)) * size
    stop = np.minimum(start + size, lengths[document])
    short = (remainder > 0) & (remainder < min_size)
    dropped = {
        "short_pieces": int(short.sum()),
        "short_piece_tokens": int(remainder[short].sum()),
        "documents_without_piece": int((kept == 0).sum()),
    }
    return Spans(document, start, stop, dropped)


def longest_sequence(model_config: object) -> float:
    """Return the most tokens of a sequence that a model takes; infinite if any number."""
    limits = [getattr(model_config, name, None) for name in ("max_positions", "attention_length")]
    return min((limit for limit in limits if limit is not None), default=math.inf)


def check_length(max_length: int, model_config: object) -> None:
    """Raise `ValueError` if examples of `max_length` are longer than `model.max_positions`.

    A family without this setting accepts sequences of any length.
    """
    limit = getattr(model_config, "max_positions", None)
    if limit is not None and max_length > limit:
        raise ValueError(
            f"objective.max_length: {max_length} is more than model.max_positions {limit}; "
            "lower the one or raise the other"
        )
    limit = getattr(model_config, "attention_length", None)
    if limit is not None and max_length > limit:
        raise ValueError(
            f"objective.max_length: {max_length} is more than attention.max_length {limit}; "
            "lower the one or raise the other"
        )
