"""`train.tune: prompt`: only the soft prompt of a task is trained (Lester et al. 2021)."""

from typing import Any

import torch

from nlpkit.errors import UsageError
from nlpkit.recipe import Resolved


def find_rows(resolved: Resolved, objective: Any) -> tuple[int, int]:
    """Return the range of trained rows of the soft prompts.

    Raises:
        UsageError: the objective has no soft prompt, or `lora` is set.
    """
    prompt, name = objective.prompt, resolved.recipe.objective[0].name
    if prompt is None or resolved.recipe.lora is not None:
        why = "lora excludes it" if prompt is not None else f"objective {name} has none"
        raise UsageError(f"train.tune: prompt: the soft prompt of a task; {why}")
    first = int(prompt[0]) - objective.tokenizer.vocab_size
    return first, first + len(prompt)


def train_alone(model: Any, start: int, stop: int) -> None:
    """Freeze the model except rows `start:stop` of its soft prompts."""
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.prompt_embedding)
    mask = torch.zeros(len(model.prompt_embedding), 1)
    mask[start:stop] = 1.0
    # Without decay, no optimizer changes rows whose gradient is always 0.
    model.prompt_embedding.register_hook(lambda gradient: gradient * mask.to(gradient.device))
