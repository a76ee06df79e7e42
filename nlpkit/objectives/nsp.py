"""Next sentence prediction (Devlin et al. 2018, arXiv:1810.04805, sec. 3.1, task 2).

`[CLS] A [SEP] B [SEP]`. A ends and B begins where a sentence does. B follows A in its document
(label 0), or is of another document (label 1), half of the time each, as transformers numbers them.

The cut and all lengths are drawn before the label, so they do not tell it: B has the length that
what follows A has, and only cuts are drawn for which the other document is long enough. Differs
from BERT, where a false B is longer than a true one at the end of a document. There a true B would
also end with a sentence, and a false one anywhere; so an example is a random window of its piece,
`TRIMMED` tokens shorter. Pieces overlap by these tokens, so that none is lost inside a document.

T tokens of an example's texts, D documents, I pieces, S sequences.
"""

from collections.abc import Mapping

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Field, FlaggedIds, Spans
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.examples.pairs import PairChoice, part, sentence_starts

TRIMMED, SHARE = 16, 8  # tokens by which a window is shorter than its piece; at most 1 / SHARE


class Config(FrozenConfig):
    """How text is cut into pairs."""

    max_length: int = Setting(512, ge=8, description="longest example, in tokens")


class Objective(PairChoice):
    """Examples and loss of next sentence prediction."""

    parts = ("nsp", "nsp_accuracy")
    label = "next_sentence_label"
    fields: Mapping[str, Field] = {
        **PairChoice.fields,
        "next_sentence_label": Field(np.int64, per="sequence", names=("is_next", "not_next")),
    }
    token_flags = ("sentence_start",)
    negatives = 1

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.window = config.max_length - self.extra
        sizes = np.arange(self.window, self.window + TRIMMED + 1)
        self.piece = int(sizes[_window(sizes) <= self.window].max())

    def spans(self, lengths: np.ndarray) -> Spans:
        return cut_overlapping(lengths, self.window, self.piece, self.min_piece)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        return _window(pieces) + self.extra

    def example(
        self, ids: FlaggedIds, rng: np.random.Generator, negatives: list[FlaggedIds]
    ) -> dict[str, np.ndarray]:
        """Return a pair, and whether its second text is of another document."""
        negative = negatives[0]
        size = int(_window(np.array(len(ids))))
        begin = int(rng.integers(len(ids) - size + 1))
        stop = begin + size
        cut, other = _cuts(ids, begin, stop, negative, rng)
        label = int(rng.integers(2))
        second = part(negative, other, other + stop - cut) if label else part(ids, cut, stop)
        example = self.joined((part(ids, begin, cut), second))
        return example | {"next_sentence_label": np.array([label])}


def _window(sizes: np.ndarray) -> np.ndarray:
    """Return how many tokens of pieces of these sizes an example has."""
    return sizes - np.minimum(TRIMMED, sizes // SHARE)


def _cuts(
    ids: FlaggedIds, begin: int, stop: int, negative: FlaggedIds, rng: np.random.Generator
) -> tuple[int, int]:
    """Return where the second text begins: in [begin, stop) of the piece, and in the negative.

    Both are beginnings of sentences, unless no two of them leave as many tokens in the negative as
    in the piece: then they are anywhere.
    """
    starts, others = sentence_starts(ids), sentence_starts(negative)
    longest = len(negative) - int(others[0]) if len(others) else 0
    possible = starts[(starts > begin) & (starts < stop) & (stop - starts <= longest)]
    if len(possible):
        cut = int(possible[rng.integers(len(possible))])
        others = others[: int(np.searchsorted(others, len(negative) - (stop - cut), side="right"))]
        return cut, int(others[rng.integers(len(others))])
    cut = int(rng.integers(max(begin + 1, stop - len(negative)), stop))
    return cut, int(rng.integers(len(negative) - (stop - cut) + 1))


def cut_overlapping(lengths: np.ndarray, step: int, size: int, min_size: int) -> Spans:
    """Return pieces of `size` tokens, one every `step` tokens of a document.

    A document's last piece is shorter, but longer than what overlaps. A document of fewer than
    `min_size` tokens is dropped, and so are a document's last tokens where nothing overlaps.
    """
    lengths = np.asarray(lengths, np.int64)
    count = np.maximum(1, -(-(lengths - max(size - step, min_size - 1)) // step))
    count[lengths < min_size] = 0
    document = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    start = (np.arange(len(document)) - np.repeat(first, count)) * step
    short = lengths < min_size
    dropped = {
        "documents_without_piece": int(short.sum()),
        "tokens_of_such_documents": int(lengths[short].sum()),
    }
    if lost := int((lengths - (count - 1) * step - size).clip(min=0)[~short].sum()):
        dropped["short_piece_tokens"] = lost
    return Spans(document, start, np.minimum(start + size, lengths[document]), dropped)
