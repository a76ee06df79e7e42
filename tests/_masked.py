"""Masked objectives on made-up text: a tokenizer, model settings, and counts."""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from nlpkit import registry
from nlpkit.contracts.batch import FlaggedIds, bit
from nlpkit.data.token_flags import flag_tokens
from nlpkit.tokenizers.wordpiece import Config, Tokenizer
from tests.parts import encoder

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A model predicts what it does not see.",
    "Whole words are masked together, piece by piece.",
    "Counting needs many draws.",
    "我们预测被遮住的词语。",
    "北京大学的学生在图书馆里读书。",
)
MODEL = encoder.Config(hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8)
TOKEN_FLAGS = ("sentence_start", "word_start", "second_side")


@cache
def tokenizer() -> Tokenizer:
    """Return a WordPiece tokenizer whose words have several pieces."""
    made = Tokenizer.train(SENTENCES, Config(vocab_size=120, min_frequency=1))
    assert made.vocab_size > 100
    return made


def bound(name: str, model: object = MODEL, **settings: object):
    """Return the objective `name` with these settings."""
    module = registry.load("objectives", name)
    return module.Objective(module.Config(**settings), tokenizer(), model)


def flagged(text: str, is_second: bool = False) -> FlaggedIds:
    """Return the ids and all flags of a text."""
    ((ids, offsets),) = tokenizer().encode_with_offsets([text])
    return FlaggedIds(np.array(ids), flag_tokens(text, offsets, TOKEN_FLAGS, is_second))


def document(sentences: int, rng: np.random.Generator) -> FlaggedIds:
    """Return a document of random sentences."""
    return flagged(" ".join(rng.choice(SENTENCES, sentences)))


def plain(size: int, rng: np.random.Generator) -> np.ndarray:
    """Return random ids of text."""
    words = np.setdiff1d(np.arange(tokenizer().vocab_size), tokenizer().special_ids)
    return rng.choice(words, size)


def examples(objective, count: int, size: int, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Yield examples of random ids, each with random numbers of its own."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        yield objective.example(plain(size, rng), np.random.default_rng([seed, number]))


def bound_of(share: float, count: int, deviations: float = 5.0) -> float:
    """Return how far the share of `count` independent draws may be off: binomial, 5 deviations."""
    return deviations * math.sqrt(share * (1 - share) / count)


def flag(name: str) -> int:
    """Return the bit of a flag."""
    return bit(name)
