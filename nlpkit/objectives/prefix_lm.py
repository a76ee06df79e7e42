"""Prefix language modelling for an encoder and a decoder (Raffel et al. 2020, arXiv:1910.10683).

Section 3.3.1: a text is cut in two, the encoder reads the first part, the decoder writes the second
one. As in the authors' code (`random_prefix_noise_mask`), the prefix of L tokens has 1 to L - 1 of
them, all equally likely.

L tokens of a piece, S tokens of a source, T of a target.
"""

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.examples.source_target import Contiguous, TextSourceTarget


class Config(FrozenConfig):
    """How text is cut into examples."""

    max_length: int = Setting(
        512,
        ge=2,
        description="longest piece of text, in tokens; a source or a target with its end token has "
        "no more",
    )
    contiguous: Contiguous = False


class Objective(TextSourceTarget):
    """Examples and loss of a text's continuation from its prefix."""

    term = "prefix_lm"
    parts = ("prefix_lm",)
    kept_part = "end"
    label_smoothing = 0.0
    min_piece = 2  # a token of the prefix and one of the rest

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.bind(tokenizer, model_config)
        self.piece = config.max_length - len(self.source_front)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        return np.asarray(pieces) + self.around

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a prefix of random length as source, and the rest as target.

        A piece of a single token, the last of a stream, is all target.
        """
        size = int(rng.integers(1, len(ids))) if len(ids) > 1 else 0
        return self.made(ids[:size], ids[size:])

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        target = example["input_ids"][1 + len(self.front) : len(example["labels"])]
        return [np.concatenate([example["source_ids"][len(self.source_front) : -1], target])]
