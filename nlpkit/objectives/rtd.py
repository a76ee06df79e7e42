"""Replaced-token detection (ELECTRA, Clark et al. 2020, arXiv:2003.10555, sec. 2).

A generator predicts masked tokens. Its samples take their places, and a discriminator says of every
token whether it is a sample that differs from the original one. Both losses are minimized together:
`mlm_weight` times the generator's plus `rtd_weight` times the discriminator's. A sample is drawn
without a gradient, by a number that the example brings, so that a resumed run has the same samples.

As in google-research/electra, 85 % of the targets become the mask token and the others stay as they
are; all of them are sampled. Differs from it: the share of targets of short texts is exact (see
`mlm`), and no token is drawn twice.

N tokens of a pack, C width of the discriminator, M targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from pydantic import Field as Setting

from nlpkit.contracts.batch import IGNORE, Batch, Field, FlaggedIds, Loss, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.examples.masking import Drawn, MaskConfig, TextMasking, draw_words

if TYPE_CHECKING:
    import torch


class Config(MaskConfig):
    """How text is cut and masked, how samples are drawn, and the weights of both losses."""

    random: float = Setting(
        0.0, ge=0, le=1, description="share of the targets replaced by a random token"
    )
    unmask: float = Setting(
        0.15,
        ge=0,
        le=1,
        description="share of the targets that the generator sees; all others become the mask "
        "token",
    )
    whole_words: bool = Setting(
        False, description="all tokens of a word are targets together; Chinese words by jieba"
    )
    temperature: float = Setting(
        1.0, gt=0, description="of the samples: the generator's logits are divided by it"
    )
    mlm_weight: float = Setting(1.0, ge=0, description="weight of the generator's loss")
    rtd_weight: float = Setting(50.0, ge=0, description="weight of the discriminator's loss")


class Electra(TrainedModel, Protocol):
    """The methods of a model with a generator and a discriminator."""

    def sample_tokens(
        self,
        hidden: torch.Tensor,
        index: torch.Tensor,
        uniform: torch.Tensor,
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Return tokens (M,) that the generator draws at rows `index` by numbers from 0 to 1."""

    def replaced_logits(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Return scores (N,) that tokens are replaced, from the discriminator's states (N, C)."""


class Objective(TextMasking):
    """Examples and losses of replaced-token detection."""

    parts = ("mlm", "rtd", "replaced", "rtd_accuracy", "rtd_recall")
    inputs = ("input_ids", "token_type_ids", "is_target")
    fields: Mapping[str, Field] = {
        **TextMasking.fields,
        "is_target": Field(np.bool_),
        "uniform": Field(np.float32),
    }
    needs = ("bidirectional", "generator")
    detects = True  # for `nlpkit selftest`

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.token_flags = ("word_start",) if config.whole_words else ()

    def draw(
        self, example: Mapping[str, np.ndarray], where: np.ndarray, rng: np.random.Generator
    ) -> Drawn:
        """Return the thresholds of tokens, or those of whole words."""
        draw = draw_words if self.config.whole_words else super().draw
        return draw(example, where, rng)

    def framed(self, ids: np.ndarray | FlaggedIds) -> dict[str, np.ndarray]:
        """Return `[CLS] piece [SEP]` for the generator, as for `mlm`."""
        example = super().framed(ids)
        return example | {"is_target": np.zeros(len(example["input_ids"]), np.bool_)}

    def masked(
        self, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the example with masked targets, and with the numbers of its samples."""
        made = super().masked(example, rng)
        uniform = rng.random(len(made["labels"]), np.float32)
        return made | {"is_target": made["labels"] != IGNORE, "uniform": uniform}

    def at_progress(self, example: dict[str, np.ndarray], progress: float) -> dict[str, np.ndarray]:
        """Return the example with the targets of the rate at this share of the run."""
        made = super().at_progress(example, progress)
        return made | {"is_target": made["labels"] != IGNORE}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {**super().num_targets(batch), "rtd": len(batch["labels"])}

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the generator's cross entropy, and the discriminator's over all tokens.

        `hidden` (N, ·) are the generator's states. Its logits exist for targets alone.
        """
        import torch.nn.functional as F

        electra: Electra = model
        labels, ids = batch.fields["labels"], batch.fields["input_ids"]
        (index,) = (labels != IGNORE).nonzero(as_tuple=True)
        mlm_sum, _ = electra.token_loss(hidden, index, labels[index])
        original = ids.where(labels == IGNORE, labels)
        read = self.corrupted(electra, hidden, index, original, batch)
        is_replaced = self.replaced(read, original, labels)
        given = {**batch.fields, "input_ids": read}
        inputs = {name: given[name] for name in self.inputs if name != "is_target"}
        logits = electra.replaced_logits(electra(batch.lengths, **inputs), batch.lengths)
        logits = logits.float()
        rtd_sum = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="sum")
        parts = _figures(rtd_sum.detach(), logits.detach() > 0, is_replaced)
        return Loss(
            {
                "mlm": Term(mlm_sum, len(index), self.config.mlm_weight, is_text=True),
                "rtd": Term(rtd_sum, len(labels), self.config.rtd_weight, parts),
            }
        )

    def corrupted(
        self,
        model: Electra,
        hidden: torch.Tensor,
        index: torch.Tensor,
        original: torch.Tensor,
        batch: Batch,
    ) -> torch.Tensor:
        """Return the tokens (N,) that the discriminator reads: samples at `index` (M,)."""
        uniform = batch.fields["uniform"][index]
        sampled = model.sample_tokens(hidden, index, uniform, self.config.temperature)
        return original.index_copy(0, index, sampled)

    def replaced(
        self, read: torch.Tensor, original: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return which tokens (N,) are replaced; a sample that is the original one is not."""
        return read != original


def _figures(
    rtd_sum: torch.Tensor, found: torch.Tensor, is_replaced: torch.Tensor
) -> dict[str, tuple[torch.Tensor, int]]:
    """Return sums and numbers, for the log: the loss, and shares of tokens.

    `replaced`: of all tokens; one minus it is the accuracy of the answer that none is replaced.
    `rtd_accuracy`: the right answers. `rtd_recall`: the replaced tokens that are found.
    """
    count, replaced = len(found), is_replaced.sum()
    return {
        "rtd": (rtd_sum, count),
        "replaced": (replaced.float(), count),
        "rtd_accuracy": ((found == is_replaced).sum().float(), count),
        "rtd_recall": ((found & is_replaced).sum().float(), int(replaced)),
    }
