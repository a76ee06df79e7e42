"""Two tokenizers used as one: that of the sources, and that of the targets.

Where one tokenizer is asked for, it is the tokenizer of the targets, which the model predicts;
`source` is the other one. In a checkpoint each has a folder of its own.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from nlpkit.contracts.tokenizer import Extendable, Tokenizer
from nlpkit.errors import FileError

KIND = "source and target"  # what messages call it
FOLDERS = ("source_tokenizer", "target_tokenizer")


class SourceAndTarget:
    """The tokenizer of the targets, with that of the sources in `source`."""

    files: ClassVar[tuple[str, ...]] = FOLDERS

    def __init__(self, source: Tokenizer, target: Tokenizer):
        self.source, self.target = source, target

    @property
    def bos_id(self) -> int | None:
        """The id of the begin token."""
        return self.target.bos_id

    @property
    def eos_id(self) -> int | None:
        """The id of the end token."""
        return self.target.eos_id

    @property
    def unk_id(self) -> int | None:
        """The id of the unknown token."""
        return self.target.unk_id

    @property
    def pad_id(self) -> int | None:
        """The id of the padding token, if the sources have a token of this id, too."""
        found = self.target.pad_id
        return found if found is not None and found < self.source.vocab_size else None

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return self.target.vocab_size

    def save(self, directory: str | Path) -> None:
        """Write the files of both, each in its folder."""
        for folder, side in zip(FOLDERS, (self.source, self.target), strict=True):
            side.save(Path(directory) / folder)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a target."""
        return self.target.encode(text)

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of each target."""
        return self.target.encode_batch(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of a target."""
        return self.target.decode(ids)

    def token(self, token_id: int) -> str:
        """Return the token of the targets with this id."""
        return self.target.token(token_id)

    def token_characters(self) -> np.ndarray:
        """Return the number of characters in each token of the targets: (V,) int32."""
        return self.target.token_characters()

    def fingerprint(self) -> str:
        """Return a hash of both."""
        both = f"{self.source.fingerprint()}\n{self.target.fingerprint()}"
        return hashlib.sha256(both.encode()).hexdigest()

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens of the targets."""
        return cast(Extendable, self.target).special_ids

    def special_id(self, token: str) -> int | None:
        """Return the id of a special token of the targets, None if one of the two lacks it."""
        found = [cast(Extendable, side).special_id(token) for side in (self.source, self.target)]
        return None if None in found else found[1]

    def extended(self, tokens: Iterable[str]) -> Tokenizer:
        """Return both with special tokens added that they lack."""
        wanted, made = [*tokens], []
        for side in (self.source, self.target):
            known = cast(Extendable, side)
            lacking = [token for token in wanted if known.special_id(token) is None]
            made.append(known.extended(lacking) if lacking else side)
        return join_sides(*made)


def join_sides(source: Tokenizer, target: Tokenizer) -> Tokenizer:
    """Return both as one; it lacks `train` and `load` alone, which its parts have."""
    return cast(Tokenizer, SourceAndTarget(source, target))


def of_sources(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer of the sources, the same one where there is one for both."""
    return tokenizer.source if isinstance(tokenizer, SourceAndTarget) else tokenizer


def check_sources(directory: Path, config: Any, tokenizer: Tokenizer | None) -> None:
    """Raise `FileError` unless the tokenizer has the vocabulary of sources of a model."""
    wanted: int | None = config.setting("source_vocab_size")
    two = isinstance(tokenizer, SourceAndTarget)
    found = of_sources(tokenizer).vocab_size if two and tokenizer is not None else None
    if found != wanted:
        raise FileError(
            f"{directory}: the model has {_describe(wanted)}, and its tokenizer {_describe(found)}"
        )


def _describe(size: int | None) -> str:
    return "one vocabulary for both texts" if size is None else f"{size} tokens for sources alone"
