"""The parts of a run: its data with the objective bound, and the model to build."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nlpkit.data.items import Items
from nlpkit.data.loader import Examples
from nlpkit.data.store import Corpus
from nlpkit.models import families
from nlpkit.models.contract import FamilyModel
from nlpkit.models.head import BIAS, Head, classifier_names
from nlpkit.objectives.contract import Objective
from nlpkit.tokenizers.contract import Tokenizer


def token_characters(tokenizer: Tokenizer | None) -> np.ndarray:
    """Return the characters of text that each token stands for, (V,); V is 0 without tokenizer."""
    return np.zeros(0, np.int32) if tokenizer is None else tokenizer.token_characters()


@dataclass
class Data:
    """Tokenised training and held-out text, and the examples of the objective over them."""

    tokenizer: Tokenizer | None  # None where the objective reads no text
    objective: Objective
    train: Corpus | Items
    valid: Corpus | Items | None
    examples: Examples
    held_out: Examples | None

    @property
    def vocab_size(self) -> int:
        """The tokens that the model has; 0 where nothing is text."""
        return 0 if self.tokenizer is None else self.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        """A hash of everything that the stream of examples depends on beside the recipe."""
        parts = [] if self.tokenizer is None else [self.tokenizer.fingerprint()]
        parts += [self.train.fingerprint]
        parts += [self.valid.fingerprint] if self.valid else []
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass
class ModelPart:
    """A family's module and the settings of the model to build."""

    family: str
    config: Any  # a `ModelConfig`: the family's own
    start: dict[str, Any] | None  # weights of `init_from`, until `build_model` takes them
    source: Path | None = None  # the checkpoint whose sizes and tokenizer these are
    rows: int | None = None  # tokens that it has; None: no checkpoint, or no vocabulary
    warnings: Sequence[str] = ()  # what it lacks, and what of it has no place in the model
    outputs: int = 0  # of the linear layer that the task puts on a state; 0: none
    head_dropout: float = 0.0
    same_task: bool = False  # whether the layer of `init_from` answers the same question
    lora: Any = None  # settings of the adapters that are trained instead
    # Their layers: our names and transformers'.
    targets: Mapping[str, str] = field(default_factory=dict)
    base_hash: str | None = None  # of the weights that they belong to
    prompt_rows: tuple[int, int] | None = None  # of the soft prompts, if these alone are trained

    def module(self) -> FamilyModel:
        """Return `models/FAMILY/model.py`, or that of a dotted name."""
        return families.load_model(self.family)

    def new_head(self) -> Head:
        """Return the task's layer, its weights drawn."""
        has_bias = BIAS in classifier_names(self.module())
        return Head(self.config.hidden_size, self.outputs, self.head_dropout, has_bias)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The parameters whose first dimension is the vocabulary."""
        return families.vocabulary(self.family)

    def new_tokens(self, vocab_size: int) -> int:
        """Return how many of the tokens `init_from` has not."""
        return vocab_size - self.rows if self.rows is not None else 0
