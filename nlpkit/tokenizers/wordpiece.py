"""WordPiece as in BERT: words, punctuation and single Chinese characters, then `##` pieces.

Devlin et al. 2019 (arXiv 1810.04805), sec. 3. Pieces are learned by merging the most frequent pair,
as in the `tokenizers` library. The library's trainer numbers the `##` characters in hash order, so
that each run differs. Here they are counted first, and the same texts always give the same
vocabulary. White space is lost, and so is what lower-casing removes.

A directory of transformers without `tokenizer.json` is read from its `vocab.txt`; how text is
normalized stands in its `tokenizer_config.json`.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nlpkit.config import FrozenConfig, VocabSize
from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.tokenizers.library import named_tokens, pieces, text_files
from nlpkit.tokenizers.library.hf import LibraryTokenizer
from nlpkit.tokenizers.library.template import BERT, set_template
from nlpkit.tokenizers.library.text_files import count_characters
from nlpkit.tokenizers.library.training import count_longer, count_words, describe_cut, learn

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Longer words are one [UNK], as in BERT.
_LONGEST_WORD = 100
_VOCABULARY = "vocab.txt"
# They have such a file, too, and cut words by dictionaries or merges first.
_OTHERS = ("BertJapaneseTokenizer", "RoFormerTokenizer", "BertweetTokenizer")
_CLASSES = ("Bert", "DistilBert", "Electra")  # of transformers, by the beginnings of their names
# What `tokenizer_config.json` may say of the normalization, and transformers' defaults.
_NORMALIZATION = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}


class Config(FrozenConfig):
    """Settings of training."""

    vocab_size: VocabSize = Field(
        default=30522, ge=16, description="number of tokens, 5 of them special"
    )
    min_frequency: int = Field(
        default=2, ge=1, description="rarer characters and pairs get no token"
    )
    lowercase: bool = Field(default=True, description="whether A and a are the same")
    strip_accents: bool | None = Field(
        default=None, description="whether é and e are the same; null: same as lowercase"
    )
    split_chinese: bool = Field(
        default=True, description="whether each Chinese character is a word of its own"
    )


class Tokenizer(LibraryTokenizer):
    """Text ↔ ids; a word with a character in no token is one `[UNK]`."""

    kind = "wordpiece"
    model = "WordPiece"
    files: ClassVar[tuple[str, ...]] = ("tokenizer.json", _VOCABULARY)
    bos = "[CLS]"
    eos = "[SEP]"
    unk = "[UNK]"
    pad = "[PAD]"
    mask = "[MASK]"
    cls = "[CLS]"
    sep = "[SEP]"

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return a tokenizer with at most `config.vocab_size` tokens.

        Reads `texts` once, and needs memory for the distinct words. The most frequent characters
        are kept.
        """
        normalizer = normalizers.BertNormalizer(
            lowercase=config.lowercase,
            strip_accents=config.strip_accents,
            handle_chinese_chars=config.split_chinese,
        )
        words = count_words(texts, normalizer, pre_tokenizers.BertPreTokenizer())
        made = cls(_library(_learn(words, config), normalizer).to_str())
        dropped = count_longer(words, _LONGEST_WORD)
        made.training_note = describe_cut(dropped, _LONGEST_WORD, "left out")
        return made

    @classmethod
    def _read_others(cls, place: Path, settings: JsonMapping) -> tuple[str, Path] | None:
        if place.is_dir():
            place /= _VOCABULARY
        if place.suffix != ".txt":
            return None
        text, file = text_files.read(place, _VOCABULARY)
        if (other := settings.get("tokenizer_class")) in _OTHERS:
            raise FileError(f"{file}: {other} cuts words in another way; {pieces.REMEDY}")
        vocabulary = _vocabulary(text, str(file))
        normalizer = _read_normalizer(file.parent / "tokenizer_config.json")
        library = _library(vocabulary, normalizer)
        named_tokens.add_tokens(library, settings, file)
        return library.to_str(), file

    def _follow(self, settings: JsonMapping, file: Path) -> None:
        _check_agreement(self._library.normalizer, settings, file)

    def _characters(self, token: str) -> int:
        return len(token.removeprefix("##")) if len(token) > 2 else len(token)


def _check_agreement(
    normalizer: normalizers.Normalizer | None, settings: JsonMapping, file: Path
) -> None:
    """Raise `FileError` if the settings, which BERT's classes read first, differ from the file."""
    named = str(settings.get("tokenizer_class")).startswith(_CLASSES)
    if not named or not isinstance(normalizer, normalizers.BertNormalizer):
        return
    found = (normalizer.lowercase, normalizer.strip_accents, normalizer.handle_chinese_chars)
    for name, value in zip(_NORMALIZATION, found, strict=True):
        if settings.get(name, value) != value:
            raise FileError(
                f"{file}: {name} is {json.dumps(value)} in tokenizer.json and "
                f"{json.dumps(settings[name])} in tokenizer_config.json; make them agree"
            )


def _library(vocabulary: dict[str, int], normalizer: normalizers.BertNormalizer) -> Library:
    library = Library(models.WordPiece(vocabulary, unk_token="[UNK]"))
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(cleanup=False)
    library.add_special_tokens([token for token in _SPECIAL if token in vocabulary])
    set_template(library, BERT)
    return library


def _vocabulary(text: str, source: str) -> dict[str, int]:
    lines = text.removesuffix("\n").split("\n")
    ids: dict[str, int] = {}
    for token in lines:
        if token in ids:
            first = ids[token] + 1
            raise FileError(f"{source}:{len(ids) + 1}: {token!r} is already on line {first}")
        ids[token] = len(ids)
    if missing := [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in ids]:
        raise FileError(f"{source}: no {' '.join(missing)}; a vocabulary of BERT has them")
    return ids


def _read_normalizer(file: Path) -> normalizers.BertNormalizer:
    settings = read_json(file) if file.is_file() else {}
    for token in _SPECIAL:
        name = f"{token[1:-1].lower()}_token"
        value = named_tokens.written(settings.get(name, token))
        if value not in (token, None):
            raise FileError(f"{file}: {name} is {value!r}; kind wordpiece has {token}")
    found: JsonObject = {
        name: settings.get(name, default) for name, default in _NORMALIZATION.items()
    }
    for name, value in found.items():
        if not isinstance(value, bool) and value is not _NORMALIZATION[name]:
            raise FileError(f"{file}: {name} is {value!r}; must be true or false")
    lowercase, accents, chinese = found.values()
    return normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=accents, handle_chinese_chars=chinese
    )


def _learn(words: Counter[str], config: Config) -> dict[str, int]:
    words = Counter({word: n for word, n in words.items() if len(word) <= _LONGEST_WORD})
    inside = {character for word in words for character in word[1:]}
    # A character needs one token, and another one (##) if it occurs inside a word.
    budget = config.vocab_size - len(_SPECIAL)
    kept: set[str] = set()
    for character, count in count_characters(words).items():
        budget -= 1 + (character in inside)
        if budget < 0 or count < config.min_frequency:
            break
        kept.add(character)
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        # The library numbers these first, in this order; ties between pairs depend on the number.
        special_tokens=[*_SPECIAL, *(f"##{c}" for c in sorted(kept & inside))],
        show_progress=False,
    )
    return learn(models.WordPiece(unk_token="[UNK]"), trainer, words, kept).get_vocab()
