"""Byte-level byte pair encoding as in GPT-2: every text can be encoded, without loss.

Sennrich et al. 2016 (arXiv 1508.07909) on the bytes of Radford et al. 2019, sec. 2.2. In a trained
vocabulary the special tokens `<|endoftext|>` and `<pad>` come first; in GPT-2's own,
`<|endoftext|>` comes last, and there is no `<pad>`. The ids are those of `transformers`'
GPT2Tokenizer.

Reads `tokenizer.json`, and GPT-2's own files: `vocab.json` and `merges.txt` as transformers names
them, or `encoder.json` and `vocab.bpe` as OpenAI does.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import Field
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from nlpkit.config import FrozenConfig
from nlpkit.errors import FileError
from nlpkit.tokenizers import _pairs, _text
from nlpkit.tokenizers._hf import LibraryTokenizer

_END = "<|endoftext|>"
_PAD = "<pad>"
# The files of vocabulary and merges, of transformers and of OpenAI.
_FILES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}


class Config(FrozenConfig):
    """Settings of training."""

    vocab_size: int = Field(
        default=50257, ge=258, description="Number of tokens: 2 special, 256 bytes, then merges."
    )
    min_frequency: int = Field(default=2, ge=1, description="Rarer pairs of tokens are not merged.")


class Tokenizer(LibraryTokenizer):
    """Text ↔ ids; `decode(encode(text)) == text` for every text."""

    kind = "bpe"
    model = "BPE"
    files = ("tokenizer.json", *_FILES)
    bos = _END
    eos = _END
    pad = _PAD

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a directory in any of the three layouts; raise `FileError` if unfit."""
        found = _pairs.find(Path(path), _FILES)
        return super().load(path) if found is None else cls(_from_files(*found), str(found[0]))

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return a tokenizer with at most `config.vocab_size` tokens; reads `texts` once."""
        library = _byte_level(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            min_frequency=config.min_frequency,
            special_tokens=[_END, _PAD],
            initial_alphabet=sorted(_BYTE_OF),
            show_progress=False,
        )
        library.train_from_iterator(_text.sound(texts), trainer)
        return cls(library.to_str())

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, or None of an added one, which is text."""
        if token_id in self._library.get_added_tokens_decoder():
            return None
        symbols = self.token(token_id)
        return bytes(map(_BYTE_OF.__getitem__, symbols)) if {*symbols} <= {*_BYTE_OF} else None

    def _characters(self, token: str) -> int:
        # A character is counted at its first byte; in UTF-8 these are all bytes but 10xxxxxx. A
        # symbol without a byte (in a token that was added later) is a character.
        return sum(_BYTE_OF.get(symbol, 0) & 0xC0 != 0x80 for symbol in token)


def _byte_level(model: models.BPE) -> Library:
    """Return a tokenizer with GPT-2's way of cutting a text into words, and these into bytes."""
    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    return library


def _from_files(vocab: Path, merges: Path) -> str:
    """Return the `tokenizer.json` of GPT-2's vocabulary and its merges; raise `FileError`."""
    ids = _pairs.read_vocabulary(vocab)
    if missing := sorted(byte for symbol, byte in _BYTE_OF.items() if symbol not in ids):
        raise FileError(f"{vocab}: no token for the byte 0x{missing[0]:02X}: not byte-level")
    if _END not in ids:
        raise FileError(f"{vocab}: no {_END}: not GPT-2's")
    library = _byte_level(models.BPE(vocab=ids, merges=_pairs.read_merges(merges, ids)))
    library.add_special_tokens([token for token in (_END, _PAD) if token in ids])
    return library.to_str()


def _byte_symbols() -> dict[str, int]:
    """Return symbol → byte of GPT-2: printable characters, and U+0100 and up for other bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_symbols()
