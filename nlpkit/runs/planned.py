"""The parts of a run that is not started, and what follows from its sizes."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from nlpkit.checkpoints import hf_model, hf_writing
from nlpkit.contracts.batch import Batch
from nlpkit.contracts.optimizer import Group
from nlpkit.data.loader import Stream
from nlpkit.models.meta import on_meta
from nlpkit.recipe import Resolved
from nlpkit.runs import build
from nlpkit.runs.judged import Judge
from nlpkit.runs.run import Data, ModelPart
from nlpkit.train.optim import groups
from nlpkit.train.schedule import ResolvedTraining, make_stream, resolve_steps
from nlpkit.train.settings import Config


@dataclass
class PlannedModel:
    """The model of a run that is not started, and what its sizes and `train` say of memory."""

    resolved: Resolved
    settings: ResolvedTraining  # `train` of the recipe, its length in steps
    part: ModelPart
    vocab_size: int  # 0 without a tokenizer

    @cached_property
    def model(self) -> nn.Module:
        """The model without its weights."""
        part = replace(self.part, start=None)
        backend = self.resolved.recipe.attention.backend
        with on_meta():
            return build.build_model(part, self.vocab_size, backend)

    @cached_property
    def groups(self) -> list[Group]:
        """What updates which parameters."""
        return groups(self.model, self.settings)

    @property
    def parameters(self) -> int:
        """The numbers of the model, with adapters and the task's layer."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def trained(self) -> int:
        """The numbers that have gradients: all, or adapters, or the table of soft prompts."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def optimizer_bytes(self) -> int:
        """What the optimizers keep, such as AdamW's two moments of each trained number."""
        return 4 * sum(group.state for group in self.groups)

    @property
    def state_bytes(self) -> int:
        """Float32 weights; of what is trained also gradients, optimizers' state and the average."""
        weights = self.parameters + sum(each.parameters for each in self.part.frozen)
        return 4 * (weights + self.trained) + self.optimizer_bytes + self.average_bytes

    @property
    def average_bytes(self) -> int:
        """Float32 weights of `train.average`."""
        return 4 * self.trained if self.settings.average else 0

    @cached_property
    def saved_bytes(self) -> int:
        """Float32 weights in the layout that is saved: with adapters, nothing of the base."""
        if self.part.base_hash is not None:
            return 4 * self.trained
        weights = self.model.state_dict()
        own = {k: w for k, w in weights.items() if not k.startswith(hf_model.OBJECTIVE_HEADS)}
        head = self.part.head if self.part.outputs else None
        folders = hf_writing.to_hf(self.part.family, self.part.config, own, head=head)
        tensors = [each for _, of in folders.values() for each in of.values()]
        others = sum(w.numel() for k, w in weights.items() if k not in own)
        return 4 * (others + sum(each.numel() for each in tensors))

    @property
    def checkpoint_bytes(self) -> int:
        """Weights and optimizers' state of a checkpoint."""
        return self.saved_bytes + self.optimizer_bytes + self.average_bytes

    @property
    def milestone_bytes(self) -> int:
        """Weights in all folders of `train.save_at`."""
        return len(self.settings.save_at) * self.saved_bytes


@dataclass
class Planned(PlannedModel):
    """The parts of a run that is not started."""

    data: Data
    stream: Stream
    device: torch.device
    judge: Judge | None = None  # of `eval.pairs`

    @property
    def first(self) -> Batch:
        """The first batch that the run would train on."""
        stream, lengths = self.stream, self.resolved.recipe.objective[0].lengths
        if lengths:
            stream = make_stream(self.settings)(self.data.by_length[int(lengths[0]["value"])])
        return stream[0].batches[0]


def plan(
    resolved: Resolved, settings: Config, part: ModelPart, data: Data, device: torch.device
) -> Planned:
    """Return the run with these settings of `train`."""
    stream = make_stream(settings)(data.examples)
    training = resolve_steps(settings, stream)
    return Planned(resolved, training, part, data.vocab_size, data, stream, device)
