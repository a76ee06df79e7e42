"""UniLM's masked tokens under four attention masks (Dong et al. 2019, arXiv:1905.03197, sec. 2.3).

`[CLS] A [SEP] B [SEP]`: text of a document, cut where a sentence begins, masked as in `mlm`. Each
example has one of four masks: every token sees all (`both`), what is to its left, what is to its
right, or, where A is a `source` of B, all of A and what is to its left in B. They are drawn with
the weights of the settings, by default as in the paper. The family's attention must be
`seen_range`: `attention: {kind: seen_range}`.

Token types tell the masks apart: both 0 and 1, left 2, right 3, source 4 and 5, as in the released
code. Differs from UniLM: no next sentence prediction, and targets are single tokens, not n-grams.

T tokens of an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.contracts.batch import Batch, Field, FlaggedIds
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.examples.masking import Masking, Rates
from nlpkit.objectives.examples.pairs import Pairing, part, sentence_starts
from nlpkit.objectives.examples.text import loss_parts

if TYPE_CHECKING:
    import torch


MASKS = ("both", "left", "right", "source")
TYPES = np.array([[0, 1], [2, 2], [3, 3], [4, 5]])  # of A and B under each mask


class Config(Rates):
    """How text is cut and masked, and how often an example has each attention mask."""

    max_length: int = Setting(512, ge=5, description="longest example, in tokens")
    both: float = Setting(2.0, ge=0, description="relative frequency of seeing both sides")
    left: float = Setting(1.0, ge=0, description="relative frequency of seeing the left side")
    right: float = Setting(1.0, ge=0, description="relative frequency of seeing the right side")
    source: float = Setting(
        2.0, ge=0, description="relative frequency of a source that the rest sees"
    )
    mask_types: bool = Setting(
        True,
        description="each mask has token types of its own, 6 in all; false: 0 and 1, as in BERT",
    )

    @model_validator(mode="after")
    def _some(self) -> Config:
        if not self.both + self.left + self.right + self.source:
            raise ValueError("both, left, right and source are all 0; one must be more")
        return self


class Objective(Masking, Pairing):
    """Examples and loss of UniLM."""

    term = "unilm"
    parts = ("unilm.both", "unilm.left", "unilm.right", "unilm.source")
    inputs = ("input_ids", "token_type_ids", "first", "last")
    fields: Mapping[str, Field] = {
        **Masking.fields,
        "first": Field(np.int64),
        "last": Field(np.int64),
        "mask": Field(np.int64, per="sequence", names=MASKS),
    }
    needs = ("pairs", "ranges", "type_vocab_size")
    token_flags = ("sentence_start",)

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        weights = np.array([config.both, config.left, config.right, config.source])
        self.shares = np.cumsum(weights / weights.sum())
        types: int = model_config.type_vocab_size  # type: ignore[attr-defined]
        if config.mask_types and types <= TYPES.max():
            raise ValueError(
                f"objective.mask_types: the masks have {TYPES.max() + 1} token types, the model "
                f"{types}; set model.type_vocab_size: {TYPES.max() + 1}, or mask_types: false"
            )

    def example(self, ids: FlaggedIds, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return two texts, masked, and the range of positions that each token sees."""
        starts = sentence_starts(ids)
        inner = starts[starts > 0]
        if not len(inner):
            inner = np.arange(1, len(ids))
        cut = int(inner[rng.integers(len(inner))])
        example = self.joined((part(ids, 0, cut), part(ids, cut, len(ids))))
        kind = min(int(np.searchsorted(self.shares, rng.random(), side="right")), len(MASKS) - 1)
        position = np.arange(len(ids) + self.extra)
        first, last = np.zeros_like(position), np.full_like(position, len(position) - 1)
        if MASKS[kind] == "left":
            last = position
        elif MASKS[kind] == "right":
            first = position
        elif MASKS[kind] == "source":
            last = np.maximum(position, len(self.frame.start) + cut)
        if self.config.mask_types:
            example["token_type_ids"] = TYPES[kind][example["token_type_ids"]]
        example |= {"first": first, "last": last, "mask": np.array([kind])}
        return self.masked(example, rng)

    def loss_parts(
        self, batch: Batch, index: torch.Tensor, each: torch.Tensor
    ) -> dict[str, tuple[torch.Tensor, int]]:
        """Return the loss under each mask."""
        return loss_parts(self.parts, batch.fields["mask"], batch, index, each)
