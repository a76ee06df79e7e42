"""Sentence order prediction (ALBERT, Lan et al. 2020, arXiv:1909.11942, sec. 3.1).

A document is cut into pieces of whole sentences, a piece into two texts where a sentence begins:
`[CLS] A [SEP] B [SEP]`. They are in order (label 0) or swapped (label 1), half of the time each, as
transformers numbers them. Both texts are always of the same document, so a wrong order is never a
negative pair of `nsp` (google-research/albert#234).

With `segments: k` a piece is cut into k texts, and the label is one of k! orders: text i of the
example was text `names[label][i]` of the piece. (StructBERT, Wang et al. 2019, arXiv:1908.04577,
has pairs in three orders.)

T tokens of a piece, S sequences, K orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Batch, Field, FlaggedIds, Spans
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.errors import UsageError
from nlpkit.objectives.examples.pairs import PairChoice, part, sentence_starts

if TYPE_CHECKING:
    import torch
    from torch import nn


HEAD = "sentence_order"


class Config(FrozenConfig):
    """How text is cut, and how many texts are ordered."""

    max_length: int = Setting(512, ge=8, description="longest example, in tokens")
    segments: int = Setting(2, ge=2, le=5, description="texts whose order is predicted")


class Objective(PairChoice):
    """Examples and loss of sentence order prediction."""

    parts = ("sop", "sop_accuracy")
    label = "sentence_order_label"
    fields: Mapping[str, Field] = {
        **PairChoice.fields,
        "sentence_order_label": Field(np.int64, per="sequence"),
    }
    token_flags = ("sentence_start",)
    cut_at = "sentence_start"

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.extra = self.frame.size(config.segments)
        self.orders = list(permutations(range(config.segments)))
        names: tuple[str, ...] = ("in_order", "swapped")
        if config.segments > 2:
            names = tuple("".join(map(str, order)) for order in self.orders)
            self.needs = (*self.needs, "hidden_size")
        label = Field(np.int64, per="sequence", names=names)
        self.fields = {**self.fields, "sentence_order_label": label}

    def heads(self) -> dict[str, nn.Module]:
        if self.config.segments == 2:
            return {}  # the family has a layer that tells two orders
        from torch import nn

        size = self.model_config.state_size
        layer = nn.Linear(size, len(self.orders))
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
        return {HEAD: layer}

    def spans(self, lengths: np.ndarray) -> Spans:
        raise UsageError("objective: sop cuts text at sentences, and needs their token flags")

    def spans_cut_at(self, lengths: np.ndarray, starts: np.ndarray) -> Spans:
        """Return pieces of whole sentences, which begin at `starts` in all documents as one."""
        size = self.config.max_length - self.extra
        return cut_sentences(lengths, starts, size, self.config.segments)

    def example(self, ids: FlaggedIds, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the texts of a piece in a random order, and which one that is."""
        count = self.config.segments
        starts = sentence_starts(ids)
        inner = starts[starts > 0]
        if len(inner) < count - 1:  # not a piece of `spans_cut_at`
            inner = np.arange(1, len(ids))
        cuts = np.sort(rng.permutation(inner)[: count - 1]).tolist()
        texts = [part(ids, begin, end) for begin, end in pairwise([0, *cuts, len(ids)])]
        label = int(rng.integers(len(self.orders)))
        example = self.joined([texts[number] for number in self.orders[label]])
        return example | {"sentence_order_label": np.array([label])}

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        order = self.orders[int(example["sentence_order_label"][0])]
        texts = self.frame.texts(example["input_ids"], len(order))
        return [texts[order.index(number)] for number in range(len(order))]

    def logits(self, model: Any, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        if len(self.orders) == 2:
            return super().logits(model, hidden, batch)
        return model.objective_heads[HEAD](model.summary(hidden, batch.lengths))


def cut_sentences(lengths: np.ndarray, starts: np.ndarray, size: int, min_sentences: int) -> Spans:
    """Return pieces of whole sentences of a document: as many as fit in `size` tokens.

    `starts` are where sentences begin in all documents as one. A sentence of more than `size`
    tokens is dropped, and so are pieces of fewer than `min_sentences`, such as a single sentence
    between two long ones.
    """
    lengths = np.asarray(lengths, np.int64)
    ends_of_documents = np.cumsum(lengths)
    # A document begins with a sentence, also where its first characters gave no token.
    begins = np.union1d(starts, (ends_of_documents - lengths)[lengths > 0])
    stops = np.append(begins[1:], ends_of_documents[-1:])
    document = np.searchsorted(ends_of_documents, begins, side="right")
    last_of_document = np.searchsorted(document, document, side="right").tolist()
    fitting = np.searchsorted(stops, begins + size, side="right").tolist()
    first, found, few, long = 0, [], 0, 0
    while first < len(begins):
        last = min(fitting[first], last_of_document[first])
        if last == first:
            long, last = long + 1, first + 1
        elif last - first < min_sentences:
            few += last - first
        else:
            found.append((first, last))
        first = last
    chosen = np.array(found, np.int64).reshape(-1, 2)
    documents = document[chosen[:, 0]]
    before = (ends_of_documents - lengths)[documents]
    dropped = {"sentences_too_long": long, "sentences_without_another": few}
    start, stop = begins[chosen[:, 0]] - before, stops[chosen[:, 1] - 1] - before
    return Spans(documents, start, stop, dropped)
