"""The active requests of generation, their beams, and their rows of the cache.

W rows per request, R rows in total, C width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from torch import Tensor

from nlpkit.attention.cache import Cache
from nlpkit.contracts.abilities import Prompt
from nlpkit.errors import UsageError


@dataclass(frozen=True)
class Rules:
    """Which tokens end an answer, and which are never generated."""

    eos_token_ids: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    # Whether the output of a prompt contains a stop text.
    stops: Callable[[Prompt, Sequence[int]], bool] | None = None

    def candidates(self, beams: int) -> int:
        """Return how many candidates are needed to have `beams` of them without an end token."""
        return max(2, 1 + len(self.eos_token_ids)) * beams

    def check_beams(self, beams: int, vocab_size: int) -> None:
        """Raise `UsageError` if so many beams have more candidates than the vocabulary tokens."""
        if self.candidates(beams) > vocab_size:
            most = vocab_size // self.candidates(1)
            raise UsageError(f"--beam: {beams} is too many for {vocab_size} tokens; at most {most}")


@dataclass(frozen=True)
class Answer:
    """Generated tokens, without the end token."""

    ids: tuple[int, ...]
    score: float
    ended: bool  # True: by an end token or a stop text; False: at the limit of tokens


class Beam:
    """Beam search for one input: which beams continue, which are finished, when to stop.

    `running`: (log-probability, ids) of N beams; `finished`: at most N answers, best first. The
    rule is that of transformers 5 with `early_stopping=False`: the search stops when N answers are
    finished and the score of the best beam, divided by the `divisor` of its *current* length, is no
    better than the worst answer.
    """

    def __init__(self, width: int, divisor: Callable[[int], float], max_new_tokens: int):
        self.width, self.divisor = width, divisor
        self.max_new_tokens = max_new_tokens
        self.running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        self.finished: list[Answer] = []
        self.done = False

    def step(
        self,
        candidates: Sequence[tuple[float, int, int]],
        is_end: Callable[[int], bool],
        is_stop: Callable[[tuple[int, ...]], bool],
    ) -> list[int]:
        """Extend the beams by one token; return the index of the parent of each of the N beams.

        Args:
            candidates: (log-probability, beam, token), best first; at least N of them must not end.
        """
        length = len(self.running[0][1]) + 1
        full = length == self.max_new_tokens
        parents: list[int] = []
        running: list[tuple[float, tuple[int, ...]]] = []
        new: list[Answer] = []
        for rank, (score, beam, token) in enumerate(candidates):
            ids = (*self.running[beam][1], token)
            ended = is_end(token)
            if ended or full or is_stop(ids):
                # Candidates after the first N only replace beams that ended.
                if rank < self.width:
                    kept = ids[:-1] if ended else ids
                    stopped = ended or is_stop(ids)
                    new.append(Answer(kept, score / self.divisor(length), stopped))
            elif len(running) < self.width:
                parents.append(beam)
                running.append((score, ids))
        both = sorted((*self.finished, *new), key=lambda answer: -answer.score)
        self.finished = both[: self.width]
        self.running = running
        best = running[0][0] / self.divisor(length) if running else -inf
        may_improve = len(self.finished) < self.width or best > self.finished[-1].score
        self.done = full or not running or not may_improve
        while not self.done and len(running) < self.width:  # stop texts ended too many beams
            parents.append(parents[0])
            running.append((-inf, running[0][1]))
        return parents


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
