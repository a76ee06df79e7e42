"""Beam search for one input: which beams continue, which are finished, when to stop.

As transformers 5 with its default `early_stopping=False`: the search stops when N answers are
finished and the score of the best beam, divided by its *current* length ** length_penalty, is no
better than the worst answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Answer:
    """Generated tokens, without the end token."""

    ids: tuple[int, ...]
    score: float
    ended: bool  # by an end token or a stop text; else at the limit of tokens


class Beam:
    """`running`: (log-probability, ids) of N beams; `finished`: at most N answers, best first."""

    def __init__(self, width: int, length_penalty: float, most: int):
        self.width, self.length_penalty, self.most = width, length_penalty, most
        self.running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        self.finished: list[Answer] = []
        self.done = False

    def step(
        self,
        candidates: Sequence[tuple[float, int, int]],
        is_end: Callable[[int], bool],
        is_stop: Callable[[tuple[int, ...]], bool],
    ) -> list[int]:
        """Extend the beams by one token; return for each of the N new beams the one it extends.

        Args:
            candidates: (log-probability, beam, token), best first, enough that N can continue.
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
                # Lower candidates are there only so that N beams can continue.
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
        while not self.done and len(going_on) < self.width:  # too many were ended by stop texts
            parents.append(parents[0])
            going_on.append((-inf, going_on[0][1]))
        return parents

    def _may_improve(self, length: int) -> bool:
        if len(self.finished) < self.width:
            return True
        return self.running[0][0] / length**self.length_penalty > self.finished[-1].score
