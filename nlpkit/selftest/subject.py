"""The subject of the proofs: a small model, the objective, and sources of examples.

A source is the input of one example: a piece of text, with flags if the objective has any, and
its negatives; or the row of a task. Sources are real or random text. T tokens of a piece.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nlpkit.contracts.batch import Batch, FlaggedIds, bit
from nlpkit.contracts.check import defines
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.task import Item, Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.loader import Examples
from nlpkit.data.pack import pack_examples
from nlpkit.recipe import Resolved
from nlpkit.runs.run import Run
from nlpkit.train.log import Log
from nlpkit.train.signals import StopFlag

STEPS, SAVE_EVERY, EVAL_EVERY = 6, 2, 3  # of the interrupted run
# Few words, because the model must learn a leak before it shows: 64 words take twice as long.
ALPHABET = 16
WHOLE_ROWS = 16  # rows of one text, which are not cut
NOISE_ROWS = 256  # that are searched for the lengths of noise
# The number of tokens of a sentence and of a word in random text.
SENTENCE, WORD = 6, 2

Example = dict[str, np.ndarray]
Text = np.ndarray | FlaggedIds  # ids (T,), or ids with flags
Piece = Text | Item


@dataclass(frozen=True)
class Source:
    """The input of one example."""

    piece: Piece  # ids (T,), `FlaggedIds` ids, or the `Item` of a task
    negatives: list[Text] = field(default_factory=list)

    @property
    def texts(self) -> list[np.ndarray]:
        """The ids of the piece and of each negative, or of each part of a row."""
        if isinstance(self.piece, Item):
            return [*self.piece.parts]
        return [
            each.ids if isinstance(each, FlaggedIds) else each
            for each in (self.piece, *self.negatives)
        ]

    @property
    def ids(self) -> np.ndarray:
        """The concatenated ids of the texts."""
        return np.concatenate(self.texts)

    @property
    def size(self) -> int:
        """The number of tokens of the piece."""
        return self.piece.size if isinstance(self.piece, Item) else len(self.piece)

    def replace_texts(self, texts: Sequence[np.ndarray]) -> "Source":
        """Return the source with other ids of its texts, and the same flags."""
        if isinstance(self.piece, Item):
            return Source(replace(self.piece, parts=tuple(texts)))
        old = (self.piece, *self.negatives)
        piece, *negatives = (
            FlaggedIds(new, text.token_flags) if isinstance(text, FlaggedIds) else new
            for text, new in zip(old, texts, strict=True)
        )
        return Source(piece, negatives)


@dataclass
class Subject:
    """The subject of the proofs: a small model without dropout, the objective, real examples."""

    model: nn.Module
    build_fresh: Callable[[], nn.Module]  # the same model, initialized again
    objective: Objective
    tokenizer: Any  # None if the objective reads no text
    examples: Examples
    device: torch.device
    seed: int
    dtype: torch.dtype  # of the recipe's computations on this machine
    check: Callable[[], None]  # raises when the proofs are to stop
    # By the number of a text of a source.
    alphabets: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives of a list, or the single one."""
        return self.objective.objectives or (self.objective,)

    def list_objectives_with(self, name: str) -> list[Objective]:
        """Return the objectives with a method `name` of their own, in order."""
        return [each for each in self.objectives if defines(each, Objective, name)]

    def make_rng(self, *key: int) -> np.random.Generator:
        """Return a random generator that depends only on the seed and `key`."""
        return np.random.default_rng([self.seed, *key])

    def make_example(self, source: Source, rng: np.random.Generator) -> Example:
        """Return the objective's example from a source, as in the loader."""
        negatives = [source.negatives] if self.objective.negatives else []
        return self.objective.example(source.piece, rng, *negatives)

    def make_examples(self, sources: Sequence[Source], key: int) -> list[Example]:
        """Return the examples; calls with the same `key` draw the same random numbers."""
        return [self.make_example(s, self.make_rng(key, i)) for i, s in enumerate(sources)]

    def pack(self, examples: Sequence[Example]) -> Batch:
        """Return the pack of these examples."""
        return pack_examples(self.objective, examples)

    def draw_sources(self, tokens: int, longest: int | None = None) -> list[Source]:
        """Return at least 3 random pieces of real text, about `tokens` tokens in all."""
        sources: list[Source] = []
        total = 0
        numbers = np.arange(len(self.examples)) if longest is None else self._cuttable
        for number in self.make_rng(1).permutation(numbers).tolist():
            source = self._draw_source(number, longest)
            sources.append(source)
            total += int(self.objective.length(np.array([source.size]))[0])
            if len(sources) >= 3 and total >= tokens:
                break
        return sources

    def _draw_source(self, number: int, longest: int | None) -> Source:
        examples = self.examples
        negatives: list[int] = []
        if examples.negatives is not None:
            negatives = examples.negatives.draw(
                number, self.objective.negatives, self.make_rng(11, number)
            )
        piece, *others = (_shorten(examples.source(n), longest) for n in (number, *negatives))
        return Source(piece, others)

    @cached_property
    def _cuttable(self) -> np.ndarray:
        """The numbers of examples that are cut to a few tokens.

        A row of one text is whole, as its targets may be at its end: the shortest ones are taken.
        """
        row = self.examples.source(0)
        if isinstance(row, Item) and len(row.parts) == 1:
            return np.argsort(self.examples.sizes, kind="stable")[:WHOLE_ROWS]
        return np.arange(len(self.examples))

    @cached_property
    def is_text(self) -> np.ndarray:
        """Whether ids (V,) are text, not special tokens."""
        return _is_text(self.tokenizer)

    def find_text(self, ids: np.ndarray) -> np.ndarray:
        """Return whether each of `ids` is text; ids outside the vocabulary are not."""
        in_text = (ids >= 0) & (ids < len(self.is_text))
        in_text[in_text] = self.is_text[ids[in_text]]
        return in_text

    @cached_property
    def words(self) -> np.ndarray:
        """Up to `ALPHABET` ids of text, sorted; of the targets, where sources have others."""
        return self._choose_ids(self.is_text)

    def choose_words(self, text: int) -> np.ndarray:
        """Return up to `ALPHABET` ids of text, sorted, for a text of a source, by its number."""
        if text not in self.alphabets:
            tokenizer = self.tokenizer
            if isinstance(self.objective, Task):
                tokenizer = self.objective.tokenizer_of(text)
            same = tokenizer is self.tokenizer
            self.alphabets[text] = self.words if same else self._choose_ids(_is_text(tokenizer))
        return self.alphabets[text]

    def _choose_ids(self, is_text: np.ndarray) -> np.ndarray:
        known = np.flatnonzero(is_text)
        return np.sort(self.make_rng(2).choice(known, min(ALPHABET, len(known)), replace=False))

    def change_words(self, source: Source, where: slice | int = slice(None)) -> Source:
        """Return a source with another word at each position `where` of `source.ids`."""
        chosen = np.zeros(len(source.ids), np.bool_)
        chosen[where] = True
        texts, start = [], 0
        for number, text in enumerate(source.texts):
            here, words = chosen[start : start + len(text)], self.choose_words(number)
            index = np.searchsorted(words, text)
            texts.append(np.where(here, words[(index + 1) % len(words)], text).astype(text.dtype))
            start += len(text)
        return source.replace_texts(texts)

    def choose_noise_size(self, size: int) -> int:
        """Return the size of a random piece: `size`, but at most that of the longest real piece.

        Where pieces are cut at sentences, so is this one.
        """
        spans = self.examples.spans
        size = min(size, int((spans.stop - spans.start).max()))
        return size // SENTENCE * SENTENCE if self.objective.cut_at else size

    def draw_noise(self, size: int, rng: np.random.Generator, *words: np.ndarray) -> Source:
        """Return a piece and negatives of `size` random `words` each, or a row of random words."""
        if isinstance(self.objective, Task):
            return self._draw_noise_row(size, rng)
        alphabets = words or (self.words, self.words)  # of the piece, and of the negatives
        piece, *negatives = (
            self._add_flags(rng.choice(alphabets[min(number, 1)], size))
            for number in range(1 + self.objective.negatives)
        )
        return Source(piece, negatives)

    def _draw_noise_row(self, size: int, rng: np.random.Generator) -> Source:
        row = self._noise_row or self.examples.source(int(rng.choice(self._cuttable)))
        row = _shorten(row, size)
        parts = [rng.choice(self.choose_words(n), len(part)) for n, part in enumerate(row.parts)]
        return Source(replace(row, parts=tuple(part.astype(np.int32) for part in parts)))

    @cached_property
    def _noise_row(self) -> Item | None:
        """The row of several texts whose lengths noise has: its shortest text is longest.

        With random lengths a word also says that no text ends there: 0.24 nats in `cpm_ant_nlg`.
        """
        sources = map(self.examples.source, self._cuttable[:NOISE_ROWS].tolist())
        rows = [source for source in sources if isinstance(source, Item)]
        row = max(rows, key=lambda row: min(map(len, row.parts)))
        return row if len(row.parts) > 1 else None

    def _add_flags(self, ids: np.ndarray) -> Text:
        """Return random ids with artificial flags if the objective has `token_flags`."""
        if not self.objective.token_flags:
            return ids
        position = np.arange(len(ids))
        flags = np.zeros(len(ids), np.uint8)
        flags[position % SENTENCE == 0] |= bit("sentence_start")
        flags[position % WORD == 0] |= bit("word_start")
        flags[len(ids) // 2 :] |= bit("second_side")
        return FlaggedIds(ids, flags)

    def draw_noise_examples(self, count: int, size: int, *key: int) -> Iterator[Example]:
        """Yield examples of random words."""
        rng = self.make_rng(*key)
        for _ in range(count):
            yield self.make_example(self.draw_noise(self.choose_noise_size(size), rng), rng)


def _is_text(tokenizer: Tokenizer) -> np.ndarray:
    is_text = np.asarray(tokenizer.token_characters() > 0)
    special = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id)
    is_text[[i for i in (*special, getattr(tokenizer, "mask_id", None)) if i is not None]] = False
    return is_text


