"""`train.tune: prompt`: only a soft prompt is trained (Lester et al. 2021), and the task's head.

CPM-Ant has soft prompts of its own, one for each task. Every other family that reads tokens gets
virtual tokens (`models/soft_prompt.py`). Their embeddings are at first those of random tokens, of
the words of a text, or those of a checkpoint of this kind (Gu et al. 2022, "PPT").
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlpkit.checkpoints import any_layout, prompt_layout
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.errors import UsageError
from nlpkit.models import soft_prompt
from nlpkit.models.adapter_config import Prompt as Settings
from nlpkit.objectives.examples.text import longest_sequence
from nlpkit.recipe import Recipe, Resolved, fit
from nlpkit.runs.run import ModelPart
from nlpkit.tokenizers.library.source_and_target import of_sources

_TOKENS = 20  # as many as peft's examples have; Lester et al.: little is gained beyond


@dataclass(frozen=True)
class OwnRows:
    """The rows of CPM-Ant's soft prompts that an objective has."""

    rows: list[int]

    def add(self, model: Any) -> None:
        """Freeze the model except its soft prompt."""
        for parameter in model.parameters():
            parameter.requires_grad_(parameter is model.prompt_embedding)
        mask = torch.zeros(len(model.prompt_embedding), 1)
        mask[self.rows] = 1.0
        # Without decay, no optimizer changes rows whose gradient is always 0.
        model.prompt_embedding.register_hook(lambda gradient: gradient * mask.to(gradient.device))

    def trained(self, parameter: Tensor) -> Tensor:
        """Return the rows of a parameter that are trained."""
        return parameter[self.rows]


@dataclass(frozen=True)
class VirtualTokens:
    """Virtual tokens with the embeddings `rows` (P, E), or with those of tokens."""

    rows: Tensor | None = None
    count: int = 0  # P, without `rows`
    ids: Sequence[int] = ()  # whose embeddings they have at first; empty: of random tokens
    resumed: bool = False  # the rows are those of the run itself
    text: str | None = None  # that the recipe names

    def add(self, model: Any) -> None:
        """Freeze the model, and give it the virtual tokens."""
        rows = self.rows
        table = getattr(model, soft_prompt.find_table(model)).detach()
        if rows is None and self.ids:
            rows = table[[self.ids[number % len(self.ids)] for number in range(self.count)]]
        elif rows is None:
            # Better than uniform numbers (Lester et al. 2021, sec. 3.2, "sampled vocabulary").
            rows = table[torch.randint(len(table), (self.count,), device="cpu").tolist()]
        elif rows.shape[1] != table.shape[1]:
            raise UsageError(
                f"init_from: a soft prompt {rows.shape[1]} wide, and embeddings {table.shape[1]}"
            )
        soft_prompt.attach(model, rows.float().clone())

    def trained(self, parameter: Tensor) -> Tensor:
        """Return what of a parameter is trained: all of it."""
        return parameter


Prompt = OwnRows | VirtualTokens  # what of a model is the soft prompt


def is_wanted(recipe: Recipe) -> bool:
    """Return whether a run trains virtual tokens; others are refused when all is known."""
    inputs = {name for made in fit.classes(recipe.objective) for name in made.inputs}
    return recipe.train.tune == "prompt" and inputs <= soft_prompt.INPUTS


def find_start(directory: Path, resumed: bool) -> tuple[Path, VirtualTokens]:
    """Return the model of a checkpoint, and its soft prompt: without rows if it has none."""
    rows = prompt_layout.read_rows(directory)
    if rows is None:
        return directory, VirtualTokens()
    base = any_layout.find_base(directory)
    assert base is not None
    return base, VirtualTokens(rows, resumed=resumed)


def find(resolved: Resolved, objective: Objective, part: ModelPart) -> Prompt:
    """Return the soft prompt that a run trains.

    Raises:
        UsageError: the model or the objective can have none, or settings contradict each other.
    """
    recipe = resolved.recipe
    name, start = recipe.objective[0].name, part.prompt
    if recipe.lora is not None:
        raise UsageError("train.tune: prompt: the soft prompt of a task; lora excludes it")
    if isinstance(objective.prompt, np.ndarray):
        if recipe.prompt is not None:
            raise UsageError(
                "prompt: the soft prompts of this family are those of its checkpoint; remove the "
                "section"
            )
        rows = np.unique(objective.prompt) - objective.tokenizer.vocab_size
        return OwnRows(rows.tolist())
    if strange := [each for each in objective.inputs if each not in soft_prompt.INPUTS]:
        raise UsageError(
            f"train.tune: prompt: the soft prompt of a task; objective {name} has none, and it "
            f"gives {', '.join(strange)}, which virtual tokens do not have"
        )
    if objective.members:
        raise UsageError("train.tune: prompt: not with a mixture; name one objective, or a list")
    if part.config.can("context_free"):
        raise UsageError("train.tune: prompt: the model's tokens do not see each other")
    if not isinstance(start, VirtualTokens):
        raise UsageError("train.tune: prompt: needs init_from, the model that it leaves as it is")
    found = _complete(start, recipe.prompt or Settings(), of_sources(objective.tokenizer))
    count, length = found.count, objective.config.setting("max_length") or 0
    limit = longest_sequence(part.config)
    if length + count > limit:
        raise UsageError(
            f"objective.max_length: {length} and {count} virtual tokens are more than the "
            f"{limit:.0f} positions of the model; lower it, or prompt.tokens"
        )
    return found


def _complete(start: VirtualTokens, settings: Settings, tokenizer: Tokenizer) -> VirtualTokens:
    """Return the virtual tokens with what the recipe says of them."""
    tokens, text = settings.tokens, settings.text
    if start.rows is not None:
        if (text is not None and not start.resumed) or tokens not in (None, len(start.rows)):
            raise UsageError(
                f"prompt: the soft prompt of the checkpoint has its {len(start.rows)} virtual "
                "tokens; remove the section"
            )
        return replace(start, count=len(start.rows), text=text)
    ids = () if text is None else tuple(tokenizer.encode(text))
    if text is not None and not ids:
        raise UsageError(f"prompt.text: {text!r} has no tokens")
    return replace(start, count=tokens or _TOKENS, ids=ids, text=text)
