"""Writes what is trained of a run that leaves the weights of its base as they are."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from nlpkit.checkpoints import peft_layout, prompt_layout
from nlpkit.models import lora, soft_prompt
from nlpkit.runs.run import ModelPart, Run


def remove(part: ModelPart, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the model as it is without adapters or soft prompt."""
    return soft_prompt.remove(weights) if part.lora is None else lora.remove_adapters(weights)


def write(
    run: Run, directory: Path, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Write adapters or soft prompt; `tensors` are those of the model, in transformers' names."""
    part = run.part
    assert part.source is not None  # checked by the recipe
    grown = bool(part.new_tokens(run.data.vocab_size))
    if part.lora is None:
        text = run.resolved.recipe.prompt.text if run.resolved.recipe.prompt else None
        made = prompt_layout.Made(
            part.family, part.config, part.source, part.head_kind, text, grown
        )
        prompt_layout.write(directory, made, weights, tensors)
        return
    adapters = peft_layout.Adapters(
        part.family, part.lora, part.targets, part.source, part.head_kind
    )
    peft_layout.write(directory, adapters, weights, tensors, grown=grown)
