"""Unigram language model over pieces of text, as SentencePiece and T5 have it.

Kudo 2018 (arXiv 1804.10959), sec. 3.2, learned by the `tokenizers` library; `▁` is the space, one
is put in front of every text, and a character in no piece becomes its UTF-8 bytes (`<0xE4>`), so
that nothing is unknown. Special tokens as T5: `<pad>`, `</s>`, `<unk>`. As in SentencePiece, a
`▁` in the text decodes to a space and one leading space is lost.
The library adds up in hash order, so its scores differ from run to run in the twelfth digit, and
those of the rarest characters by more: `_settle` removes both. (Two segmentations whose scores tie
to twelve digits while a piece hangs on them could still come out differently.)
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from nlpkit.config import FrozenConfig
from nlpkit.tokenizers._hf import LibraryTokenizer, count_characters, count_words, repeat

_SPECIAL = ["<pad>", "</s>", "<unk>"]
_BYTES = {f"<0x{byte:02X}>": byte for byte in range(0x100)}
# With a piece each, these spell a special token in any text without naming it; and the space.
_SPELLING = {"▁", *"".join((*_SPECIAL, *_BYTES))}


class Config(FrozenConfig):
    """How to train a vocabulary."""

    vocab_size: int = Field(
        default=32000, ge=300, description="Tokens in all: 3 special, 256 bytes, then pieces."
    )
    character_coverage: float = Field(
        default=0.9995,
        gt=0,
        le=1,
        description="Part of the texts whose characters get pieces; rarer ones become bytes.",
    )
    normalization: Literal["nfkc", "none"] = Field(
        default="nfkc", description="nfkc: as T5, full-width and other variants become one."
    )


class Tokenizer(LibraryTokenizer):
    """Text ↔ ids; nothing is unknown."""

    kind = "unigram"
    model = "Unigram"
    eos = "</s>"
    unk = "<unk>"
    pad = "<pad>"

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return `config.vocab_size` tokens, or as many as `texts` has.

        Reads `texts` once; memory for the distinct stretches without a space or change of script.
        """
        normalizer = normalizers.NFKC() if config.normalization == "nfkc" else None
        pieces = _settle(_learn(texts, normalizer, config), config.vocab_size)
        library = Library(models.Unigram(pieces, unk_id=2, byte_fallback=True))
        if normalizer is not None:
            library.normalizer = normalizer
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        library.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        library.add_special_tokens(_SPECIAL)
        library.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
        )
        return cls(library.to_str())

    def _characters(self, token: str) -> int:
        byte = _BYTES.get(token)
        # UTF-8: every byte but 10xxxxxx starts a character, which is counted where it starts.
        return len(token) if byte is None else int(byte & 0xC0 != 0x80)


def _learn(
    texts: Iterable[str], normalizer: normalizers.Normalizer | None, config: Config
) -> list[tuple[str, float]]:
    """Return the library's pieces and log probabilities, without the special tokens."""
    # SentencePiece: no piece crosses a change of script. Stretches are cut at 128 characters,
    # since the library's sums overflow on very long ones.
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.UnicodeScripts(),
            pre_tokenizers.Metaspace(prepend_scheme="first"),
            pre_tokenizers.Split(Regex(r"(?m).{128}"), "isolated"),
        ]
    )
    stretches = count_words(
        texts,
        lambda text: splitter.pre_tokenize_str(
            normalizer.normalize_str(text) if normalizer else text
        ),
    )
    kept = _kept_characters(stretches, config)
    spelled: Counter[str] = Counter()
    for stretch, count in stretches.items():
        for part in "".join(c if c in kept else " " for c in stretch).split(" "):
            if part:
                spelled[part] += count
    learner = Library(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    trainer = trainers.UnigramTrainer(
        vocab_size=config.vocab_size - len(_BYTES), special_tokens=_SPECIAL, show_progress=False
    )
    learner.train_from_iterator(repeat(spelled), trainer)
    found = json.loads(learner.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in found if piece not in _SPECIAL]


def _kept_characters(stretches: Counter[str], config: Config) -> set[str]:
    """Return the most frequent characters that cover enough of the texts and have room."""
    counts = count_characters(stretches)
    wanted = config.character_coverage * counts.total()
    kept: set[str] = set()
    covered = 0
    for character, count in counts.items():
        if covered >= wanted or len(kept) == config.vocab_size - len(_SPECIAL) - len(_BYTES):
            break
        kept.add(character)
        covered += count
    return kept


def _settle(pieces: list[tuple[str, float]], vocab_size: int) -> list[tuple[str, float]]:
    """Return special tokens, bytes and `pieces`, the same whatever the library's hash order."""
    scores = {piece: round(score, 6) for piece, score in _level(dict(pieces)).items()}
    floor = min(scores.values(), default=-1.0)
    for letter in _SPELLING - scores.keys():
        scores[letter] = floor
    ordered = sorted(scores, key=lambda piece: (piece not in _SPELLING, -scores[piece], piece))
    # What has no room is rare, and falls to bytes.
    kept = sorted(
        ordered[: vocab_size - len(_SPECIAL) - len(_BYTES)],
        key=lambda piece: (-scores[piece], piece),
    )
    # Worse than any spelling of at most 6 letters: text never matches these names.
    never = 10 * min(floor, -1.0)
    return [(name, never) for name in (*_SPECIAL, *_BYTES)] + [(p, scores[p]) for p in kept]


def _level(scores: dict[str, float]) -> dict[str, float]:
    """Return `scores` with one score for all characters that no piece was learned for.

    The library gives them the lowest score, the next 0.0001 less, and so on, in hash order: a
    ladder from the bottom up, whose characters all go to its top.
    """
    letters = [piece for piece in scores if len(piece) == 1]
    lowest = min((scores[letter] for letter in letters), default=0.0)
    rungs = {letter: (scores[letter] - lowest) / 1e-4 for letter in letters}
    on_ladder = {letter: rung for letter, rung in rungs.items() if abs(rung - round(rung)) < 1e-3}
    occupied = {round(rung) for rung in on_ladder.values()}
    height = next(rung for rung in itertools.count() if rung not in occupied)
    top = lowest + (height - 1) * 1e-4
    return scores | {letter: top for letter, rung in on_ladder.items() if rung < height}
