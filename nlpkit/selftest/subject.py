"""What the proofs work on: a small model, the objective, real and made-up sources of examples.

A source is all that one example is made of: a piece of text, with marks where the objective asks
for them, and its mates. T tokens of a piece.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from nlpkit.data.loader import Examples
from nlpkit.data.marks import Marked, bit
from nlpkit.data.pack import Batch, collate
from nlpkit.objectives._provable import Provable
from nlpkit.objectives._task import Item
from nlpkit.objectives.contract import Objective

# So few words because a leak must be learned before it shows: with 64 words it takes twice as long.
ALPHABET = 16
# Of made-up text: a sentence and a word begin every so many tokens.
SENTENCE, WORD = 6, 2

Example = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """What one example is made of."""

    piece: Any  # ids (T,), `Marked` ids, or the `Item` of a task
    mates: list[Any] = field(default_factory=list)

    @property
    def texts(self) -> list[np.ndarray]:
        """The ids of the piece and of each mate."""
        return [getattr(text, "ids", text) for text in (self.piece, *self.mates)]

    @property
    def ids(self) -> np.ndarray:
        """The ids of the piece and its mates, one behind the other."""
        return np.concatenate(self.texts)

    @property
    def size(self) -> int:
        """Tokens of the piece."""
        return self.piece.size if isinstance(self.piece, Item) else len(self.piece)

    def replaced(self, ids: np.ndarray) -> "Source":
        """Return the source with other `ids`, of the piece and its mates, and the same marks."""
        cuts = np.cumsum([len(text) for text in self.texts])[:-1]
        old = (self.piece, *self.mates)
        piece, *mates = (
            Marked(new, text.marks) if isinstance(text, Marked) else new
            for text, new in zip(old, np.split(ids, cuts), strict=True)
        )
        return Source(piece, mates)


@dataclass
class Subject:
    """What is proven: a small model without dropout, the objective, real examples."""

    model: nn.Module
    fresh: Callable[[], nn.Module]  # the same model with new weights
    objective: Objective
    tokenizer: Any
    examples: Examples
    device: torch.device
    seed: int
    dtype: torch.dtype  # in which the recipe computes on this machine
    check: Callable[[], None]  # raises when the proofs are to stop

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives of a list; the only one."""
        return getattr(self.objective, "objectives", None) or (self.objective,)

    def offering(self, name: str) -> list[Provable]:
        """Return the objectives that offer a part of `Provable`, in the order of the list."""
        found: list[Any] = [each for each in self.objectives if hasattr(each, name)]
        return found

    def rng(self, *key: int) -> np.random.Generator:
        """Return random numbers that depend on the seed and `key` alone."""
        return np.random.default_rng([self.seed, *key])

    def example(self, source: Source, rng: np.random.Generator) -> Example:
        """Return the example that the objective makes of a source, called as the loader does."""
        mates = [source.mates] if self.objective.mates else []
        return self.objective.example(source.piece, rng, *mates)

    def pack(self, examples: Sequence[Example]) -> Batch:
        """Return the pack of these examples."""
        batch = collate(examples, self.objective.fields)
        batch.num_targets = self.objective.num_targets(batch.fields)
        return batch

    def sources(self, tokens: int, longest: int | None = None) -> list[Source]:
        """Return random pieces of the real text, of about so many tokens, at least 3."""
        found: list[Source] = []
        total = 0
        for number in self.rng(1).permutation(len(self.examples)).tolist():
            source = self._source(number, longest)
            found.append(source)
            total += int(self.objective.length(np.array([source.size]))[0])
            if len(found) >= 3 and total >= tokens:
                break
        return found

    def _source(self, number: int, longest: int | None) -> Source:
        examples = self.examples
        mates: list[int] = []
        if examples.mates is not None:
            mates = examples.mates.draw(number, self.objective.mates, self.rng(11, number))
        piece, *others = (_cut(examples.source(n), longest) for n in (number, *mates))
        return Source(piece, others)

    @cached_property
    def is_text(self) -> np.ndarray:
        """Which ids (V,) stand for text and are not special."""
        tokenizer = self.tokenizer
        found = np.asarray(tokenizer.token_characters() > 0)
        special = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id)
        found[[i for i in (*special, getattr(tokenizer, "mask_id", None)) if i is not None]] = False
        return found

    def text_in(self, ids: np.ndarray) -> np.ndarray:
        """Return which of `ids` stand for text; ids outside the vocabulary are special."""
        found = (ids >= 0) & (ids < len(self.is_text))
        found[found] = self.is_text[ids[found]]
        return found

    @cached_property
    def words(self) -> np.ndarray:
        """Up to `ALPHABET` ids that stand for text, in order."""
        known = np.flatnonzero(self.is_text)
        return np.sort(self.rng(2).choice(known, min(ALPHABET, len(known)), replace=False))

    def changed(self, source: Source, where: slice | int = slice(None)) -> Source:
        """Return a source with another word at each place of `where`, mates behind the piece."""
        other = source.ids.copy()
        found = np.searchsorted(self.words, other[where])
        other[where] = self.words[(found + 1) % len(self.words)]
        return source.replaced(other)

    def noise_size(self, wanted: int) -> int:
        """Return the tokens of a made-up piece: so many, but no more than real ones have."""
        spans = self.examples.spans
        return min(wanted, int((spans.stop - spans.start).max()))

    def noise(self, size: int, rng: np.random.Generator, *words: np.ndarray) -> Source:
        """Return a piece of `size` random words, and mates of as many.

        Args:
            words: those of the piece, and those of the mates; by default `self.words` for both.
        """
        alphabets = words or (self.words, self.words)
        piece, *mates = (
            self._marked(rng.choice(alphabets[min(number, 1)], size))
            for number in range(1 + self.objective.mates)
        )
        return Source(piece, mates)

    def _marked(self, ids: np.ndarray) -> Any:
        """Return made-up ids with made-up marks, where the objective asks for marks."""
        if not self.objective.marks:
            return ids
        place = np.arange(len(ids))
        marks = np.zeros(len(ids), np.uint8)
        marks[place % SENTENCE == 0] |= bit("sentence_start")
        marks[place % WORD == 0] |= bit("word_start")
        marks[len(ids) // 2 :] |= bit("second_side")
        return Marked(ids, marks)

    def noises(self, count: int, size: int, *key: int) -> Iterator[Example]:
        """Yield examples of random words."""
        rng = self.rng(*key)
        for _ in range(count):
            yield self.example(self.noise(self.noise_size(size), rng), rng)


def _cut(text: Any, longest: int | None) -> Any:
    """Return a piece of at most `longest` tokens, around the middle of a pair of texts."""
    if longest is None or isinstance(text, Item):  # a row of a task is whole
        return text
    if not isinstance(text, Marked):
        return np.array(text[:longest])
    (second,) = np.nonzero(text.has("second_side"))
    first = max(0, min(int(second[0]) - longest // 2, len(text) - longest)) if len(second) else 0
    part = slice(first, first + longest)
    return Marked(text.ids[part], text.marks[part])
