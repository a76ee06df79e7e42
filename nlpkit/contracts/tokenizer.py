"""The interface of a tokenizer; `encode` neither adds nor recognizes special tokens."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from nlpkit.config import FrozenConfig

# The ids of a text, and the characters [start, stop) of each token.
Placed: TypeAlias = tuple[list[int], list[tuple[int, int]]]


class Template(NamedTuple):
    """Tokens and texts (`$A`, `$B`) of a sequence, each with its token type: `[CLS]:0 $A:0`."""

    single: str
    pair: str
    words: tuple[str, ...] = ()  # special tokens that stand within a text for words

    def without_types(self) -> Template:
        """Return the template for a model that has no token types."""
        single, pair = (re.sub(r":\d+(?= |$)", ":0", each) for each in self[:2])
        return Template(single, pair, self.words)

    @property
    def tokens(self) -> set[str]:
        """The special tokens."""
        parts = f"{self.single} {self.pair}".split()
        return {part.rpartition(":")[0] for part in parts} - {"$A", "$B"}


class Tokenizer(Protocol):
    """Text to ids and back; trained on texts, saved in the layout of transformers, picklable."""

    # A directory with one of these files has a tokenizer of this kind.
    files: ClassVar[tuple[str, ...]]
    # Whether the tokens of a text hold all of its characters, but for unknown ones; else bits per
    # character count what they lose, such as spaces, or add.
    keeps_text: bool = False
    # What `train` did not take from the texts as it is, for stderr: `1 word of … cut`.
    training_note: str = ""

    # Ids of the special tokens; None if the vocabulary does not have the token.
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
    @abstractmethod
    def train(cls, texts: Iterable[str], config: Any) -> Tokenizer:
        """Return a tokenizer trained on the texts."""

    @classmethod
    @abstractmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Return the tokenizer in a directory or file; raise `FileError` if it cannot be read."""

    @abstractmethod
    def save(self, directory: str | Path) -> None:
        """Write the files into a directory, which is created if needed."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    @abstractmethod
    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of each text."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids without special tokens."""

    @abstractmethod
    def token(self, token_id: int) -> str:
        """Return the token with this id."""

    @abstractmethod
    def token_characters(self) -> np.ndarray:
        """Return the number of characters of text in each token: (V,) int32."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of everything that the ids of a text depend on."""


@runtime_checkable
class Growing(Tokenizer, Protocol):
    """A tokenizer whose vocabulary can be extended from texts."""

    def grow(self, texts: Iterable[str], vocab_size: int, min_frequency: int = 2) -> Tokenizer:
        """Return a tokenizer with new tokens from the texts, with ids after all others."""


@runtime_checkable
class Extendable(Tokenizer, Protocol):
    """A tokenizer to which an objective can add special tokens."""

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of all special tokens, sorted; text never has them, except the unknown token."""

    def special_id(self, token: str) -> int | None:
        """Return the id of a special token, None if it is not in the vocabulary."""

    def extended(self, tokens: Iterable[str]) -> Tokenizer:
        """Return a tokenizer with special tokens added after its vocabulary."""


@runtime_checkable
class Aligned(Protocol):
    """A tokenizer that knows the characters [start, stop) that each token stands for."""

    def encode_with_offsets(self, texts: list[str]) -> list[Placed]:
        """Return the ids of each text, and where each token is in it."""


@runtime_checkable
class ByteLevel(Protocol):
    """A tokenizer whose tokens are bytes."""

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, or None of one that is not made of bytes."""


class TokenizerFile(Protocol):
    """A file `tokenizers/NAME.py`; free of torch and transformers at import."""

    Config: type[FrozenConfig]
    Tokenizer: type[Tokenizer]


CONTRACTS = (TokenizerFile,)
CLASSES = {"Tokenizer": Tokenizer}
