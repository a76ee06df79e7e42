"""Frames of tasks: start, the parts with delimiters between them, extract (Radford et al. 2018).

The sequences of a task begin and end with the family's own tokens (`task_tokens`), and have token
types where the family has pairs. Causal families have the auxiliary loss L1 of eq. 5, that of
next-token prediction on the same sequences. As in the authors' code it is a mean over the tokens of
a sequence, so all rows have the same weight. `<unk>` is no target of L1, because it is never
generated.

S sequences, N tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import LENGTHS, Batch, Field, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.task import Item, Task
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.json_types import JsonMapping
from nlpkit.objectives.examples.frame import Frame, FramedText, frame_tokens
from nlpkit.objectives.examples.text import check_length

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.objective import Objectives


class FramedConfig(FrozenConfig):
    """The settings of every task in frames."""

    max_length: int = Setting(
        512, gt=3, description="longest sequence, with start, delimiter and extract tokens"
    )
    dropout: float = Setting(0.1, ge=0, lt=1, description="on the states, before the linear layer")
    lm_weight: float = Setting(
        0.5, ge=0, description="λ, the weight of the next-token loss in L3; only for causal models"
    )
    learn_unknown: bool = Setting(
        False, description="whether <unk> is a target of the next-token loss"
    )

    EARLIER: ClassVar[JsonMapping] = {"learn_unknown": True}

    def unread(self, model: ModelSettings | None, objectives: Objectives) -> Mapping[str, str]:
        """See `FrozenConfig`; λ of 0 is what all other models have."""
        names = ("lm_weight", "learn_unknown") if self.lm_weight else ("learn_unknown",)
        found = {**super().unread(model, objectives)}
        if model and not model.can("causal"):
            return found | dict.fromkeys(names, "with a model that is not causal")
        return found if self.lm_weight else found | {"learn_unknown": "with lm_weight 0"}


class FramedTask(Task):
    """A task whose sequences have the family's frame."""

    parts = ("task", "lm")
    inputs: tuple[str, ...] = FramedText.inputs
    fields: Mapping[str, Field] = {
        **FramedText.fields,
        "order": Field(np.int64, per="sequence"),  # the index of the sequence in the row
    }
    needs = ("has_vocabulary", "hidden_size")

    def __init__(self, config: FramedConfig, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        check_length(config.max_length, model_config)
        self.dropout = config.dropout
        self.lm_weight = config.lm_weight if model_config.can("causal") else 0.0
        # Whether a summary is made of all tokens of its sequence.
        self.pools = model_config.setting("pooling") == "mean"
        self.frame = Frame(tokenizer, model_config)
        self.template = self.frame.template
        if not model_config.can("pairs"):
            self.leave_out("token_type_ids")

    @classmethod
    def special_tokens(cls, config: FramedConfig, model_config: ModelSettings) -> tuple[str, ...]:
        return frame_tokens(model_config)

    def join(self, parts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the sequences of a row one behind the other."""
        example = {
            "input_ids": np.concatenate(parts).astype(np.int64),
            "order": np.arange(len(parts), dtype=np.int64),
            LENGTHS: np.array([len(part) for part in parts], np.int64),
        }
        if "token_type_ids" in self.fields:
            example["token_type_ids"] = np.concatenate([self.frame.types(part) for part in parts])
        return example

    def auxiliary(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch, groups: torch.Tensor
    ) -> torch.Tensor:
        """Return L1: the mean over tokens, then over the sequences of a row, summed over rows."""
        import torch

        device = hidden.device
        sizes = torch.tensor(batch.lengths, device=device)
        inside = torch.ones(len(hidden), dtype=torch.bool, device=device)
        inside[sizes.cumsum(0) - 1] = False
        index = inside.nonzero().squeeze(1)
        targets = batch.fields["input_ids"][index + 1]
        counts = sizes - 1  # (S,) the number of targets in each sequence
        sequence = torch.arange(len(sizes), device=device)
        sequence = sequence.repeat_interleave(counts, output_size=len(index))
        if not self.config.learn_unknown and self.tokenizer.unk_id is not None:
            known = targets != self.tokenizer.unk_id
            index, targets, sequence = index[known], targets[known], sequence[known]
            counts = sequence.bincount(minlength=len(sizes))  # the last token is always known
        per_row = torch.bincount(groups)[groups]  # (S,) the number of sequences in the row
        weights = (1.0 / (counts * per_row))[sequence]
        return model.token_loss(hidden, index, targets, weights)[0]

    def unlearned(self, item: Item) -> int:
        """Return the number of unknown tokens that would be targets of the next-token loss."""
        return self.unknown(item) if self.lm_weight and not self.config.learn_unknown else 0

    def auxiliary_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of rows under `lm`, or nothing without the auxiliary loss."""
        return {"lm": int((batch["order"] == 0).sum())} if self.lm_weight else {}

    def auxiliary_term(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> dict[str, Term]:
        """Return L1 as a term of its own, a mean over rows, or nothing where λ is 0."""
        if not self.lm_weight:
            return {}
        first = batch.fields["order"] == 0
        total = self.auxiliary(model, hidden, batch, first.cumsum(0) - 1)
        return {"lm": Term(total, int(first.sum()), self.lm_weight)}
