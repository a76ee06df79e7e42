"""Whole-word masking (BERT's release of May 2019; Cui et al. 2019, arXiv:1906.08101).

As `mlm`, but all tokens of a word are targets together. What a target becomes is drawn for each
token, as in BERT. Words are those of `data/token_flags.py`: runs between white space and
punctuation, and Chinese words by jieba, although the tokens are characters.
"""

from collections.abc import Mapping

import numpy as np

from nlpkit.objectives.examples.masking import Drawn, MaskConfig, TextMasking, draw_words


class Config(MaskConfig):
    """How text is cut, how many tokens are targets, and what becomes of them."""


class Objective(TextMasking):
    """Examples and loss of whole-word masking."""

    token_flags = ("word_start",)

    def draw(
        self, example: Mapping[str, np.ndarray], where: np.ndarray, rng: np.random.Generator
    ) -> Drawn:
        return draw_words(example, where, rng)
