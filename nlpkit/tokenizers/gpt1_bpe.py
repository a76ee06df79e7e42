"""GPT-1's byte pair encoding: lower-cased words and punctuation, pieces that know a word's end.

Sennrich et al. 2016 (arXiv 1508.07909) with `</w>` in a word's last piece, as Radford et al. 2018
have it. Ids are those of `transformers.OpenAIGPTTokenizer`: text cleaned, lower-cased, accents
taken away and cut as BERT's BasicTokenizer does, a character in no piece is an `<unk>`. The paper
cut words with ftfy and spaCy instead: contractions (do n't), accents and line breaks differ there.
White space is not in the ids, nor is what lower-casing takes away. There is no end token.

Reads OpenAI's own files (`encoder_bpe_40000.json`, `vocab_40000.bpe`), transformers' `vocab.json`
and `merges.txt`, and `tokenizer.json`.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import Field
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nlpkit.config import FrozenConfig
from nlpkit.errors import FileError
from nlpkit.tokenizers import _text
from nlpkit.tokenizers._hf import LibraryTokenizer, count_characters, count_words, repeat

_UNK, _END = "<unk>", "</w>"
# Vocabulary and merges, as transformers and as OpenAI call them.
_PAIRS = {"vocab.json": "merges.txt", "encoder_bpe_40000.json": "vocab_40000.bpe"}


class Config(FrozenConfig):
    """How to train a vocabulary."""

    vocab_size: int = Field(
        default=40478, ge=16, description="Tokens in all: <unk>, characters twice, then merges."
    )
    min_frequency: int = Field(
        default=2, ge=1, description="A character or pair seen less often gets no token."
    )


class Tokenizer(LibraryTokenizer):
    """Text ↔ ids; a character in no piece is an `<unk>`."""

    kind = "gpt1_bpe"
    model = "BPE"
    files = ("tokenizer.json", *_PAIRS)
    end_of_word = _END
    unk = _UNK

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a directory in any of the three layouts; raise `FileError` if unfit."""
        folder = Path(path)
        if not (folder / "tokenizer.json").is_file():
            for vocab, merges in _PAIRS.items():
                if (folder / vocab).is_file():
                    return cls(_from_files(folder / vocab, folder / merges), str(folder / vocab))
        return super().load(path)

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return `config.vocab_size` tokens, or as many as `texts` has.

        One pass, memory for the distinct words. Characters are kept by frequency.
        """
        normalizer, splitter = normalizers.BertNormalizer(lowercase=True), _splitter()
        words = count_words(
            texts, lambda text: splitter.pre_tokenize_str(normalizer.normalize_str(text))
        )
        return cls(_built(*_learn(words, config)))

    def _characters(self, token: str) -> int:
        return len(token.removesuffix(_END))


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.BertPreTokenizer()


def _built(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> str:
    """Return the `tokenizer.json` of a vocabulary, as transformers' OpenAIGPTTokenizer has it."""
    model = models.BPE(
        vocab=vocabulary,
        merges=merges,
        unk_token=_UNK,
        continuing_subword_prefix="",
        end_of_word_suffix=_END,
        fuse_unk=False,
    )
    library = Library(model)
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = _splitter()
    library.decoder = decoders.BPEDecoder(suffix=_END)
    library.add_special_tokens([_UNK])
    return library.to_str()


def _from_files(vocab: Path, merges: Path) -> str:
    """Return the `tokenizer.json` of a vocabulary and its merges; raise `FileError`."""
    text, _ = _text.read(vocab, vocab.name)
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{vocab}: not JSON: {error}") from error
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise FileError(f"{vocab}: expected an object of token: id")
    if sorted(ids.values()) != list(range(len(ids))):
        raise FileError(f"{vocab}: the ids are not 0 to {len(ids) - 1}, each once")
    if _UNK not in ids or not any(token.endswith(_END) for token in ids):
        raise FileError(f"{vocab}: no {_UNK} or no token that ends in {_END}: not GPT-1's")
    pairs = []
    for line, row in enumerate(_text.read(merges, merges.name)[0].split("\n"), 1):
        if not row or (line == 1 and row.startswith("#version")):
            continue
        left, space, right = row.partition(" ")
        if not space or not {left, right, left + right} <= ids.keys():
            raise FileError(f"{merges}:{line}: {row!r} is no merge of two tokens into a third")
        pairs.append((left, right))
    return _built(ids, pairs)


def _learn(words: Counter[str], config: Config) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary, token → id, and the merges from how often each word was seen."""
    # A character costs two tokens: inside a word, and at its end.
    budget = (config.vocab_size - 1) // 2
    counts = count_characters(words).most_common(budget)
    kept = {character for character, count in counts if count >= config.min_frequency}
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        # Otherwise the library would number these in hash order; ties between pairs go by number.
        special_tokens=[_UNK, *sorted(kept), *(character + _END for character in sorted(kept))],
        end_of_word_suffix=_END,
        show_progress=False,
    )
    learner = Library(models.BPE(unk_token=_UNK, end_of_word_suffix=_END))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    spelled = Counter({word: n for word, n in words.items() if kept.issuperset(word)})
    learner.train_from_iterator(repeat(spelled), trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]
