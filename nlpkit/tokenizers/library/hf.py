"""The common part of tokenizers that use the `tokenizers` library: encoding, decoding, files.

A special token written in a text, such as `[MASK]`, is encoded as ordinary characters, as with
`AutoTokenizer.from_pretrained(directory, split_special_tokens=True)`. Without this option
transformers would make it the special token. `encode` adds no special tokens.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Library

from nlpkit.contracts.tokenizer import Placed, Template
from nlpkit.errors import DataError, FileError
from nlpkit.json_types import JsonMapping
from nlpkit.tokenizers.library import named_tokens, text_files
from nlpkit.tokenizers.library.template import BERT, T5, set_template

# The tokens of SentencePiece that are bytes.
BYTES = {f"<0x{byte:02X}>": byte for byte in range(0x100)}


class _Frame(NamedTuple):
    """transformers' template, and its names of a family's tokens."""

    template: Template
    cls: str | None = None
    sep: str | None = None
    mask: str | None = None


_XLNET = Template("$A:0 <sep>:0 <cls>:2", "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2")
_ROBERTA = Template("<s>:0 $A:0 </s>:0", "<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0")
# RoBERTa has T5's only token, too.
_FRAMES = (
    _Frame(_XLNET, "<cls>", "<sep>", "<mask>"),
    _Frame(BERT, "[CLS]", "[SEP]", "[MASK]"),
    _Frame(_ROBERTA, "<s>", "</s>", "<mask>"),
    _Frame(T5),
)


class LibraryTokenizer(ABC):
    """A tokenizer with a `tokenizer.json`; subclasses add names, training and character counts."""

    kind: ClassVar[str]
    model: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    keeps_text = False
    training_note = ""
    end_of_word: ClassVar[str | None] = None  # the suffix of the last piece of a word
    bos: ClassVar[str | None] = None
    eos: ClassVar[str | None] = None
    unk: ClassVar[str | None] = None
    pad: ClassVar[str | None] = None
    mask: ClassVar[str | None] = None
    cls: ClassVar[str | None] = None
    sep: ClassVar[str | None] = None
    chat_template: str | None = None  # what transformers makes of a conversation; kept in files
    _begins = False  # `begins_texts`, where only `add_bos_token` says it

    def __init__(self, text: str, source: str = "tokenizer.json"):
        """Take the content of a `tokenizer.json`; `source` names it in a `FileError`."""
        try:
            self._library = Library.from_str(text)
        # The library raises a plain Exception for any mistake in the file.
        except Exception as error:
            raise FileError(f"{source}: not a tokenizer.json: {error}") from error
        model = type(self._library.model).__name__
        if model != self.model:
            raise FileError(f"{source}: has a {model} model; kind {self.kind} needs {self.model}")
        ends = getattr(self._library.model, "end_of_word_suffix", None) or None
        if ends != self.end_of_word:
            expected = self.end_of_word or "no suffix"
            raise FileError(f"{source}: words end in {ends or 'no suffix'}, not in {expected}")
        self._source = source
        self.aliases: Mapping[str, str] = {}  # names of special tokens, and those here
        self._encoder = self._make_encoder()
        self._encoder.encode_special_tokens = True
        self._library.encode_special_tokens = True
        self._library.no_truncation()
        self._library.no_padding()
        added = self._library.get_added_tokens_decoder()
        self._special = {t.content: i for i, t in added.items() if t.special}
        self.mask_id = self._id(self.mask)
        self._use({})

    def _use(
        self, names: Mapping[str, str | None], kept: Mapping[str, str | None] | None = None
    ) -> None:
        """Take tokens, by their names in `tokenizer_config.json`, in place of those of the kind.

        Those that are `kept` are written again; of them only a `pad_token` of its own is used.
        """
        own = {"bos_token": self.bos, "eos_token": self.eos, "unk_token": self.unk}
        self._names, self._kept = names, dict(kept or {})
        self._tokens = {**own, "pad_token": self.pad, **names}
        pad, rest = self._kept.get("pad_token"), {**self._kept, "pad_token": None}
        others = {*own.values(), *rest.values()} - {None}
        if pad is not None and "pad_token" not in names and pad not in others:
            self._tokens["pad_token"] = pad
        self.bos_id = self._id(self._tokens["bos_token"])
        self.eos_id = self._id(self._tokens["eos_token"])
        self.unk_id = self._id(self._tokens["unk_token"])
        self.pad_id = self._id(self._tokens["pad_token"])

    def __reduce__(self) -> tuple[type[Self], tuple[str], dict[str, object]]:
        # The pickle of the library loses `encode_special_tokens`.
        libraries = ("_library", "_encoder", "_marked")
        rest = {name: value for name, value in vars(self).items() if name not in libraries}
        return (type(self), (self._library.to_str(),), rest)

    def _make_encoder(self) -> Library:
        """Return the library's tokenizer of texts; the other one has the names of all tokens."""
        return self._library

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a directory in a layout of the kind, or a file of it; raise `FileError` if unfit."""
        place = Path(path)
        settings = named_tokens.read_settings(place if place.is_dir() else place.parent)
        whole = (place / "tokenizer.json").exists()
        others = None if whole else cls._read_others(place, settings)
        text, file = others or text_files.read(place, "tokenizer.json")
        made = cls(text, str(file))
        if others is None:
            if named_tokens.add_missing(made._library, settings, file):
                made = cls(made._library.to_str(), str(file))
            made.aliases = named_tokens.find_aliases(settings, file)
        if isinstance(chat := settings.get("chat_template"), str):  # not a list of named ones
            made.chat_template = chat
        ids = made._library.get_vocab().values()
        if (last := max(ids, default=-1)) >= len(ids):
            raise FileError(f"{file}: its ids have a hole: {len(ids)} tokens, ids up to {last}")
        made._follow(settings, file)
        return made

    @classmethod
    def _read_others(cls, place: Path, settings: JsonMapping) -> tuple[str, Path] | None:
        """Return what other files of the kind hold, as a `tokenizer.json`, and the first one."""
        return None

    def _follow(self, settings: JsonMapping, file: Path) -> None:
        """Use the tokens that the settings beside a file name; by default, those of the kind."""
        self._use({})

    def save(self, directory: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which `AutoTokenizer` opens."""
        # Tokens of another family are there from before.
        frame = max(_frames(self._special), key=self._newest, default=_FRAMES[-1])
        names = {
            **self._tokens,
            "mask_token": frame.mask or self.mask,
            **{"cls_token": frame.cls or self.cls, "sep_token": frame.sep or self.sep},
            **self._kept,
        }
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{key: token for key, token in names.items() if self._id(token) is not None},
            **({named_tokens.NAMES: self._names} if self._names else {}),
            **({named_tokens.ALIASES: self.aliases} if self.aliases else {}),
            **({"chat_template": self.chat_template} if self.chat_template else {}),
        }
        files = {
            "tokenizer.json": self._library.to_str(pretty=True) + "\n",
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        }
        text_files.write(directory, files)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return self._library.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of each text, computed on all cores."""
        return [
            encoding.ids for encoding in self._encode_texts(self._encoder.encode_batch_fast, texts)
        ]

    def encode_with_offsets(self, texts: Iterable[str]) -> list[Placed]:
        """Return the ids of each text, and the characters [start, stop) of each token."""
        encodings = self._encode_texts(self._encoder.encode_batch, texts)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def encode_marked(self, text: str) -> Placed:
        """Return ids and characters as `encode_with_offsets`; special tokens in it are such."""
        encoding = self._marked.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    @cached_property
    def _marked(self) -> Library:
        return Library.from_str(self._library.to_str())

    def special_tokens_in(self, text: str) -> list[str]:
        """Return the special tokens that are written in a text."""
        return [token for token in self._special if token in text]

    @property
    def role_tokens(self) -> dict[str, str]:
        """The tokens of roles that the vocabulary has, such as `bos_token`, for templates."""
        return {n: t for n, t in self._tokens.items() if t is not None and self._id(t) is not None}

    @property
    def begins_texts(self) -> bool:
        """Whether transformers puts the begin token in front of each text."""
        return self._begins or self._library.encode("a").ids[:1] == [self.bos_id]

    def _encode_texts(
        self, encode: Callable[..., list[Encoding]], texts: Iterable[str]
    ) -> list[Encoding]:
        batch = list(text_files.sound(texts))
        try:
            return encode(batch, add_special_tokens=False)
        except BaseException as error:
            # A pattern of the file's own that runs away; the class of a panic cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise FileError(f"{self._source}: its pattern fails on a text: {error}") from None

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of all special tokens, sorted; text never has them, except the unknown token."""
        known = (self.bos_id, self.eos_id, self.unk_id, self.pad_id, self.mask_id)
        return tuple(sorted({*self._special.values(), *(i for i in known if i is not None)}))

    def special_id(self, token: str) -> int | None:
        """Return the id of a special token, or None if it does not exist."""
        return self._special.get(token, self._id(self.aliases.get(token)))

    def extended(self, tokens: Iterable[str]) -> Self:
        """Return a tokenizer with more special tokens, with ids after all others.

        If these are what BERT, RoBERTa or XLNet has around a text, or T5 after it, transformers
        will put them there, too.
        """
        library = Library.from_str(self._library.to_str())
        added = [AddedToken(token, special=True, normalized=False) for token in tokens]
        library.add_special_tokens(added)
        names = {token.content for token in added}
        kept = dict(self._kept)
        for frame in _frames({*self._special, *names}):
            if names & {*frame.template.tokens, frame.mask}:
                for role in ("cls_token", "sep_token", "mask_token"):
                    kept.pop(role, None)
                set_template(library, frame.template)
                break
        made = type(self)(library.to_str())
        made._use(self._names, kept)
        made.chat_template, made._begins = self.chat_template, self._begins
        made.aliases = self.aliases
        return made

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return self._library.decode([self._check_id(i) for i in ids], skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """Return the token as written in the vocabulary."""
        return str(self._library.id_to_token(self._check_id(token_id)))

    def token_characters(self) -> np.ndarray:
        """Return (V,) int32: the number of characters in each token.

        It is 0 for special tokens and 1 for the unknown token.
        """
        counts = np.zeros(self.vocab_size, dtype=np.int32)
        for token, token_id in self._library.get_vocab(with_added_tokens=True).items():
            if token not in self._special:
                counts[token_id] = self._characters(token)
        if self.unk_id is not None:
            counts[self.unk_id] = 1
        return counts

    def fingerprint(self) -> str:
        """Return a SHA-256 of the tokenizer, the same in every process."""
        content = json.dumps(json.loads(self._library.to_str()), sort_keys=True)
        if self._names:
            content += json.dumps(self._names, sort_keys=True)
        return hashlib.sha256(f"{self.kind} 1\n{content}".encode()).hexdigest()

    def fingerprint_of_ids(self) -> str:
        """Return a SHA-256 without what transformers alone reads: what stands around texts."""
        content = json.loads(self._library.to_str()) | {"post_processor": None}
        content["added_tokens"] = [each | {"lstrip": False} for each in content["added_tokens"]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @abstractmethod
    def _characters(self, token: str) -> int:
        """Return the number of characters in an ordinary token."""

    def _newest(self, frame: _Frame) -> int:
        return max(self._special[token] for token in frame.template.tokens)

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._library.token_to_id(token)

    def _check_id(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise DataError(f"token id {token_id} is not among the {self.vocab_size} tokens")
        return token_id


def find_begin(tokenizer: object) -> int | None:
    """Return the id of the token that transformers puts in front of each text, or None."""
    if not isinstance(tokenizer, LibraryTokenizer) or not tokenizer.begins_texts:
        return None
    return tokenizer.bos_id


def _frames(special: Iterable[str]) -> Iterator[_Frame]:
    """Yield the frames whose tokens around a text are all special."""
    known = {*special}
    return (frame for frame in _FRAMES if frame.template.tokens <= known)


def count_in_piece(token: str) -> int:
    """Return the number of characters in a piece of SentencePiece, which may be a byte."""
    byte = BYTES.get(token)
    # A character is counted at its first byte; in UTF-8 these are all bytes but 10xxxxxx.
    return len(token) if byte is None else int(byte & 0xC0 != 0x80)
