"""Unigram language model, as in SentencePiece and T5.

Kudo 2018 (arXiv 1804.10959), sec. 3.2, trained by the `tokenizers` library. `▁` is the space; it
is added before each text. A character in no piece becomes its UTF-8 bytes (`<0xE4>`), so that
nothing is unknown. Special tokens as in T5: `<pad>`, `</s>`, `<unk>`. As in SentencePiece, `▁` in a
text decodes to a space, and one leading space is lost.
The library sums in hash order. Therefore its scores differ between runs in the twelfth digit, and
more for the rarest characters; `_reproducible` removes both. (Results may still differ if the
scores of two segmentations are equal to twelve digits.)
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers

from nlpkit.config import FrozenConfig, VocabSize
from nlpkit.json_types import JsonMapping
from nlpkit.tokenizers.library import named_tokens, pieces, sentencepiece
from nlpkit.tokenizers.library.hf import BYTES, LibraryTokenizer, count_in_piece
from nlpkit.tokenizers.library.template import T5, set_template
from nlpkit.tokenizers.library.text_files import count_characters
from nlpkit.tokenizers.library.training import count_words, cut_words, repeat

_SPECIAL = ["<pad>", "</s>", "<unk>"]
_LONGEST_WORD = 128  # in training; the library's sums overflow on very long ones
# Of families that publish pieces: RoBERTa's names, or BERT's.
_PUBLISHED = {
    "bos_token": ("<s>", "[CLS]"),
    "eos_token": ("</s>", "[SEP]"),
    "unk_token": ("<unk>", "[UNK]"),
    "pad_token": ("<pad>", "[PAD]"),
}
# The space, and the characters of special tokens: with pieces for these, a special token written in
# a text is never encoded as itself.
_SPELLING = {"▁", *"".join((*_SPECIAL, *BYTES))}


class Config(FrozenConfig):
    """Settings of training."""

    vocab_size: VocabSize = Field(
        default=32000, ge=300, description="number of tokens: 3 special, 256 bytes, then pieces"
    )
    character_coverage: float = Field(
        default=0.9995,
        gt=0,
        le=1,
        description="share of the text whose characters get pieces; rarer ones become bytes",
    )
    normalization: Literal["nfkc", "none"] = Field(
        default="nfkc", description="nfkc, as in T5: unifies variants such as full-width letters."
    )


class Tokenizer(LibraryTokenizer):
    """Text ↔ ids; nothing is unknown."""

    kind = "unigram"
    model = "Unigram"
    files: ClassVar[tuple[str, ...]] = ("tokenizer.json", *pieces.FILES)
    eos = "</s>"
    unk = "<unk>"
    pad = "<pad>"

    @classmethod
    def _read_others(cls, place: Path, settings: JsonMapping) -> tuple[str, Path] | None:
        file = pieces.find(place)
        return (pieces.load(file, settings), file) if file else None

    def _follow(self, settings: JsonMapping, file: Path) -> None:
        """Use the tokens of roles that are not those of the kind; settings name them.

        In our own files without NAMES, `eos_token` is the end of what an objective generates.
        """
        own = self._tokens
        published = file.suffix == ".model" or self._id(self.eos) is None
        if not published and named_tokens.NAMES not in settings:
            return
        defaults = dict(own)
        for role, tokens in _PUBLISHED.items():
            defaults[role] = next((t for t in tokens if self._id(t) is not None), own[role])
        names = named_tokens.find_names(settings, defaults, self._library, file)
        self._use({role: name for role, name in names.items() if name not in (None, own[role])})

    def _make_encoder(self) -> Library:
        """Return a tokenizer in which control tokens have names that no text has, as with a space.

        The best pieces of a text would otherwise be the control tokens that are written in it.
        """
        content = json.loads(self._library.to_str())
        special = {each["content"] for each in content["added_tokens"] if each["special"]}
        rename = {token: f" {token}" for token in special}
        for each in content["added_tokens"]:
            each["content"] = rename.get(each["content"], each["content"])
        vocabulary = content["model"]["vocab"]
        content["model"]["vocab"] = [(rename.get(t, t), score) for t, score in vocabulary]
        content["post_processor"] = content["truncation"] = content["padding"] = None
        return Library.from_str(json.dumps(content))

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return a tokenizer with at most `config.vocab_size` tokens.

        Reads `texts` once, and needs memory for the distinct strings without a space or a change
        of script.
        """
        normalizer = normalizers.NFKC() if config.normalization == "nfkc" else None
        found, note = _learn(texts, normalizer, config)
        learned = _reproducible(found, config.vocab_size)
        library = Library(models.Unigram(learned, unk_id=2, byte_fallback=True))
        if normalizer is not None:
            library.normalizer = normalizer
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        library.decoder = sentencepiece.make_decoder(has_prefix=True)
        library.add_special_tokens(_SPECIAL)
        set_template(library, T5)
        made = cls(library.to_str())
        made.training_note = note
        return made

    def _characters(self, token: str) -> int:
        return count_in_piece(token)


