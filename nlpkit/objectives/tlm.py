"""Translation language modelling (XLM, Lample and Conneau 2019, arXiv:1901.07291, sec. 3.4).

`[CLS] A [SEP] B [SEP]`: a sentence and its translation (`data.format: parallel`), masked as in
`mlm`, so that a token is predicted from both languages. Positions restart at the translation. Token
types are the languages: 0 the source's files, 1 the target's; they are the language embedding.
A pair that is too long is dropped, because what is left of it would not be a translation.

T tokens of an example, D pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field as Setting

from nlpkit.data.marks import Marked
from nlpkit.errors import DataError
from nlpkit.objectives._masking import Masking, Rates
from nlpkit.objectives._pairs import Pairing, part
from nlpkit.objectives.contract import Field, Spans


class Config(Rates):
    """How many tokens are targets, and what becomes of them."""

    max_length: int = Setting(256, ge=5, description="longest example, in tokens")


class Objective(Masking, Pairing):
    """Examples and loss of translation language modelling."""

    inputs = ("input_ids", "token_type_ids", "position_ids")
    fields: Mapping[str, Field] = {**Masking.fields, "position_ids": Field(np.int64)}
    needs = ("bidirectional", "pairs", "given_positions")
    marks = ("second_side",)

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return each pair that is short enough as one piece."""
        lengths = np.asarray(lengths, np.int64)
        long = lengths > self.config.max_length - self.extra
        (document,) = np.nonzero(~long & (lengths >= self.min_piece))
        dropped = {
            "pairs_too_long": int(long.sum()),
            "pairs_without_text": int((lengths < self.min_piece).sum()),
        }
        return Spans(document, np.zeros(len(document), np.int64), lengths[document], dropped)

    def example(self, ids: Marked, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return both texts of a pair, masked.

        Raises:
            DataError: the document is no pair.
        """
        second = ids.has("second_side")
        cut = len(ids) - int(second.sum())
        if cut == len(ids):
            raise DataError(
                "objective: tlm reads pairs of a text and its translation; set data.format: "
                "parallel and name both files"
            )
        example = self.joined((part(ids, 0, cut), part(ids, cut, len(ids))))
        position = np.arange(len(example["input_ids"]))
        position[cut + 2 :] -= cut + 2
        return self.masked(example | {"position_ids": position}, rng)
