"""Masked language modelling (Devlin et al. 2018, arXiv:1810.04805, sec. 3.1, task 1).

15 % of a sequence's tokens are targets. Of these 80 % are replaced by [MASK], 10 % by a random
token, 10 % stay as they are. Special tokens are neither targets nor drawn.
Alone it makes `[CLS] piece [SEP]`; behind another objective it masks that one's examples.

T tokens of an example, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import IGNORE, Field, Loss, Term
from nlpkit.objectives.examples.text import TextObjective

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.batch import Batch

MASK = "[MASK]"


class Config(FrozenConfig):
    """How much is masked, and how."""

    max_length: int = Setting(512, ge=3, description="longest example, in tokens, if made here")
    share: float = Setting(0.15, gt=0, le=1, description="of the tokens are targets")
    masked: float = Setting(0.8, ge=0, le=1, description="of the targets are replaced by [MASK]")
    random: float = Setting(0.1, ge=0, le=1, description="of the targets by a random token")


class Objective(TextObjective):
    """Examples and loss of masked language modelling."""

    parts = ("mlm",)
    inputs = ("input_ids", "token_type_ids")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "token_type_ids": Field(np.int64),
        "labels": Field(np.int64),
    }
    needs = ("bidirectional", "pairs")
    predicts_text = True
    composable = True
    extra = 2  # [CLS] and [SEP]

    def __init__(self, config: Config, tokenizer: Any, model_config: Any):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions, or the shares more
                than 1.
        """
        super().__init__(config, tokenizer, model_config)
        if config.masked + config.random > 1:
            raise ValueError("objective: masked and random are more than 1 together")
        frame = map(tokenizer.special_id, (*model_config.task_tokens, MASK))
        self.start, _, self.end, self.mask = frame
        self.is_word = tokenizer.token_characters() > 0  # (V,)
        if tokenizer.unk_id is not None:
            self.is_word[tokenizer.unk_id] = False
        self.words = np.flatnonzero(self.is_word)
        self.shown_rate = 1 - config.masked

    @classmethod
    def special_tokens(cls, config: Any, model_config: Any) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have."""
        return tuple(dict.fromkeys((*model_config.task_tokens, MASK)))

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return `[CLS] piece [SEP]`, masked."""
        framed = np.concatenate([[self.start], ids, [self.end]]).astype(np.int64)
        return self.transform({"input_ids": framed, "token_type_ids": np.zeros_like(framed)}, rng)

    def transform(
        self, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the example with some of `input_ids` replaced, and with `labels` (T,)."""
        ids = example["input_ids"].copy()
        words = np.flatnonzero(self.is_word[ids])
        count = min(len(words), max(1, round(self.config.share * len(words))))
        chosen = rng.choice(words, count, replace=False)
        labels = np.full_like(ids, IGNORE)
        labels[chosen] = ids[chosen]
        fate = rng.random(count)
        drawn = rng.choice(self.words, count)
        masked = fate < self.config.masked
        replaced = ~masked & (fate < self.config.masked + self.config.random)
        ids[chosen[masked]] = self.mask
        ids[chosen[replaced]] = drawn[replaced]
        return example | {"input_ids": ids, "labels": labels}

    def shown(self, example: dict[str, np.ndarray]) -> np.ndarray:
        """Return (T,) bool: targets that show a word by design, their own or a random one."""
        return (example["labels"] != IGNORE) & (example["input_ids"] != self.mask)

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of predicted tokens."""
        return {"mlm": int((batch["labels"] != IGNORE).sum())}

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the targets."""
        labels = batch.fields["labels"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        loss_sum, _ = model.token_loss(hidden, index, labels[index])
        return Loss({"mlm": Term(loss_sum, len(index), is_text=True)})
