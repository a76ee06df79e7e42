"""Packing: which pieces share a batch, and their concatenation. No padding anywhere.

An epoch is planned from lengths alone, before any example is made: a seeded order of the pieces is
cut into windows, each window is packed by best fit into bins of the token budget, bins that stay
too empty are carried over to the next window (and, where `data/loader.py` says so, to the next
epoch), and the bins of a window are shuffled. So a plan is a pure function of (seed, epoch), and
a run can resume from any position in it.

Best fit in the random order, not in decreasing order: that fills 0.3 % more and makes batches of
like lengths, whose gradients differ from each other by the kind of their documents.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nlpkit.contracts.batch import LENGTHS, SOURCE_LENGTHS, TOKEN_FLAGS, Batch, Field
from nlpkit.contracts.objective import Objective
from nlpkit.errors import UsageError

WINDOW_BINS = 64  # bins' worth of pieces packed together
FULL_ENOUGH = 0.985  # bins emptier than this are carried over to the next window
MAX_CARRIED = 2  # at most so many: pieces that pack badly in one window do so in the next


@dataclass(frozen=True)
class Bins:
    """The batches of one epoch: `items[offsets[b]:offsets[b + 1]]` share bin b.

    `leftover` are the items that are in none of them, left to the next epoch.
    """

    items: np.ndarray  # (I,) int64
    offsets: np.ndarray  # (B + 1,) int64
    leftover: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (R,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.items[self.offsets[index] : self.offsets[index + 1]]


def best_fit(sizes: np.ndarray, budget: int) -> list[list[int]]:
    """Return bins of indices into `sizes` (I,), none over `budget`: best fit, in this order."""
    free_sizes: list[int] = []  # distinct free space of open bins, ascending
    open_bins: dict[int, list[list[int]]] = {}  # free space -> bins that have it
    done: list[list[int]] = []
    smallest = int(sizes.min(initial=budget))
    for index, size in enumerate(sizes.tolist()):
        index_of_free = bisect_left(free_sizes, size)
        if index_of_free == len(free_sizes):
            free, content = budget, []
        else:
            free = free_sizes[index_of_free]
            content = open_bins[free].pop()
            if not open_bins[free]:
                del open_bins[free], free_sizes[index_of_free]
        content.append(index)
        left = free - size
        if left < smallest:
            done.append(content)
        elif left in open_bins:
            open_bins[left].append(content)
        else:
            open_bins[left] = [content]
            insort(free_sizes, left)
    for free in free_sizes:
        done.extend(open_bins[free])
    return done


def plan_bins(
    items: np.ndarray,
    sizes: np.ndarray,
    budget: int,
    rng: np.random.Generator | None,
    *,
    allow_leftover: bool = False,
) -> Bins:
    """Pack `items` (I,) of `sizes` (I,) tokens, in this order; `rng` shuffles bins in a window.

    With `allow_leftover` the emptiest bins at the end stay unpacked, as `leftover`; never the only
    one.

    Raises:
        UsageError: an item is larger than the budget.
    """
    if len(sizes) and sizes.max() > budget:
        raise UsageError(
            f"train.tokens_per_batch: a sequence of {sizes.max()} tokens does not fit in a batch "
            f"of {budget}; raise it or lower objective.max_length"
        )
    packed: list[np.ndarray] = []
    carried = np.empty(0, np.int64)  # indices into `items`
    # Windows have about `WINDOW_BINS` bins; the last may be up to twice as long.
    total, tokens = np.cumsum(sizes), WINDOW_BINS * budget
    windows = max(1, int(total[-1] // tokens)) if len(sizes) else 0
    inner = np.searchsorted(total, np.arange(1, windows) * tokens).tolist()
    ends = [*inner, len(sizes)] if windows else []
    for start, stop in zip([0, *ends], ends, strict=False):
        window = np.concatenate([carried, np.arange(start, stop)])
        bins = [window[chosen] for chosen in best_fit(sizes[window], budget)]
        carried = np.empty(0, np.int64)
        if stop < len(sizes) or allow_leftover:
            bins, carried = _carry_over(bins, sizes, budget)
        if rng is not None:
            rng.shuffle(bins)
        packed.extend(bins)
    counts = np.array([len(b) for b in packed], np.int64)
    order = np.concatenate(packed) if packed else np.empty(0, np.int64)
    return Bins(items[order], np.concatenate([[0], np.cumsum(counts)]), items[carried])


def _carry_over(
    bins: list[np.ndarray], sizes: np.ndarray, budget: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the bins to keep, at least one, and the contents of the others: the emptiest."""
    fullest_first = sorted(bins, key=lambda b: -sizes[b].sum())
    keep = max(1, len(bins) - MAX_CARRIED)
    while keep < len(bins) and sizes[fullest_first[keep]].sum() >= FULL_ENOUGH * budget:
        keep += 1
    return fullest_first[:keep], np.concatenate([np.empty(0, np.int64), *fullest_first[keep:]])


def collate(examples: Sequence[Mapping[str, np.ndarray]], fields: Mapping[str, Field]) -> Batch:
    """Concatenate examples; the flags of their tokens are left out.

    An example is one sequence, as long as its first field with a value a token, or several, whose
    lengths it holds itself (`LENGTHS`). Lengths of source sequences are added to the fields, as a
    tuple: `source_lengths`.

    Raises:
        ValueError: a field with a value a token has more or fewer.
    """
    merged: dict[str, Any] = {
        name: np.concatenate([np.atleast_1d(example[name]) for example in examples])
        for name in examples[0]
        if name != TOKEN_FLAGS
    }
    token_field = next(name for name, kind in fields.items() if kind.per == "token")
    several = merged.pop(LENGTHS, None)
    if several is None:
        lengths = tuple(len(example[token_field]) for example in examples)
    else:
        lengths = tuple(several.tolist())
    for name, kind in fields.items():
        if kind.per == "token" and len(merged[name]) != sum(lengths):
            raise ValueError(
                f"field {name!r} has {len(merged[name])} values; one a token is {sum(lengths)}"
            )
        if kind.per == "source" and SOURCE_LENGTHS not in merged:
            merged[SOURCE_LENGTHS] = tuple(len(example[name]) for example in examples)
    return Batch(merged, lengths)


def pack_examples(objective: Objective, examples: Sequence[Mapping[str, np.ndarray]]) -> Batch:
    """Return the pack of an objective's examples, with the numbers of its targets."""
    batch = collate(examples, objective.fields)
    batch.num_targets = objective.num_targets({**batch.fields, LENGTHS: np.array(batch.lengths)})
    return batch


def packing_efficiency(bins: Bins, sizes: np.ndarray, budget: int) -> float:
    """Return the share of the token budget that an epoch's batches use."""
    if not len(bins):
        return 0.0
    used = int(sizes[bins.items % len(sizes)].sum())
    return used / (len(bins) * budget)


def frame_documents(
    documents: Callable[[int], np.ndarray],
    document: int,
    start: int,
    stop: int,
    before: Sequence[int],
    after: Sequence[int],
) -> np.ndarray:
    """Return a span of documents that stand one after another, each framed by tokens, (T,).

    `documents` gives what is kept of one: its ids or its flags. `start` and `stop` count from the
    first token of the frame of `document`.
    """
    found: list[np.ndarray] = []
    wanted = stop - start
    while wanted > 0:
        text = documents(document)
        for part in (before, text, after):
            here = part[start : start + wanted]
            start = max(0, start - len(part))
            wanted -= len(here)
            found.append(np.asarray(here, text.dtype))
        document += 1
    return np.concatenate(found)
