"""Beam search for one input: which beams continue, which are finished, when to stop.

The rule is that of transformers 5 with `early_stopping=False`: the search stops when N answers are
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
    ended: bool  # True: by an end token or a stop text; False: at the limit of tokens


class Beam:
    """`running`: (log-probability, ids) of N beams; `finished`: at most N answers, best first."""

    def __init__(self, width: int, length_penalty: float, max_new_tokens: int):
        self.width, self.length_penalty = width, length_penalty
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
                    new.append(Answer(kept, score / length**self.length_penalty, stopped))
            elif len(running) < self.width:
                parents.append(beam)
                running.append((score, ids))
        both = sorted((*self.finished, *new), key=lambda answer: -answer.score)
        self.finished = both[: self.width]
        self.running = running
        self.done = full or not running or not self._may_improve(length)
        while not self.done and len(running) < self.width:  # stop texts ended too many beams
            parents.append(parents[0])
            running.append((-inf, running[0][1]))
        return parents

    def _may_improve(self, length: int) -> bool:
        if len(self.finished) < self.width:
            return True
        return self.running[0][0] / length**self.length_penalty > self.finished[-1].score
