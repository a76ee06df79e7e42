"""A target from a source, learned from its own output more and more (Bengio et al. 2015).

As `seq2seq`, but a step of the decoder reads the right token before it with a probability alone
(teacher forcing); else it reads the most likely one by the model. The probability follows the run
(arXiv:1506.03099, sec. 2.4). Held out, and in evaluation, all tokens are the right ones.
Differs from the paper: the model's token is the most likely one, not drawn; and the schedules go
from `teacher_forcing` to `final_teacher_forcing`, whatever the number of steps.

T tokens of a target.
"""

from collections.abc import Mapping
from math import exp
from typing import Literal, Self

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.contracts.batch import Field
from nlpkit.contracts.task import Item
from nlpkit.objectives import seq2seq

_STEEP = 10  # of the inverse sigmoid: 99 % of the fall lie between its ends


class Config(seq2seq.Config):
    """As of `seq2seq`, and how the probability of teacher forcing changes."""

    teacher_forcing: float = Setting(
        1.0, ge=0, le=1, description="probability of a right token at the start of the run"
    )
    final_teacher_forcing: float = Setting(
        0.5, ge=0, le=1, description="probability at the end of the run"
    )
    decay: Literal["linear", "exponential", "inverse_sigmoid"] = Setting(
        "linear",
        description="how the probability gets from one to the other; exponential never reaches 0",
    )

    @model_validator(mode="after")
    def _falls(self) -> Self:
        lowest = min(self.teacher_forcing, self.final_teacher_forcing)
        if self.decay == "exponential" and lowest == 0:
            raise ValueError(
                "decay: exponential never reaches 0; set final_teacher_forcing: 0.01, or decay: "
                "linear"
            )
        return self


def teacher_forcing(config: Config, progress: float) -> float:
    """Return the probability of a right token when this share of the run is done."""
    first, last = config.teacher_forcing, config.final_teacher_forcing
    if config.decay == "exponential":
        return float(first * (last / first) ** progress)
    share = progress
    if config.decay == "inverse_sigmoid":
        low, now, high = (1 / (1 + exp(-_STEEP * (at - 0.5))) for at in (0.0, progress, 1.0))
        share = (now - low) / (high - low)
    return first + (last - first) * share


class Objective(seq2seq.Objective):
    """Examples and loss of a target from a source, with scheduled sampling."""

    term = "scheduled_sampling"
    parts = ("scheduled_sampling",)
    inputs = (*seq2seq.Objective.inputs, "teacher_forced")
    fields: Mapping[str, Field] = {
        **seq2seq.Objective.fields,
        "draw": Field(np.float32),  # uniform: below the probability, the token is forced
        "teacher_forced": Field(np.bool_),
    }
    needs = ("encodes_source", "previous_output")
    config: Config

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the example as it is at the start of the run."""
        made = super().example(item, rng)
        draw = rng.random(len(made["input_ids"]), np.float32)
        return self.at_progress({**made, "draw": draw}, 0.0)

    def at_progress(self, example: dict[str, np.ndarray], progress: float) -> dict[str, np.ndarray]:
        """Return the example with the tokens that are forced when this share of the run is done.

        The draws stay, so a token that is forced late in the run is forced before, too, if the
        probability falls.
        """
        forced = example["draw"] < teacher_forcing(self.config, progress)
        return {**example, "teacher_forced": forced}