def _shorten(text: Any, longest: int | None) -> Any:
    """Return a piece, or each of several parts of a row, of at most `longest` tokens.

    A pair of texts is cut around its middle.
    """
    if longest is None or (isinstance(text, Item) and len(text.parts) == 1):
        return text
    if isinstance(text, Item):
        parts = tuple(part[:longest] for part in text.parts)
        lost = sum(map(len, text.parts)) - sum(map(len, parts))
        return replace(text, parts=parts, size=text.size - lost)
    if not isinstance(text, FlaggedIds):
        return np.array(text[:longest])
    (second,) = np.nonzero(text.has("second_side"))
    first = max(0, min(int(second[0]) - longest // 2, len(text) - longest)) if len(second) else 0
    part = slice(first, first + longest)
    return FlaggedIds(text.ids[part], text.token_flags[part])


@dataclass
class Bench:
    """The inputs of all proofs: the prepared run, in a temporary directory."""

    run: Run
    subject: Subject
    small: Resolved  # the recipe with the shrunk model
    shrunk: dict[str, tuple[int, int]]  # setting -> (recipe's value, used value)
    workdir: Path
    device: str
    precision: str
    attention: str
    stop: StopFlag
    log: Log  # of the runs that the proofs make


def check(stop: StopFlag) -> None:
    """Raise the exception that ends the program if a stop was requested."""
    if stop.raised:
        raise stop.ending("the proofs are not finished")
