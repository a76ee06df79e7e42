"""Two tokenizers used as one: that of the sources, and that of the targets.

Where one tokenizer is asked for, it is the tokenizer of the targets, which the model predicts;
`source` is the other one. In a checkpoint each has a folder of its own.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from nlpkit.contracts.tokenizer import Extendable, Tokenizer
from nlpkit.errors import FileError

KIND = "source and target"  # what messages call it
FOLDERS = ("source_tokenizer", "target_tokenizer")


class SourceAndTarget:
    """The tokenizer of the targets, with that of the sources in `source`."""

    def __init__(self, source: Tokenizer, target: Tokenizer):
        self.source, self.target = source, target
        self.bos_id, self.eos_id, self.unk_id = target.bos_id, target.eos_id, target.unk_id
        # Padding is one id for both, so the sources need a token of this id, too.
        pad = target.pad_id
        self.pad_id = pad if pad is not None and pad < source.vocab_size else None
        self.vocab_size = target.vocab_size
        self.encode, self.encode_batch = target.encode, target.encode_batch
        self.decode, self.token = target.decode, target.token
        self.token_characters, self.keeps_text = target.token_characters, target.keeps_text

    def save(self, directory: str | Path) -> None:
        """Write the files of both, each in its folder."""
        for folder, side in zip(FOLDERS, (self.source, self.target), strict=True):
            side.save(Path(directory) / folder)

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
    """Return both as one; it lacks only what its parts are made by: `train`, `load`, `files`."""
    return cast(Tokenizer, SourceAndTarget(source, target))


def of_sources(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer of the sources, the same one where there is one for both."""
    return tokenizer.source if isinstance(tokenizer, SourceAndTarget) else tokenizer


def check_sources(directory: Path, wanted: int | None, tokenizer: Tokenizer | None) -> None:
    """Raise `FileError` unless the tokenizer has so many tokens for sources alone, or None."""
    found = tokenizer.source.vocab_size if isinstance(tokenizer, SourceAndTarget) else None
    if found != wanted:
        raise FileError(
            f"{directory}: the model has {_describe(wanted)}, and its tokenizer {_describe(found)}"
        )


def _describe(size: int | None) -> str:
    return "one vocabulary for both texts" if size is None else f"{size} tokens for sources alone"
