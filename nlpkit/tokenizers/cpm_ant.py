"""CPM-Ant's tokenizer: jieba words, then the greedy longest match inside each word.

The ids are those of `transformers.CpmAntTokenizer._tokenize`. Differs from `tokenizer(text)` in two
ways. No `<s>` is added. And special tokens written in a text are encoded as ordinary characters,
while transformers makes them special tokens (`</_>` and `</n>` become `<unk>`). With
`tokenizer(text, add_special_tokens=False, split_special_tokens=True)` transformers gives the same
ids. The vocabulary file has one token a line; `</_>` is the space, `</n>` the newline. A carriage
return cannot be in such a file and is always `<unk>`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from nlpkit.config import FrozenConfig, VocabSize
from nlpkit.contracts.tokenizer import Placed
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.tokenizers.library import text_files

# transformers requires all but `<mask>` and `<sep>`.
_REQUIRED = ("<pad>", "<unk>", "</n>", "</_>", "<s>", "</s>", "<d>", "</d>")
SPECIAL_TOKENS = (*_REQUIRED[:2], "<mask>", "<sep>", *_REQUIRED[2:])
_WRITTEN = {"</_>": " ", "</n>": "\n"}
_SETTINGS = {
    "tokenizer_class": "CpmAntTokenizer",
    **{"bod_token": "<d>", "eod_token": "</d>", "bos_token": "<s>", "eos_token": "</s>"},
    **{"pad_token": "<pad>", "unk_token": "<unk>"},
    **{"line_token": "</n>", "space_token": "</_>", "padding_side": "left"},
}
# As max_input_chars_per_word in transformers; a longer word is one <unk>.
_LONGEST_WORD = 200
_CACHED_WORDS = 1 << 16
# Part of the fingerprint; must change if the same vocabulary gives different ids.
_ALGORITHM = "cpm_ant 1"


class Config(FrozenConfig):
    """Settings of training."""

    vocab_size: VocabSize = Field(
        default=30720, ge=16, description="number of tokens, 10 of them special"
    )
    min_frequency: int = Field(
        default=2, ge=1, description="rarer characters and words get no token"
    )


class Tokenizer:
    """Text ↔ ids; fast to import, to pickle and to fork."""

    files: ClassVar[tuple[str, ...]] = ("vocab.txt",)
    keeps_text = True
    training_note = ""

    def __init__(self, tokens: Sequence[str], source: str = "vocabulary"):
        """Take the tokens in the order of ids; `source` names their file in a `FileError`."""
        _check(tokens, source)
        self._tokens = tuple(tokens)
        self._special = {token: i for i, token in enumerate(tokens) if token in SPECIAL_TOKENS}
        self.pad_id: int | None = self._special["<pad>"]
        self.unk_id: int | None = self._special["<unk>"]
        self.bos_id: int | None = self._special["<s>"]
        self.eos_id: int | None = self._special["</s>"]
        self.mask_id: int | None = self._special.get("<mask>")
        # Special tokens are left out, so that no text can match one.
        self._ids = {t: i for i, t in enumerate(tokens) if t not in self._special}
        self._ids |= {text: self._special[token] for token, text in _WRITTEN.items()}
        self._longest_token = max(map(len, self._ids))
        self._cached_match = lru_cache(_CACHED_WORDS)(self._match)
        self._texts = [_WRITTEN.get(token, token) for token in tokens]
        self._silent = frozenset((self.pad_id, self.bos_id, self.eos_id))

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[tuple[str, ...]]]:
        return (Tokenizer, (self._tokens,))

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return a tokenizer with at most `config.vocab_size` tokens.

        These are special tokens, then the most frequent characters, then the jieba words that save
        the most tokens; ties are sorted by the string. Reads `texts` once, and needs memory for the
        distinct words.
        """
        return cls(_extend(SPECIAL_TOKENS, texts, config.vocab_size, config.min_frequency))

    def grow(self, texts: Iterable[str], vocab_size: int, min_frequency: int = 2) -> "Tokenizer":
        """Return a tokenizer with new tokens from `texts`; old tokens keep their ids.

        New tokens are selected as in `train`, by what they save compared to their present pieces.
        Raises `UsageError` if `vocab_size` is less than the number of tokens.
        """
        if vocab_size < self.vocab_size:
            raise UsageError(
                f"vocab_size: {vocab_size} is less than the {self.vocab_size} tokens there are;"
                f" a vocabulary only grows, give {self.vocab_size} or more"
            )
        return Tokenizer(_extend(self._tokens, texts, vocab_size, min_frequency))

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a directory's `vocab.txt`, or that file itself; raise `FileError` if unfit."""
        # As in transformers, CRLF is a newline, and the last newline may be missing.
        text, file = text_files.read(path, "vocab.txt")
        return cls(text.removesuffix("\n").split("\n"), str(file))

    def save(self, directory: str | Path) -> None:
        """Write `vocab.txt` and `tokenizer_config.json`, which `AutoTokenizer` opens."""
        files = {
            "vocab.txt": "".join(f"{token}\n" for token in self._tokens),
            "tokenizer_config.json": json.dumps(_SETTINGS, indent=2) + "\n",
        }
        text_files.write(directory, files)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens."""
        ids: list[int] = []
        for word in _words(text):
            ids += self._cached_match(word[: _LONGEST_WORD + 1])  # the rest changes nothing
        return ids

    def _match(self, word: str) -> tuple[int, ...]:
        """Return the ids of the greedy longest match; a character in no token is `<unk>`."""
        unk, length = self._special["<unk>"], len(word)
        if length > _LONGEST_WORD:
            return (unk,)
        ids = []
        start = 0
        while start < length:
            stop = min(start + self._longest_token, length)
            while stop > start + 1 and word[start:stop] not in self._ids:
                stop -= 1
            ids.append(self._ids.get(word[start:stop], unk))
            start = stop
        return tuple(ids)

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, texts: Iterable[str]) -> list[Placed]:
        """Return the ids of each text, and the characters [start, stop) of each token."""
        return [self._align(text) for text in texts]

    def _align(self, text: str) -> Placed:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        start = 0
        for word in _words(text):
            found = self._match(word)
            ids += found
            for token_id in found:
                # An `<unk>` is one character, or a whole word that is too long.
                size = 1 if token_id == self.unk_id else len(self._texts[token_id])
                size = len(word) if len(word) > _LONGEST_WORD else size
                offsets.append((start, start + size))
                start += size
        return ids, offsets

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` without pad, bos and eos, but with other special tokens."""
        return "".join(
            self._texts[self._check_id(token_id)]
            for token_id in ids
            if token_id not in self._silent
        )

    def token(self, token_id: int) -> str:
        """Return the token as written in the vocabulary (`</_>` for the space)."""
        return self._tokens[self._check_id(token_id)]

    def token_characters(self) -> np.ndarray:
        """Return (V,) int32: the number of characters in each token.

        It is 0 for special tokens, 1 for `<unk>`, the space and the newline. (This is wrong for an
        `<unk>` of a word of more than 200 characters.)
        """
        counts = [0 if token in self._special else len(token) for token in self._tokens]
        for token in ("<unk>", *_WRITTEN):
            counts[self._special[token]] = 1
        return np.array(counts, dtype=np.int32)

    def fingerprint(self) -> str:
        """Return a SHA-256 of the tokenizer, the same in every process."""
        return hashlib.sha256("\n".join((_ALGORITHM, *self._tokens)).encode()).hexdigest()

    def _check_id(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._tokens):
            raise DataError(f"token id {token_id} is not among the {len(self._tokens)} tokens")
        return token_id


