"""Towards the distribution of a teacher (Hinton et al. 2015, arXiv:1503.02531, sec. 2).

It follows the objective that makes the examples, and adds a term for the same targets:
KL(p, q) * temperature², where p = softmax(z / temperature) is of the teacher's logits and q of the
student's. With the factor, gradients stay as large as those of the right tokens (p. 3); the weights
of both losses are those of the list. DistilBERT (Sanh et al. 2019, arXiv:1910.01108) is this after
`mlm`, without its third loss, of the directions of states.

M targets, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts import objective
from nlpkit.contracts.batch import IGNORE, Batch, Field, Loss, Spans, Term
from nlpkit.contracts.objective import TrainedModel
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    import torch

_CHUNK = 512  # targets whose logits exist at a time


class Config(FrozenConfig):
    """The teacher, and how soft its distribution is."""

    teacher: str = Setting(
        min_length=1, description="checkpoint of the teacher, or its run; with the same tokenizer"
    )
    temperature: float = Setting(
        2.0, gt=0, le=100, description="both distributions are softmax(logits / temperature)"
    )


class Objective(objective.Objective):
    """The term beside that of the objective before it in a list."""

    fields: Mapping[str, Field] = MappingProxyType({})
    inputs = ()
    parts = ("distillation",)
    needs = ("predicts_tokens",)
    composable = True
    adds_only = True

    @staticmethod
    def frozen(config: Config) -> Mapping[str, str]:  # type: ignore[override]
        return {"teacher": config.teacher}

    def spans(self, lengths: np.ndarray) -> Spans:
        raise NotImplementedError  # `adds_only`

    def length(self, pieces: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {"distillation": int((batch["labels"] != IGNORE).sum())}

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        labels: torch.Tensor = batch.fields["labels"]
        return labels != IGNORE

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the divergence over the targets; only logits of a chunk of them exist at a time.

        Raises:
            UsageError: the models have different numbers of tokens.
        """
        import torch
        from torch.nn import functional as F
        from torch.utils.checkpoint import checkpoint

        labels, teacher = batch.fields["labels"], self.frozen_models["teacher"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        soft = self.config.temperature

        def compute(states: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                wanted = (teacher.logits(others).float() / soft).log_softmax(1)
            found = (model.logits(states).float() / soft).log_softmax(1)
            if found.shape != wanted.shape:
                raise UsageError(
                    f"objective: the teacher {self.config.teacher} predicts {wanted.shape[1]:,} "
                    f"tokens, the student {found.shape[1]:,}; they need the same tokenizer"
                )
            return F.kl_div(found, wanted, reduction="sum", log_target=True)

        others = _states(teacher, batch, index)
        chunks = zip(hidden[index].split(_CHUNK), others.split(_CHUNK), strict=True)
        each = [checkpoint(compute, *chunk, use_reentrant=False) for chunk in chunks]
        total = torch.stack(each).sum() * soft**2
        return Loss({"distillation": Term(total, len(index))})


def _states(teacher: TrainedModel, batch: Batch, index: torch.Tensor) -> torch.Tensor:
    """Return the teacher's states of the targets, (M, C), from the inputs that it reads."""
    import torch

    # A soft prompt passes on what the model below it names.
    methods = [vars(each)["forward"] for each in type(teacher).__mro__ if "forward" in vars(each)]
    names = [name for method in methods for name in inspect.signature(method).parameters]
    inputs = {name: batch.fields[name] for name in dict.fromkeys(names) & batch.fields.keys()}
    with torch.no_grad():
        if "rows" in inspect.signature(methods[0]).parameters:
            return teacher(batch.lengths, rows=index, **inputs)
        return teacher(batch.lengths, **inputs)[index]
