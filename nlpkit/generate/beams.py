"""Beam search of one input: which continuations live on, which are finished, when to stop.

As transformers 5 with `early_stopping=False`, its default: the search ends when N answers are
finished and the best beam, divided by its *present* length ** length_penalty, is no better than the
worst of them.
N beams, M most tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Answer:
    """Generated tokens, without the end token that may have ended them."""

    ids: tuple[int, ...]
    score: float
    ended: bool  # by an end token or a stop text; else there was no more room


class Beam:
    """`running`: (log-probability, ids) of the beams; `finished`: at most N answers, best first."""

    def __init__(self, width: int, length_penalty: float, most: int):
        self.width, self.length_penalty, self.most = width, length_penalty, most
        self.running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        self.finished: list[Answer] = []
        self.done = False

    def push(
        self,
        candidates: Sequence[tuple[float, int, int]],
        is_end: Callable[[int], bool],
        is_stop: Callable[[tuple[int, ...]], bool],
    ) -> list[int]:
        """Take the best (log-probability, beam, token), best first, enough that N can go on.

        Returns for each of the N new beams which old one it continues.
        """
        length = len(self.running[0][1]) + 1
        full = length == self.most
        parents: list[int] = []
        going_on: list[tuple[float, tuple[int, ...]]] = []
        new: list[Answer] = []
        for rank, (score, beam, token) in enumerate(candidates):
            ids = (*self.running[beam][1], token)
            ended = is_end(token)
            if ended or full or is_stop(ids):
                # What ranks lower is there only so that N beams can go on.
                if rank < self.width:
                    kept = ids[:-1] if ended else ids
                    stopped = ended or is_stop(ids)
                    new.append(Answer(kept, score / length**self.length_penalty, stopped))
            elif len(going_on) < self.width:
                parents.append(beam)
                going_on.append((score, ids))
        both = sorted((*self.finished, *new), key=lambda answer: -answer.score)
        self.finished = both[: self.width]
        self.running = going_on
        self.done = full or not going_on or not self._may_improve(length)
        while not self.done and len(going_on) < self.width:  # stop texts ended too many
            parents.append(parents[0])
            going_on.append((-inf, going_on[0][1]))
        return parents

    def _may_improve(self, length: int) -> bool:
        if len(self.finished) < self.width:
            return True
        return self.running[0][0] / length**self.length_penalty > self.finished[-1].score
