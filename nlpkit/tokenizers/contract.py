"""What every tokenizer offers: `encode` adds no control token, and reads none in a text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from nlpkit.config import FrozenConfig


class TokenizerFile(Protocol):
    """A file `tokenizers/NAME.py`; free of torch and transformers at import."""

    Config: type[FrozenConfig]
    Tokenizer: type[Tokenizer]


class Tokenizer(Protocol):
    """Text to ids and back, learned from text, kept in transformers' layout; picklable."""

    files: ClassVar[
        tuple[str, ...]
    ]  # any one of these in a directory says that it is a tokenizer's

    # Ids of the special tokens, None where the kind, or this vocabulary, has none.
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def unk_id(self) -> int | None: ...
    @property
    def pad_id(self) -> int | None: ...
    @property
    def vocab_size(self) -> int: ...

    @classmethod
    def train(cls, texts: Iterable[str], config: Any) -> Tokenizer:
        """Return the tokenizer that the texts give."""

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Return the tokenizer in a directory, or file; raise `FileError`."""

    def save(self, directory: str | Path) -> None:
        """Write its files into a directory, which is made."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of each text."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, special tokens left out."""

    def token(self, token_id: int) -> str:
        """Return the token with this id."""

    def token_characters(self) -> np.ndarray:
        """Return how many characters of text each token stands for, (V,)."""

    def fingerprint(self) -> str:
        """Return a hash of everything that the ids of a text depend on."""


@runtime_checkable
class Growing(Tokenizer, Protocol):
    """A tokenizer whose vocabulary can be extended from texts."""

    def grow(self, texts: Iterable[str], vocab_size: int, min_frequency: int = 2) -> Tokenizer:
        """Return the tokenizer with new tokens from the texts after the old ones."""


@runtime_checkable
class Extendable(Tokenizer, Protocol):
    """A tokenizer to which an objective can add special tokens."""

    def special_id(self, token: str) -> int | None:
        """Return the id of a special token, None if it is not in the vocabulary."""

    def extended(self, tokens: Iterable[str]) -> Tokenizer:
        """Return a tokenizer with special tokens added after its vocabulary."""
