"""Averages of the weights over the steps of a run: they are judged and saved as the model.

`ema` is the exponential moving average (Polyak & Juditsky 1992; its warm-up is that of TensorFlow's
ExponentialMovingAverage). `last` is the plain mean of a run's last checkpoints (Izmailov et al.
2018; Vaswani et al. 2017, sec. 6.1, average their last 5).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nlpkit.train import shards
from nlpkit.train.average_settings import AverageConfig
from nlpkit.train.state import State


class Average:
    """The running average of the trained parameters; `steps` is the length of the run."""

    def __init__(self, module: nn.Module, settings: AverageConfig, steps: int):
        self.module = module
        self.parameters = [each for each in module.parameters() if each.requires_grad]
        self.settings, self.steps = settings, steps
        self.mean: list[Tensor] = []  # empty: the weights themselves

    @torch.no_grad()
    def update(self, state: State) -> None:
        """Take in the weights after the step of `state`."""
        share = self._share(state.step)
        if share is None:
            return
        if not self.mean:
            self.restore()
        else:
            torch._foreach_lerp_(self.mean, [each.detach() for each in self.parameters], share)

    @property
    def window(self) -> list[int]:
        """The first step whose weights count, and the steps from one that counts to the next."""
        settings = self.settings
        if settings.name == "ema":
            return [0, 1]
        # A short run has fewer checkpoints.
        number = min(settings.checkpoints, 1 + (self.steps - 1) // settings.every)
        return [self.steps - (number - 1) * settings.every, settings.every]

    def _share(self, step: int) -> float | None:
        """Return the share of the weights after `step` in the new average; None: not counted."""
        if self.settings.name == "ema":
            return 1 - min(self.settings.decay, (1 + step) / (10 + step))
        first, every = self.window
        before, offset = divmod(step - first, every)
        return None if offset or before < 0 else 1 / (1 + before)

    @contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """Exchange the weights for their average for as long as the context lasts."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def restore(self) -> None:
        """Take the weights that the parameters have now as the average."""
        self.mean = [each.detach().clone() for each in self.parameters]

    def _exchange(self) -> None:
        shards.release(self.module)
        for parameter, mean in zip(self.parameters, self.mean, strict=bool(self.mean)):
            kept = parameter.detach().clone()
            parameter.detach().copy_(mean)
            mean.copy_(kept)
