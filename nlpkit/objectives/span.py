"""Span masking with the span boundary objective (SpanBERT, Joshi et al. 2020, arXiv:1907.10529).

Spans of whole words are targets until they have the `rate` of the tokens. Their lengths in words
are geometric, at most `longest`; their places are uniform, and a word at least is between two of
them. All tokens of a span share one fate: the mask token, random tokens, or their own (sec. 3.1).
The second term, `sbo`, predicts each token of a span from the states at both sides of the span and
the place in it, by two layers with GELU and norm (eq. 1, sec. 3.2), then by the model's output
layers, as `mlm` does. Differs from SpanBERT: there the two layers have an output bias of their own
instead, the last span is cut where the rate is reached, and spans may touch.

M tokens of text, W words, U spans, K targets with a boundary on both sides, C hidden_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field as Setting

from nlpkit.contracts.batch import IGNORE, Batch, Field, Loss, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.examples.masking import (
    NEVER,
    Drawn,
    MaskConfig,
    TextMasking,
    number_words,
    rank_units,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


HEAD = "span_boundary"
PLACES, PLACE_SIZE = 20, 200  # tokens of a span that `sbo` predicts, size of their embeddings
MORE = 1.5  # more spans are placed than are needed, because words differ in their tokens


class Config(MaskConfig):
    """How text is cut, which spans are targets, and what becomes of them."""

    rate: float = Setting(0.15, gt=0, le=0.5, description="share of the tokens that are targets")
    final_rate: float | None = Setting(
        None,
        gt=0,
        le=0.5,
        description="rate at the end of the run; it changes linearly from `rate`, and the held-out "
        "loss always has this one; default: `rate`",
    )
    p: float = Setting(
        0.2, gt=0, lt=1, description="of the geometric distribution of lengths, in words"
    )
    longest: int = Setting(10, ge=1, description="longest span, in words")
    boundary_weight: float = Setting(
        1.0, ge=0, description="of the span boundary objective; 0: the model has no head for it"
    )


class Objective(TextMasking):
    """Examples and losses of span masking."""

    parts: tuple[str, ...] = ("mlm", "sbo")
    fields: Mapping[str, Field] = {**TextMasking.fields, "span": Field(np.int64)}
    needs = ("bidirectional", "hidden_size", "begins_with_token")
    token_flags = ("word_start",)

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        if not config.boundary_weight:
            self.parts = TextMasking.parts
            self.leave_out("span")
        chances = (1 - config.p) ** np.arange(config.longest)
        self.chances = np.cumsum(chances / chances.sum())

    def heads(self) -> dict[str, nn.Module]:
        if not self.config.boundary_weight:
            return {}
        return {HEAD: boundary_head(self.model_config.state_size)}

    def draw(
        self, example: Mapping[str, np.ndarray], where: np.ndarray, rng: np.random.Generator
    ) -> Drawn:
        """Return thresholds that are the same for all tokens of a span."""
        words = number_words(example, where)
        count = int(words[-1]) + 1 if len(words) else 0
        lengths = self.lengths(count, rng)
        starts = place_spans(count, lengths, rng)
        of_word = np.full(count + 1, len(lengths))  # the last: no span
        inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        order = rng.permutation(len(lengths))
        of_word[np.repeat(starts, lengths) + inside] = np.repeat(order, lengths)
        units = of_word[words]
        thresholds = np.append(rank_units(units, len(lengths), rng), NEVER)
        return Drawn(thresholds[units], units)

    def lengths(self, words: int, rng: np.random.Generator) -> np.ndarray:
        """Return the lengths (U,) of the spans that are placed in a text of so many words."""
        wanted = min(MORE * self.highest, 1.0) * words + self.config.longest
        drawn = 1 + np.searchsorted(self.chances, rng.random(int(wanted) + 1), side="right")
        drawn = drawn[: int(np.searchsorted(np.cumsum(drawn), wanted)) + 1]
        # A word must be free between two spans; the last one is cut to what is left.
        over = np.cumsum(drawn + 1) - 1 - words
        drawn -= over.clip(min=0)
        return drawn[drawn > 0]

    def masked(
        self, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the masked example; `span` (T,) numbers its spans from 1, 0 is no target."""
        return self._number_spans(super().masked(example, rng))

    def at_progress(self, example: dict[str, np.ndarray], progress: float) -> dict[str, np.ndarray]:
        """Return the example with the targets of the rate at this share of the run."""
        made = super().at_progress(example, progress)
        return example if made is example else self._number_spans(made)

    def _number_spans(self, example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if "span" not in self.fields:
            return example
        return example | {"span": runs(example["labels"] != IGNORE)}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        counts = super().num_targets(batch)
        if "span" in self.fields:
            counts["sbo"] = int((_places(batch["span"]) < PLACES)[batch["span"] > 0].sum())
        return counts

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: the targets, and the tokens beside them if the boundaries count."""
        targets = super().tokens_read(batch)
        if targets is None or "span" not in self.fields:
            return targets
        return targets | targets.roll(1) | targets.roll(-1)

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy from the states of the targets, and from their boundaries."""
        terms = super().loss(model, hidden, batch).terms
        if "span" in self.fields:
            terms["sbo"] = self._boundary_term(model, hidden, batch)
        return Loss(terms)

    def _boundary_term(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Term:
        import torch

        # A special token is at both ends of an example, so a boundary is in the same sequence.
        spans = batch.fields["span"]
        inside = spans > 0
        row = torch.arange(len(spans), device=spans.device)
        begins = inside & (spans != spans.roll(1))
        left = torch.where(begins, row - 1, 0).cummax(0).values  # (N,) before the last span
        place = row - left - 1
        ends = inside & (spans != spans.roll(-1))
        right = torch.where(ends, row + 1, len(row)).flip(0).cummin(0).values.flip(0)
        index = (inside & (place < PLACES)).nonzero().squeeze(1)  # (K,)
        states = model.objective_heads[HEAD](
            hidden[left[index]], hidden[right[index]], place[index]
        )
        # The model computes losses of rows of the pack.
        rows = hidden.new_zeros(hidden.shape).index_put((index,), states.to(hidden.dtype))
        loss_sum, _ = model.token_loss(rows, index, batch.fields["labels"][index])
        return Term(loss_sum, len(index), weight=self.config.boundary_weight)


def place_spans(words: int, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return where spans of these lengths (U,) begin in a text, with a free word between two.

    All such placements are equally likely: each span is before another one of the free words, or
    after all.
    """
    free = words - int(lengths.sum())
    before = np.sort(rng.permutation(free + 1)[: len(lengths)])
    return before + np.cumsum(lengths) - lengths


def runs(chosen: np.ndarray) -> np.ndarray:
    """Return (T,) int64: the number of each run of True, from 1; 0 for False."""
    begins = chosen & ~np.append(False, chosen[:-1])
    return np.cumsum(begins) * chosen


def _places(spans: np.ndarray) -> np.ndarray:
    """Return the place of each token in its span, (N,)."""
    row = np.arange(len(spans))
    begins = (spans > 0) & (spans != np.append(0, spans[:-1]))
    return row - np.maximum.accumulate(np.where(begins, row, 0))


def boundary_head(hidden_size: int) -> nn.Module:
    """Return the layers of the span boundary objective, drawn by torch's generator."""
    import torch
    from torch import nn

    class SpanBoundary(nn.Module):
        """States (K, C) of tokens from the states at both sides of their spans (eq. 1)."""

        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Embedding(PLACES, PLACE_SIZE)
            self.first = nn.Linear(2 * hidden_size + PLACE_SIZE, hidden_size)
            self.first_norm = nn.LayerNorm(hidden_size)
            self.second = nn.Linear(hidden_size, hidden_size)
            self.second_norm = nn.LayerNorm(hidden_size)
            for layer in (self.places, self.first, self.second):
                nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(self.first.bias)
            nn.init.zeros_(self.second.bias)

        def forward(
            self, left: torch.Tensor, right: torch.Tensor, place: torch.Tensor
        ) -> torch.Tensor:
            joined = torch.cat([left, right, self.places(place).to(left.dtype)], dim=1)
            inner = self.first_norm(nn.functional.gelu(self.first(joined)))
            return self.second_norm(nn.functional.gelu(self.second(inner)))

    return SpanBoundary()
