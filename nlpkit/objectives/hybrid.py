"""GPT-BERT: causal and masked next-token prediction in one model and one batch.

Charpentier & Samuel 2024 (arXiv:2410.24159). A `share` of the examples is masked: all tokens see
all, and the state at t - 1 predicts the masked token t, so both kinds shift their targets alike.
The others are those of `clm`. The loss is share · mntp + (1 - share) · clm, each a mean over its
targets, as where each kind has devices of its own. The family's attention must be `hybrid`.

Differs from the paper: tokens are masked one by one, and each of them becomes the mask token.

T inputs and targets of an example, N tokens of a batch, S sequences, M targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
from pydantic import Field as Setting

from nlpkit.contracts.abilities import Prompt, ScoringInput
from nlpkit.contracts.batch import IGNORE, Batch, Field, Loss, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives import clm
from nlpkit.objectives.examples.frame import find_id

if TYPE_CHECKING:
    import torch
    from torch import nn


class Config(clm.Config):
    """How text is cut, how many examples are masked, and how many tokens of these."""

    share: float = Setting(0.5, gt=0, lt=1, description="share of the examples that are masked")
    final_share: float | None = Setting(
        None, gt=0, lt=1, description="share at the end of the run (linear); default: `share`"
    )
    rate: float = Setting(0.3, gt=0, le=1, description="share of masked tokens in these examples")
    final_rate: float | None = Setting(
        0.15, gt=0, le=1, description="masking rate at the end of the run (linear); null: `rate`"
    )


class Objective(clm.Objective):
    """Examples and loss of both kinds of prediction."""

    parts = ("clm", "mntp")
    inputs = ("input_ids", "full")
    fields: Mapping[str, Field] = {
        **clm.Objective.fields,
        "full": Field(np.bool_),
        "next_ids": Field(np.int64),
        "threshold": Field(np.float32),
        "draw": Field(np.float32, per="sequence"),
    }
    needs = ("causal", "full_sequences")
    scoring_methods = ("log-probability", "mntp")

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.mask = find_id(tokenizer, model_config.mask_token)
        self.special = np.zeros(tokenizer.vocab_size, np.bool_)
        self.special[[*tokenizer.special_ids]] = True

    @classmethod
    def special_tokens(cls, config: Config, model_config: ModelSettings) -> tuple[str, ...]:
        return (model_config.mask_token,)

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Those of `clm`, and the mask token."""
        return (*super().suppress_tokens, self.mask)

    def share_at(self, progress: float) -> float:
        """Return the share of masked examples at this share of the run."""
        return _interpolate(self.config.share, self.config.final_share, progress)

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return an example as it is at the start of the run, and what was drawn for it."""
        made = super().example(ids, rng)
        targets = ids[1:].astype(np.int64)
        thresholds = rng.random(len(targets), np.float32)
        thresholds[self.special[targets]] = 2.0  # never masked
        made |= {
            "full": np.zeros(len(targets), np.bool_),
            "next_ids": targets,
            "threshold": thresholds,
            "draw": rng.random(1, np.float32),
        }
        return self.at_progress(made, 0.0)

    def at_progress(self, example: dict[str, np.ndarray], progress: float) -> dict[str, np.ndarray]:
        """Return the example, masked or causal, with the share and the rate at this progress."""
        targets = example["next_ids"]
        labels = targets
        if self.unlearned_id is not None:
            labels = np.where(targets == self.unlearned_id, IGNORE, targets)
        inputs = np.concatenate([example["input_ids"][:1], targets[:-1]])
        is_masked = bool(example["draw"][0] < self.share_at(progress))
        if is_masked:
            rate = _interpolate(self.config.rate, self.config.final_rate, progress)
            chosen = example["threshold"] < rate
            labels = np.where(chosen, labels, IGNORE)
            inputs[1:][chosen[:-1]] = self.mask
        full = np.full(len(targets), is_masked)
        return example | {"input_ids": inputs, "labels": labels, "full": full}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        is_target, full = batch["labels"] != IGNORE, batch["full"]
        return {"clm": int((is_target & ~full).sum()), "mntp": int((is_target & full).sum())}

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the targets of each kind, weighted by their shares."""
        labels, full = batch.fields["labels"], batch.fields["full"]
        # Held-out examples are those of the end of the run, and so are the weights of their losses.
        share = self.share_at(batch.progress if cast("nn.Module", model).training else 1.0)
        terms = {}
        for name, chosen, weight in (("clm", ~full, 1 - share), ("mntp", full, share)):
            index = ((labels != IGNORE) & chosen).nonzero().squeeze(1)
            loss_sum, each = model.token_loss(hidden, index, labels[index])
            parts = {name: (each.sum(), len(index))}
            terms[name] = Term(loss_sum, len(index), weight, parts=parts, is_text=True)
        return Loss(terms)

    def unmask(self, example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        inputs = np.concatenate([example["input_ids"][:1], example["next_ids"][:-1]])
        return example | {"input_ids": inputs, "labels": example["next_ids"]}

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [np.concatenate([example["input_ids"], example["next_ids"][-1:]])]

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the prompt of `clm`, in which all tokens see what is to their left."""
        prompt = super().continue_text(ids, new_tokens)
        given = {**prompt.given, "full": np.zeros(len(prompt.given["input_ids"]), np.bool_)}
        slots = {**prompt.slots, "full": np.zeros(new_tokens, np.bool_)}
        return replace(prompt, given=given, slots=slots)

    def score_text(
        self, ids: np.ndarray, words: np.ndarray, given: int, method: str
    ) -> list[ScoringInput]:
        """Return the text once; with `mntp` once for each token, masked, read from the one before.

        Both score the same tokens: those with something before them.
        """
        found = super().score_text(ids, words, given, "log-probability")
        if method != "mntp":
            return [self._with_full(each, False) for each in found]
        tokens = np.concatenate([np.asarray(self.context, np.int64), ids])
        made = []
        places = [pair for each in found for pair in zip(each.rows, each.targets, strict=True)]
        for row, target in places:
            inputs = tokens.copy()
            inputs[row + 1] = self.mask
            one = ScoringInput({"input_ids": inputs}, np.array([row]), np.array([target]))
            made.append(self._with_full(one, True))
        return made

    def _with_full(self, scored: ScoringInput, full: bool) -> ScoringInput:
        size = len(scored.inputs["input_ids"])
        return replace(scored, inputs={**scored.inputs, "full": np.full(size, full)})


def _interpolate(first: float, last: float | None, progress: float) -> float:
    return first if last is None else first + progress * (last - first)