def _learn(
    texts: Iterable[str], normalizer: normalizers.Normalizer | None, config: Config
) -> tuple[list[tuple[str, float]], str]:
    """Return pieces with their scores, and what to say of words that were cut."""
    # As in SentencePiece, no piece has characters of two scripts.
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.UnicodeScripts(), pre_tokenizers.Metaspace(prepend_scheme="first")]
    )
    stretches, note = cut_words(count_words(texts, normalizer, splitter), _LONGEST_WORD)
    kept = _choose_characters(stretches, config)
    spelled: Counter[str] = Counter()
    for stretch, count in stretches.items():
        for part in "".join(c if c in kept else " " for c in stretch).split(" "):
            if part:
                spelled[part] += count
    learner = Library(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    trainer = trainers.UnigramTrainer(
        vocab_size=config.vocab_size - len(BYTES), special_tokens=_SPECIAL, show_progress=False
    )
    learner.train_from_iterator(repeat(spelled), trainer)
    found = json.loads(learner.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in found if piece not in _SPECIAL], note


def _choose_characters(stretches: Counter[str], config: Config) -> set[str]:
    counts = count_characters(stretches)
    needed = config.character_coverage * counts.total()
    most = config.vocab_size - len(_SPECIAL) - len(BYTES)
    before = itertools.accumulate(counts.values(), initial=0)  # the counts of those before each
    chosen = (c for c, covered in zip(counts, before, strict=False) if covered < needed)
    return set(itertools.islice(chosen, most))


def _reproducible(pieces: list[tuple[str, float]], vocab_size: int) -> list[tuple[str, float]]:
    """Return special tokens, bytes and `pieces`, independent of the library's hash order."""
    scores = {piece: round(score, 6) for piece, score in _level(dict(pieces)).items()}
    floor = min(scores.values(), default=-1.0)
    for letter in _SPELLING - scores.keys():
        scores[letter] = floor
    ordered = sorted(scores, key=lambda piece: (piece not in _SPELLING, -scores[piece], piece))
    # Other pieces are rare; they are encoded as bytes.
    kept = sorted(
        ordered[: vocab_size - len(_SPECIAL) - len(BYTES)],
        key=lambda piece: (-scores[piece], piece),
    )
    # Lower than the score of any 6 letters, so that no text is ever split into these names.
    lowest = 10 * min(floor, -1.0)
    return [(name, lowest) for name in (*_SPECIAL, *BYTES)] + [(p, scores[p]) for p in kept]


def _level(scores: dict[str, float]) -> dict[str, float]:
    """Return `scores` with the same score for all characters that were not learned as pieces.

    The library gives them scores in steps of 0.0001 up from the lowest score, in hash order. Here
    all of them get the highest of these scores.
    """
    letters = [piece for piece in scores if len(piece) == 1]
    lowest = min((scores[letter] for letter in letters), default=0.0)
    rungs = {letter: (scores[letter] - lowest) / 1e-4 for letter in letters}
    on_ladder = {letter: rung for letter, rung in rungs.items() if abs(rung - round(rung)) < 1e-3}
    occupied = {round(rung) for rung in on_ladder.values()}
    height = next(rung for rung in itertools.count() if rung not in occupied)
    top = lowest + (height - 1) * 1e-4
    return scores | {letter: top for letter, rung in on_ladder.items() if rung < height}
