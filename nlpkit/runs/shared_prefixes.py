"""Losses of many short causal sequences, whose shared beginnings are computed once.

Sorted, the sequences are the branches of a tree. Layers compute each distinct beginning once, as
one row; attention alone reads all tokens of all sequences, expanded from the rows.

S sequences, L tokens of the longest, N tokens of all, R rows (distinct beginnings), M targets.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlpkit.attention.cache import Cache, CacheKey
from nlpkit.contracts.kind import LAYOUT_FIELDS
from nlpkit.contracts.request import Request
from nlpkit.models.layers.stack import Stack
from nlpkit.models.soft_prompt import SoftPrompt

_LONGEST = 128  # tokens; what is sorted is a matrix
_SAVED = 0.1  # share of the tokens below which packs of whole sequences are as fast
_END = -1  # behind a sequence
_FULL = "full"

Targets = tuple[np.ndarray, np.ndarray]  # the places that predict a target, and the targets' ids


class _SharedRows(Cache):
    """A step of a model in which the tokens (N,) of the pack are rows (R,) that they share."""

    def __init__(self, rows: Tensor, first: Tensor):
        """Take the row of each token (N,), and a token of each row (R,)."""
        super().__init__()
        self.rows, self.first = rows, first

    def record(
        self, request: Request, run: Callable[[Tensor, Tensor, Tensor], Tensor], key: CacheKey
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return the attention over the pack, from rows and to rows."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return run(q[self.rows], k[self.rows], v[self.rows])[self.first]

        return attend


@dataclass(frozen=True)
class Tree:
    """Sequences sorted so that those with a beginning in common are neighbours."""

    order: np.ndarray  # (S,) the number of each sequence as they were given
    tokens: np.ndarray  # (S, L) their ids, and `_END` behind them

    def split(self, budget: int) -> Iterator[slice]:
        """Yield runs of sequences with about `budget` rows each."""
        part = np.cumsum(_find_new(self.tokens).sum(1)) // budget
        edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
        yield from (slice(*edge) for edge in pairwise(edges))


def can_share(
    model: Any, names: Collection[str], sequences: Iterable[Mapping[str, np.ndarray]]
) -> bool:
    """Return whether the states of sequences depend on the tokens to their left alone.

    `names` are the inputs of the model. A sequence that is marked as `full` (kind `hybrid`) sees
    all of its tokens; if none is, the model computes the same without the marks. Virtual tokens
    stand before each sequence, which a tree of rows has not.
    """
    if isinstance(model, SoftPrompt) or not isinstance(model, Stack):
        return False
    if not {*names} <= {"input_ids", _FULL}:
        return False
    if _FULL in names and any(np.any(each.get(_FULL, True)) for each in sequences):
        return False
    return all(
        choice.visibility == "causal"
        and not choice.is_custom
        and choice.module.required_fields(choice.config) <= {*LAYOUT_FIELDS}
        for choice in model.config.kinds
    )


def arrange(sequences: Sequence[np.ndarray]) -> Tree | None:
    """Return the tree of the sequences; None: they are too long, or share too little."""
    longest = max(map(len, sequences), default=0)
    if not 0 < longest <= _LONGEST:
        return None
    matrix = np.full((len(sequences), longest), _END, np.int64)
    for row, ids in zip(matrix, sequences, strict=True):
        row[: len(ids)] = ids
    order = np.lexsort(matrix.T[::-1])
    matrix = matrix[order]
    computed = _find_new(matrix).sum() / (matrix != _END).sum()
    return Tree(order, matrix) if computed <= 1 - _SAVED else None


def _find_new(tokens: np.ndarray) -> np.ndarray:
    """Return (S, L) bool: where a sequence has a beginning that the one before it has not."""
    alike = np.cumprod(tokens[1:] == tokens[:-1], axis=1, dtype=np.int64) != 0
    new = tokens != _END
    new[1:] &= ~alike
    return new


def compute_losses(
    model: Any, tokens: np.ndarray, targets: Sequence[Targets], device: torch.device
) -> np.ndarray:
    """Return the losses (M,) of all targets of sequences, in order.

    Args:
        tokens: (S, L) rows of a `Tree`.
        targets: those of each sequence.
    """
    new = _find_new(tokens)
    numbers = np.where(new, np.cumsum(new).reshape(new.shape) - 1, 0)
    row_of = np.maximum.accumulate(numbers, axis=0)  # (S, L): the last new one above
    lengths = (tokens != _END).sum(1)
    by_length = np.argsort(lengths, kind="stable")  # runs of equal length are one call
    rows = row_of[by_length][tokens[by_length] != _END]  # (N,)
    _, first = np.unique(rows, return_index=True)  # (R,)

    sequence = np.repeat(np.arange(len(targets)), [len(places) for places, _ in targets])  # (M,)
    place = np.concatenate([places for places, _ in targets])
    # Sequences with the same beginning and target share the product with the vocabulary.
    wanted = np.stack([row_of[sequence, place], np.concatenate([ids for _, ids in targets])])
    (of_row, ids), where = np.unique(wanted, axis=1, return_inverse=True)
    read, index = np.unique(of_row, return_inverse=True)

    def give(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    states = model(
        lengths[by_length].tolist(), input_ids=give(tokens[new]),
        position_ids=give(np.nonzero(new)[1]), cache=_SharedRows(give(rows), give(first)),
        rows=give(read),
    )  # fmt: skip
    _, losses = model.token_loss(states, give(index), give(ids))
    return losses.double().cpu().numpy()[where.reshape(-1)]
