"""Byte-level byte pair encoding as in GPT-2: every text can be encoded, without loss.

Sennrich et al. 2016 (arXiv 1508.07909) on the bytes of Radford et al. 2019, sec. 2.2. Differs from
GPT-2: the special tokens `<|endoftext|>` and `<pad>` come first, not last.
"""

from collections.abc import Iterable

from pydantic import Field
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from nlpkit.config import FrozenConfig
from nlpkit.tokenizers import _text
from nlpkit.tokenizers._hf import LibraryTokenizer


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
    bos = "<|endoftext|>"
    eos = "<|endoftext|>"
    pad = "<pad>"

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return a tokenizer with at most `config.vocab_size` tokens; reads `texts` once."""
        library = Library(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        library.post_processor = processors.ByteLevel(trim_offsets=False)
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            min_frequency=config.min_frequency,
            special_tokens=["<|endoftext|>", "<pad>"],
            initial_alphabet=sorted(_BYTE_OF),
            show_progress=False,
        )
        library.train_from_iterator(_text.sound(texts), trainer)
        return cls(library.to_str())

    def _characters(self, token: str) -> int:
        # A character is counted at its first byte; in UTF-8 these are all bytes but 10xxxxxx. A
        # symbol without a byte (in a token that was added later) is a character.
        return sum(_BYTE_OF.get(symbol, 0) & 0xC0 != 0x80 for symbol in token)


def _byte_symbols() -> dict[str, int]:
    """Return symbol → byte of GPT-2: printable characters, and U+0100 and up for other bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_symbols()
