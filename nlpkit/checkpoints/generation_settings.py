"""`generation_config.json`: transformers then generates as `nlpkit generate` does by default."""

import json
from pathlib import Path
from typing import Any

from nlpkit.checkpoints import tokenizer_files
from nlpkit.checkpoints.hf_model import TokenIds
from nlpkit.contracts.abilities import Generative, default_new_tokens
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.models.config import ModelConfig
from nlpkit.tokenizers.library.source_and_target import SourceAndTarget

_GENERATING = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel")
FILE = "generation_config.json"


def choose_settings(
    objective: object, tokenizer: Tokenizer | None, settings: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings of greedy generation, or {} if the model does not generate.

    `settings` is the model's `config.json`, whose ids hold here, too.
    """
    has_class = any(map(_generates, settings["architectures"]))
    if not isinstance(objective, Generative) or tokenizer is None or not has_class:
        return {}
    ends = list(objective.eos_token_ids)
    two = isinstance(tokenizer, SourceAndTarget)  # the model's padding may be a word of the targets
    padding = None if two else settings.get("pad_token_id")
    found: dict[str, Any] = {
        "bos_token_id": settings.get("bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        # Finished sequences of a batch are filled with it, also where texts have no padding.
        "pad_token_id": _first(padding, tokenizer.pad_id, *ends),
        "decoder_start_token_id": settings.get("decoder_start_token_id"),
    }
    found = {name: value for name, value in found.items() if value is not None}
    if objective.suppress_tokens:
        found["suppress_tokens"] = sorted(objective.suppress_tokens)
    return found | {"do_sample": False, "max_new_tokens": default_new_tokens(objective)}


def find_token_ids(objective: object, tokenizer: Tokenizer | None, config: ModelConfig) -> TokenIds:
    """Return the ids of the special tokens of a model with this objective and tokenizer."""
    if tokenizer is None:
        return TokenIds()
    ends = objective.eos_token_ids if isinstance(objective, Generative) else ()
    targets: tuple[int | None, ...] = (None, None)
    if tokenizer_files.is_extendable(tokenizer):
        targets = tuple(tokenizer.special_id(token) for token in config.target_tokens)
    eos = ends[0] if ends else tokenizer.eos_id
    return TokenIds(tokenizer.pad_id, tokenizer.bos_id, eos, *targets)


def write(directory: Path, settings: dict[str, Any]) -> None:
    """Write the file, unless there are no settings."""
    if settings:
        (directory / FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _generates(architecture: str) -> bool:
    """Return whether models of a class of transformers generate, by its name."""
    return architecture.endswith(_GENERATING)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None and value >= 0), None)
