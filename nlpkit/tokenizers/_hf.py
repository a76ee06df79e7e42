"""What the tokenizers built on the `tokenizers` library share: ids, text, files.

Text is text: a document that says `[MASK]` gives the ids of those characters, never the control
token (`AutoTokenizer.from_pretrained(directory, split_special_tokens=True)` does as we do; without
that option transformers obeys control tokens found in text). No special token is added by `encode`.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from nlpkit.errors import DataError, FileError
from nlpkit.tokenizers import _text


class LibraryTokenizer(ABC):
    """Text ↔ ids by a `tokenizer.json`; a kind adds its names, training and character counts."""

    kind: ClassVar[str]
    model: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    end_of_word: ClassVar[str | None] = None  # what a word's last piece ends in
    bos: ClassVar[str | None] = None
    eos: ClassVar[str | None] = None
    unk: ClassVar[str | None] = None
    pad: ClassVar[str | None] = None
    mask: ClassVar[str | None] = None
    cls: ClassVar[str | None] = None
    sep: ClassVar[str | None] = None

    def __init__(self, text: str, source: str = "tokenizer.json"):
        """Take the content of a `tokenizer.json`; `source` names it in a `FileError`."""
        try:
            self._library = Library.from_str(text)
        # The library raises a bare Exception for anything wrong with the file.
        except Exception as error:
            raise FileError(f"{source}: not a tokenizer.json: {error}") from error
        found = type(self._library.model).__name__
        if found != self.model:
            raise FileError(f"{source}: holds a {found} model; kind {self.kind} has {self.model}")
        ends = getattr(self._library.model, "end_of_word_suffix", None) or None
        if ends != self.end_of_word:
            wanted = self.end_of_word or "no suffix"
            raise FileError(f"{source}: words end in {ends or 'no suffix'}, not in {wanted}")
        self._library.encode_special_tokens = True
        self._library.no_truncation()
        self._library.no_padding()
        added = self._library.get_added_tokens_decoder()
        self._special = {t.content: i for i, t in added.items() if t.special}
        self.bos_id = self._id(self.bos)
        self.eos_id = self._id(self.eos)
        self.unk_id = self._id(self.unk)
        self.pad_id = self._id(self.pad)
        self.mask_id = self._id(self.mask)

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        # The library's own pickle forgets `encode_special_tokens`.
        return (type(self), (self._library.to_str(),))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a directory's `tokenizer.json`, or that file itself; raise `FileError` if unfit."""
        text, file = _text.read(path, "tokenizer.json")
        return cls(text, str(file))

    def save(self, directory: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which `AutoTokenizer` opens."""
        names = {
            **{"bos_token": self.bos, "eos_token": self.eos, "unk_token": self.unk},
            **{"pad_token": self.pad, "mask_token": self.mask},
            **{"cls_token": self.cls, "sep_token": self.sep},
        }
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{key: token for key, token in names.items() if self._id(token) is not None},
        }
        files = {
            "tokenizer.json": self._library.to_str(pretty=True) + "\n",
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        }
        _text.write(directory, files)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return self._library.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; no control token is added, none in `text` is obeyed."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of each text, worked out on all cores."""
        batch = list(_text.sound(texts))
        found = self._library.encode_batch_fast(batch, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_with_offsets(
        self, texts: Iterable[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return the ids of each text, and the characters [start, stop) that each stands for."""
        found = self._library.encode_batch(list(_text.sound(texts)), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in found]

    def special_id(self, token: str) -> int | None:
        """Return the id of a special token, or None if there is none of that name."""
        return self._special.get(token)

    def extended(self, tokens: Iterable[str]) -> Self:
        """Return a tokenizer with more special tokens, their ids behind all others."""
        library = Library.from_str(self._library.to_str())
        added = [AddedToken(token, special=True, normalized=False) for token in tokens]
        library.add_special_tokens(added)
        return type(self)(library.to_str())

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return self._library.decode([self._checked(i) for i in ids], skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """Return the token as the vocabulary writes it."""
        return str(self._library.id_to_token(self._checked(token_id)))

    def token_characters(self) -> np.ndarray:
        """Return (V,) int32: the characters of text that each token stands for.

        0 for special tokens, 1 for the unknown one.
        """
        counts = np.zeros(self.vocab_size, dtype=np.int32)
        for token, token_id in self._library.get_vocab(with_added_tokens=True).items():
            if token not in self._special:
                counts[token_id] = self._characters(token)
        if self.unk_id is not None:
            counts[self.unk_id] = 1
        return counts

    def fingerprint(self) -> str:
        """Return a SHA-256 that differs where ids differ; the same in every process."""
        content = json.dumps(json.loads(self._library.to_str()), sort_keys=True)
        return hashlib.sha256(f"{self.kind} 1\n{content}".encode()).hexdigest()

    @abstractmethod
    def _characters(self, token: str) -> int:
        """Return the characters of text that an ordinary token stands for."""

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._library.token_to_id(token)

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise DataError(f"token id {token_id} is not among the {self.vocab_size} tokens")
        return token_id


def count_words(
    texts: Iterable[str], split: Callable[[str], list[tuple[str, tuple[int, int]]]]
) -> Counter[str]:
    """Return how often each word that `split` finds was seen; one pass over `texts`."""
    words: Counter[str] = Counter()
    for text in _text.sound(texts):
        words.update(word for word, _ in split(text))
    return words


def count_characters(words: Counter[str]) -> Counter[str]:
    """Return how often each character was seen, most frequent first, ties by the character."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    return Counter(dict(sorted(characters.items(), key=lambda pair: (-pair[1], pair[0]))))


def repeat(words: Counter[str]) -> Iterator[str]:
    """Yield each word as often as it was counted, spaces between: all that a trainer accepts."""
    at_once = 10_000
    for word, count in words.items():
        for start in range(0, count, at_once):
            yield " ".join([word] * min(at_once, count - start))
