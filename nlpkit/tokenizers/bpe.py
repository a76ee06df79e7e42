"""Byte-level byte pair encoding as in GPT-2: every text can be encoded, without loss.

Sennrich et al. 2016 (arXiv 1508.07909) on the bytes of Radford et al. 2019, sec. 2.2. In a trained
vocabulary the special tokens `<|endoftext|>` and `<pad>` come first; in GPT-2's own,
`<|endoftext|>` comes last, and there is no `<pad>`. The ids are those of `transformers`'
GPT2Tokenizer.

Reads `tokenizer.json`, and GPT-2's own files: `vocab.json` and `merges.txt` as transformers names
them, or `encoder.json` and `vocab.bpe` as OpenAI does; RoBERTa's vocabulary, too. Where
`<|endoftext|>` is no special token, `tokenizer_config.json` names those that begin and end a text,
as of Llama; by default they are RoBERTa's. Its model may be SentencePiece's, of characters, also in
a file of its own (`tokenizer.model`).
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from pydantic import Field
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from nlpkit.config import FrozenConfig, VocabSize
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping
from nlpkit.tokenizers.library import merge_files, named_tokens, pieces, text_files
from nlpkit.tokenizers.library.hf import BYTES, LibraryTokenizer, count_in_piece
from nlpkit.tokenizers.library.training import cut_texts, describe_cut

_END = "<|endoftext|>"
_PAD = "<pad>"
# Special tokens of RoBERTa and Llama, as `tokenizer_config.json` calls them.
_ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": _PAD}
_SPECIAL = (*_ROBERTA.values(), "<mask>")
# The files of vocabulary and merges, of transformers and of OpenAI.
_FILES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
_OTHERS = ("qwen2", "qwen3", "gptneox")  # they cut texts into other words first
# Symbol → byte of GPT-2: printable characters, and U+0100 and up for other bytes.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_REST = [byte for byte in range(0x100) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE}
_BYTE_OF |= {chr(0x100 + index): byte for index, byte in enumerate(_REST)}


class Config(FrozenConfig):
    """Settings of training."""

    vocab_size: VocabSize = Field(
        default=50257, ge=258, description="number of tokens: 2 special, 256 bytes, then merges"
    )
    min_frequency: int = Field(default=2, ge=1, description="rarer pairs of tokens are not merged")


class Tokenizer(LibraryTokenizer):
    """Text ↔ ids; `decode(encode(text)) == text` for every text."""

    kind = "bpe"
    model = "BPE"
    files = ("tokenizer.json", *_FILES, *pieces.FILES)
    bos = _END
    eos = _END
    pad = _PAD

    @classmethod
    def _read_others(cls, place: Path, settings: JsonMapping) -> tuple[str, Path] | None:
        if file := pieces.find(place):
            return pieces.load(file, settings), file
        found = merge_files.find(place, _FILES)
        return found and (_load_files(*found, settings), found[0])

    def _follow(self, settings: JsonMapping, file: Path) -> None:
        # A text may end with another token, as of Qwen. Our own files say it in NAMES: `eos_token`
        # alone is the end of what an objective generates there.
        end = named_tokens.written(settings.get("eos_token", _END))
        general = (None, *named_tokens.CLASSES)
        published = settings.get("tokenizer_class") not in general and end not in (None, _END)
        otherwise = published or named_tokens.NAMES in settings or self.special_id(_END) is None
        names = self._named(settings, file) if otherwise else {}
        self._use(names, named_tokens.find_kept(file.parent, self._library))
        self._begins = file.suffix == ".model" and settings.get("add_bos_token") is True

    def _named(self, settings: JsonMapping, file: Path) -> dict[str, str | None]:
        names = named_tokens.find_names(settings, _ROBERTA, self._library, file)
        if names["pad_token"] in [names[role] for role in _ROBERTA if role != "pad_token"]:
            names["pad_token"] = None  # the other one is not to be left out of texts
        if names["eos_token"] is None:
            raise FileError(
                f"{file}: no special token {_END} ends a text; if it is another one, say which: "
                '"eos_token" in tokenizer_config.json'
            )
        return names

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
        lengths: list[int] = []
        whole = text_files.sound(texts)
        library.train_from_iterator(cut_texts(whole, library.pre_tokenizer, lengths), trainer)
        made = cls(library.to_str())
        made.training_note = describe_cut(len(lengths))
        return made

    @cached_property
    def _of_bytes(self) -> bool:
        return all(self._id(symbol) is not None for symbol in _BYTE_OF)

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, or None of an added one, which is text."""
        if token_id in self._library.get_added_tokens_decoder():
            return None
        symbols = self.token(token_id)
        if not self._of_bytes:
            return bytes([BYTES[symbols]]) if symbols in BYTES else None
        return bytes(map(_BYTE_OF.__getitem__, symbols)) if {*symbols} <= {*_BYTE_OF} else None

    def _characters(self, token: str) -> int:
        if not self._of_bytes:
            return count_in_piece(token)
        # A character is counted at its first byte; in UTF-8 these are all bytes but 10xxxxxx. A
        # symbol without a byte (in a token that was added later) is a character.
        return sum(_BYTE_OF.get(symbol, 0) & 0xC0 != 0x80 for symbol in token)


def _byte_level(model: models.BPE, add_prefix: bool = False) -> Library:
    """Return a tokenizer with GPT-2's way of cutting a text into words, and these into bytes."""
    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    return library


def _load_files(vocab: Path, merges: Path, settings: JsonMapping) -> str:
    if (family := pieces.name_family(vocab.parent, settings)) in _OTHERS:
        raise FileError(f"{vocab}: {family} cuts words in another way; {pieces.REMEDY}")
    ids = merge_files.read_vocabulary(vocab)
    if missing := sorted(byte for symbol, byte in _BYTE_OF.items() if symbol not in ids):
        raise FileError(f"{vocab}: no token for the byte 0x{missing[0]:02X}: not byte-level")
    roberta = {*_SPECIAL} <= ids.keys()
    if not roberta and _END not in ids:
        raise FileError(f"{vocab}: no {_END}: not GPT-2's; nor RoBERTa's {', '.join(_SPECIAL)}")
    model = models.BPE(vocab=ids, merges=merge_files.read_merges(merges, ids))
    library = _byte_level(model, bool(settings.get("add_prefix_space")))
    special = _SPECIAL if roberta else (_END, _PAD)
    library.add_special_tokens([token for token in special if token in ids])
    named_tokens.add_tokens(library, settings, vocab)
    return library.to_str()