def _words(text: str) -> list[str]:
    # Imported here, since jieba loads in a tenth of a second: tokens may lie in the cache.
    import rjieba

    try:
        return rjieba.cut(text, False)
    except UnicodeEncodeError as error:
        raise text_files.surrogate_error(text, error) from error


def _check(tokens: Sequence[str], source: str) -> None:
    lines: dict[str, int] = {}
    for line, token in enumerate(tokens, 1):
        if token in ("", " "):
            what = "the line is empty" if token == "" else "a bare space, which is written </_>"
            raise FileError(f"{source}:{line}: {what}; expected one token a line")
        if token in lines:
            raise FileError(f"{source}:{line}: {token!r} is already on line {lines[token]}")
        lines[token] = line
    missing = [token for token in _REQUIRED if token not in lines]
    if missing:
        raise FileError(
            f"{source}: no {' '.join(missing)}; a CPM-Ant vocabulary has {' '.join(_REQUIRED)}"
        )


def _extend(
    tokens: Sequence[str], texts: Iterable[str], vocab_size: int, min_frequency: int
) -> list[str]:
    """Return `tokens` and new ones, at most `vocab_size`: characters, then words of `texts`."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word in _words(text) if len(word) <= _LONGEST_WORD)
    known = set(tokens) | {" ", "\n"}
    frequent = _best(text_files.count_characters(words), known, min_frequency)
    tokens = [*tokens, *frequent[: vocab_size - len(tokens)]]
    if len(tokens) < vocab_size:
        match = Tokenizer(tokens)._match
        savings = Counter(
            {
                word: count * (len(match(word)) - 1)
                for word, count in words.items()
                if count >= min_frequency and len(word) > 1 and word not in known
            }
        )
        tokens += _best(savings, known, 1)[: vocab_size - len(tokens)]
    return tokens


def _best(scores: Counter[str], known: set[str], least: int) -> list[str]:
    """Return the unknown strings with a score of `least` or more, best first, ties by string."""
    # A carriage return would be a new line in the vocabulary file.
    found = [t for t, n in scores.items() if n >= least and t not in known and "\r" not in t]
    return sorted(found, key=lambda token: (-scores[token], token))
