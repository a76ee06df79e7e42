"""Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290, eq. 7).

A row is a prompt with an answer that is preferred and one that is not. The reward of an answer y is
β (log p(y | prompt) - log p_ref(y | prompt)), where p_ref is a frozen model, by default that of
`init_from`; the loss is -log sigmoid(reward of the chosen - reward of the rejected answer). Beside
adapters (`lora`) the reference has no weights of its own: it reads those that they leave alone.
Sequences are those of `generation`, so a model that it has tuned is the one to begin with. Both of
a pair are in one pack. `label_smoothing` is the share of the pairs whose preference is taken to be
wrong (Mitchell 2023, "cDPO"; TRL's setting of this name).

M targets, S sequences, P = S / 2 pairs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import IGNORE, LENGTHS, Batch, Loss, Term
from nlpkit.contracts.objective import TrainedModel
from nlpkit.contracts.reader import LeftOut, Row, RowError
from nlpkit.contracts.task import Item, Task
from nlpkit.data.template import TextOf, columns
from nlpkit.objectives import generation
from nlpkit.objectives.examples.text import forward
from nlpkit.objectives.tasks.rows import count_cut, shorten

if TYPE_CHECKING:
    import torch
    from torch import nn


ALIKE = "pairs left out, whose answers are the same once cut"


class LossConfig(FrozenConfig):
    """The reference model, and how far the model may go from it."""

    reference: str | None = Setting(
        None,
        min_length=1,
        description="checkpoint of the reference model, or its run; default: that of init_from",
    )
    beta: float = Setting(
        0.1, gt=0, le=100, description="β; the smaller, the farther from the reference"
    )
    label_smoothing: float = Setting(
        0.0, ge=0, lt=0.5, description="share of the pairs whose preference is taken to be wrong"
    )


class Config(LossConfig):
    """The columns of a row, the reference model, and how far the model may go from it."""

    max_length: int = Setting(
        256, gt=3, description="longest sequence: start, prompt, delimiter and an answer together"
    )
    prompt: TextOf = Setting("prompt", description="column of the prompt, or a template")
    chosen: TextOf = Setting("chosen", description="column of the preferred answer, or a template")
    rejected: TextOf = Setting("rejected", description="column of the other answer, or a template")

    # What `generation` asks for.
    choices: ClassVar[None] = None
    learn_unknown: ClassVar[bool] = False

    @property
    def source(self) -> str:
        """The column of the prompt."""
        return self.prompt

    @property
    def target(self) -> str:
        """The column of the answer that is to be written."""
        return self.chosen


class Preferences(Task):
    """The loss of pairs of answers: a pair is one example, the chosen sequence the first of two."""

    term = "dpo"
    parts: tuple[str, ...] = ("dpo", "reward_accuracy", "reward_margin")
    scores: tuple[str, ...] = ("reward_accuracy",)
    predicts_text = False
    metrics: tuple[str, ...] = ()
    _sharing: Callable[[], object] = staticmethod(lambda: None)  # a weak reference to the model

    @staticmethod
    def frozen(config: Any) -> Mapping[str, str | None]:  # type: ignore[override]
        return {"reference": config.reference}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of pairs."""
        return {"dpo": len(batch[LENGTHS]) // 2}

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the loss of the pairs; for the log also how often, and by how much, they agree."""
        import torch
        from torch.nn.functional import logsigmoid

        labels, reference = batch.fields["labels"], self.frozen_models["reference"]
        if self._sharing() is not model:
            self._sharing = weakref.ref(model)
            _share_weights(reference, cast("nn.Module", model))
        index = (labels != IGNORE).nonzero().squeeze(1)
        right = labels[index]
        with torch.no_grad():
            _, expected = reference.token_loss(forward(self, reference, batch), index, right)
        gains = expected - model.token_losses(hidden, index, right)  # (M,)
        sizes = torch.tensor(batch.lengths, device=labels.device)
        numbers = torch.arange(len(sizes), device=labels.device)
        sequences = numbers.repeat_interleave(sizes, output_size=len(labels))[index]
        rewards = self.config.beta * gains.new_zeros(len(sizes)).index_add(0, sequences, gains)
        margins = rewards[::2] - rewards[1::2]  # (P,)
        wrong = self.config.label_smoothing
        total = -((1 - wrong) * logsigmoid(margins) + wrong * logsigmoid(-margins)).sum()
        sums = total, (margins > 0).sum().float(), margins.sum()
        parts = {n: (each.detach(), len(margins)) for n, each in zip(self.parts, sums, strict=True)}
        return Loss({"dpo": Term(total, len(margins), parts=parts)})


class Objective(Preferences, generation.Objective):
    """Examples of preferences; an item has a prompt and both answers."""

    @classmethod
    def named_columns(cls, config: Any) -> tuple[str, ...]:
        return columns(config.prompt, config.chosen, config.rejected)

    @classmethod
    def check_columns(cls, config: Any, row: Row) -> None:
        """See `Task`; messages, which `dpo_chat` reads, are named."""
        for column in columns(config.chosen):
            if isinstance(row.find(column), list):
                raise RowError(f'"{column}" is a list of messages, which objective dpo_chat reads')
        super().check_columns(config, row)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the prompt and both answers; raise `RowError`."""
        prompt, chosen = super().texts(row)
        rejected = row.text(self.config.rejected)
        if rejected == chosen:
            raise RowError("both answers are the same text")
        return prompt, chosen, rejected

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; the start of the prompt is cut first, alike for both.

        Raises:
            LeftOut: the cut leaves no difference of the answers.
        """
        room = self.config.max_length - 2
        longest = max(map(len, ids[1:]))
        prompt, prompt_cut = shorten(ids[0], max(room - longest, 1), "end")
        answers = [shorten(each, room - len(prompt), "start") for each in ids[1:]]
        cut = count_cut(prompt_cut, "prompt") | count_cut(sum(n for _, n in answers), "answer")
        (chosen, _), (rejected, _) = answers
        if np.array_equal(chosen, rejected):
            raise LeftOut(ALIKE)
        size = 2 * (len(prompt) + 2) + len(chosen) + len(rejected)
        text, label, _ = self.texts(row)
        return Item((prompt, chosen, rejected), label, size, cut, text)

    def unlearned(self, item: Item) -> int:
        """Return the number of unknown tokens in both answers."""
        return sum(int((each == self.tokenizer.unk_id).sum()) for each in item.parts[1:])

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return both sequences, that of the chosen answer first; nothing is random."""
        prompt, *answers = item.parts
        both = [
            super(Objective, self).example(Item((prompt, each), "", 0), rng) for each in answers
        ]
        joined = {name: np.concatenate([each[name] for each in both]) for name in both[0]}
        return joined | {LENGTHS: np.array([len(each["labels"]) for each in both])}


def _share_weights(reference: nn.Module, model: nn.Module) -> None:
    """Let the reference read the frozen weights of the model that equal its own.

    FSDP shards those of the model; the reference keeps its own then.
    """
    import torch

    frozen = {name: each for name, each in model.named_parameters() if not each.requires_grad}
    for name, own in reference.named_parameters():
        other = frozen.get(name, frozen.get(f"parametrizations.{name}.original"))  # torch's name
        if other is not None and type(other.data) is torch.Tensor and torch.equal(own, other):
            own.data = other.data
