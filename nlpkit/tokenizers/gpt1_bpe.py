"""GPT-1's byte pair encoding of lower-cased words and punctuation; a word's last piece is marked.

Sennrich et al. 2016 (arXiv 1508.07909), with the suffix `</w>` at the end of words, as in Radford
et al. 2018. The ids are those of `transformers.OpenAIGPTTokenizer`: the text is cleaned,
lower-cased, stripped of accents and split as in BERT's BasicTokenizer; a character in no piece is
`<unk>`. The paper used ftfy and spaCy instead, which differ in contractions (do n't), accents and
line breaks. White space is lost, and so is what lower-casing removes. There is no end token.

Reads OpenAI's own files (`encoder_bpe_40000.json`, `vocab_40000.bpe`), transformers' `vocab.json`
and `merges.txt`, and `tokenizer.json`.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nlpkit.config import FrozenConfig, VocabSize
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping
from nlpkit.tokenizers.library import merge_files
from nlpkit.tokenizers.library.hf import LibraryTokenizer
from nlpkit.tokenizers.library.text_files import count_characters
from nlpkit.tokenizers.library.training import count_words, cut_words, learn

_UNK, _END = "<unk>", "</w>"
# The files of vocabulary and merges, of transformers and of OpenAI.
_PAIRS = {"vocab.json": "merges.txt", "encoder_bpe_40000.json": "vocab_40000.bpe"}


class Config(FrozenConfig):
    """Settings of training."""

    vocab_size: VocabSize = Field(
        default=40478, ge=16, description="number of tokens: <unk>, characters twice, then merges"
    )
    min_frequency: int = Field(
        default=2, ge=1, description="rarer characters and pairs get no token"
    )


class Tokenizer(LibraryTokenizer):
    """Text ↔ ids; a character in no piece is an `<unk>`."""

    kind = "gpt1_bpe"
    model = "BPE"
    files = ("tokenizer.json", *_PAIRS)
    end_of_word = _END
    unk = _UNK

    @classmethod
    def _read_others(cls, place: Path, settings: JsonMapping) -> tuple[str, Path] | None:
        found = merge_files.find(place, _PAIRS)
        return found and (_load_files(*found), found[0])

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return a tokenizer with at most `config.vocab_size` tokens.

        Reads `texts` once, and needs memory for the distinct words. The most frequent characters
        are kept.
        """
        words, note = cut_words(
            count_words(
                texts, normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
            )
        )
        made = cls(_build(*_learn(words, config)))
        made.training_note = note
        return made

    def _characters(self, token: str) -> int:
        return len(token.removesuffix(_END))


def _build(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> str:
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
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.BPEDecoder(suffix=_END)
    library.add_special_tokens([_UNK])
    return library.to_str()


def _load_files(vocab: Path, merges: Path) -> str:
    ids = merge_files.read_vocabulary(vocab)
    if _UNK not in ids or not any(token.endswith(_END) for token in ids):
        raise FileError(f"{vocab}: no {_UNK} or no token that ends in {_END}: not GPT-1's")
    return _build(ids, merge_files.read_merges(merges, ids))


def _learn(words: Counter[str], config: Config) -> tuple[dict[str, int], list[tuple[str, str]]]:
    # A character needs two tokens: inside a word, and at its end.
    budget = (config.vocab_size - 1) // 2
    counts = count_characters(words).most_common(budget)
    kept = {character for character, count in counts if count >= config.min_frequency}
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        # Else the library numbers these in hash order, and ties between pairs depend on the number.
        special_tokens=[_UNK, *sorted(kept), *(character + _END for character in sorted(kept))],
        end_of_word_suffix=_END,
        show_progress=False,
    )
    learner = learn(models.BPE(unk_token=_UNK, end_of_word_suffix=_END), trainer, words, kept)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]
