"""Stand-ins that worker processes can import."""

import hashlib
import multiprocessing
import string
import time
from typing import Any

LETTERS = string.printable + "床前明月光疑是地上霜举头望低思故乡中文一二三"


def fork_workers(monkeypatch: Any) -> None:
    """Fork the workers from a process that has made their imports, a fourth of a second each.

    The job goes to them as to those that are spawned, pickled.
    """
    from nlpkit.data import _worker_pool

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nlpkit.data.tokenize", "tests._fakes"])
    ways = {"spawn": context}
    monkeypatch.setattr(_worker_pool.multiprocessing, "get_context", ways.__getitem__)


class CharacterTokenizer:
    """A token a character: id 0 is unknown, the others are the places in `alphabet`, from 1."""

    unk_id: int | None = 0

    def __init__(self, alphabet: str = LETTERS, vocab_size: int | None = None, delay: float = 0.0):
        self.alphabet = alphabet
        self.vocab_size = vocab_size or len(alphabet) + 1
        self.delay = delay
        self._ids = {character: i for i, character in enumerate(alphabet, 1)}

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(character, 0) for character in text]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        if self.delay:
            time.sleep(self.delay)
        return [self.encode(text) for text in texts]

    def decode(self, ids) -> str:
        return "".join("?" if i == 0 else self.alphabet[i - 1] for i in ids)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.alphabet}{self.vocab_size}".encode()).hexdigest()


class AlignedCharacters(CharacterTokenizer):
    """A token a character that knows where it stands."""

    def encode_with_offsets(self, texts):
        return [(self.encode(t), [(i, i + 1) for i in range(len(t))]) for t in texts]


class BrokenTokenizer(CharacterTokenizer):
    """Fails as a bug would, in the worker."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        raise ZeroDivisionError("a bug of the tokenizer")


class DyingTokenizer(CharacterTokenizer):
    """Ends its process as the kernel does when memory is short."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
        return []
