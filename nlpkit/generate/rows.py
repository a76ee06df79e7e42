"""The active requests of generation, and their rows of the cache.

W rows per request, R rows in total, C width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from nlpkit.attention.cache import Cache
from nlpkit.contracts.abilities import Prompt
from nlpkit.generate.beams import Answer, Beam


@dataclass(frozen=True)
class Rules:
    """Which tokens end an answer, and which are never generated."""

    eos_token_ids: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    stops: Callable[[Sequence[int]], bool] | None = None  # whether ids contain a stop text

    def candidates(self, beams: int) -> int:
        """Return how many candidates are needed to have `beams` of them without an end token."""
        return max(2, 1 + len(self.eos_token_ids)) * beams


@dataclass
class Request:
    """The generation for an input, or one of several samples for it."""

    number: int  # the index of its input
    prompt: Prompt
    draws: np.random.Generator | None
    beam: Beam | None
    ids: list[int] = field(default_factory=list)
    score: float = 0.0
    answers: list[Answer] | None = None  # None until it is finished
    kept: dict[int, Tensor] = field(default_factory=dict)  # slot -> state (C,) that predicts it

    @property
    def rows(self) -> list[Sequence[int]]:
        """The tokens of each row, generated so far."""
        return [ids for _, ids in self.beam.running] if self.beam else [self.ids]

    @property
    def count(self) -> int:
        """The number of tokens generated so far."""
        return len(self.rows[0])

    def last(self) -> list[int]:
        """Return the last token of each row."""
        return [ids[-1] for ids in self.rows]

    def repeated(self, window: int | None) -> list[np.ndarray]:
        """Return what a repetition penalty counts of each row, at most the last `window` tokens."""
        text = self.prompt.text if self.prompt.penalize_text else self.prompt.text[:0]
        whole = [np.concatenate([text, np.array(ids, np.int64)]) for ids in self.rows]
        return [ids[-(window or 0) :] for ids in whole]


@dataclass
class ActiveBatch:
    """The active requests and their cache: request i has the rows i * W to (i + 1) * W."""

    requests: list[Request] = field(default_factory=list)
    cache: Cache = field(default_factory=Cache)


def compact(alive: Sequence[bool]) -> list[int]:
    """Return the indices of True values; the last of them replace the False values before them."""
    count = sum(alive)
    movers = (i for i in range(len(alive) - 1, count - 1, -1) if alive[i])
    return [i if alive[i] else next(movers) for i in range(count)]
