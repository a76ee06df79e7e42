"""The stream of optimizer steps: bins of an endless sequence of epochs, shared out to processes.

Every example depends on (seed, epoch, piece) alone and every epoch's plan on (seed, epoch), so the
stream is the same with any number of workers, and a position is two integers. If an epoch has few
bins, the content of its last one goes first into the next epoch, up to the end of a round.
"""

import math
import multiprocessing
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from nlpkit.contracts.batch import Batch, FlaggedIds
from nlpkit.contracts.check import defines
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.task import Item, Task
from nlpkit.data.corpus import Corpus
from nlpkit.data.items import TaskDataset
from nlpkit.data.pack import Bins, frame_documents, pack_examples, plan_bins
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject

if TYPE_CHECKING:
    from nlpkit.data.negatives import Negatives

TRAIN, HELD_OUT = 0, 1  # second word of the seed, so that the two never share random numbers
ROUND_BINS = 256  # bins in a round: its one last, half-empty bin is then at most 0.4 % of it


class Position(NamedTuple):
    """Where the stream stands: the next bin to be used."""

    epoch: int = 0
    bin: int = 0


@dataclass(frozen=True)
class Progress:
    """How far a run is when a step begins, from 0 to 1; 0 where nothing is known.

    `first_step` steps of the run were done before the stream's start. Where the share is only known
    when a step begins, `clock` returns it.
    """

    first_step: int = 0
    total_steps: int | None = None
    clock: Callable[[], float] | None = None

    def at(self, step: int) -> float:
        """Return the share that is done when the `step`-th step after the start begins."""
        if self.clock is not None:
            return self.clock()
        return (self.first_step + step) / self.total_steps if self.total_steps else 0.0


@dataclass(frozen=True)
class Step:
    """The batches of one optimizer step that this process computes, and the position after it.

    All processes compute the same number of batches. Where a step has too few for that, the last
    one of a process is a `stand_in`: a batch of another process, which counts for nothing here.
    """

    batches: list[Batch]
    after: Position
    stand_in: bool = False
    notes: JsonObject = field(default_factory=dict)  # what `metrics.jsonl` also has of the step

    @property
    def own(self) -> list[Batch]:
        """The batches that count."""
        return self.batches[:-1] if self.stand_in else self.batches


class Examples:
    """The pieces of a corpus as finished examples, found by number."""

    words: np.ndarray | None = None  # (I,) of each piece, where the run counts them

    def __init__(
        self, corpus: Corpus | TaskDataset, objective: Objective, seed: int, split: int = TRAIN
    ):
        self.corpus, self.objective, self.seed, self.split = corpus, objective, seed, split
        if objective.cut_at and isinstance(corpus, Corpus):
            self.spans = objective.spans_cut_at(
                corpus.lengths, corpus.flagged_tokens(objective.cut_at)
            )
        else:
            self.spans = objective.spans(corpus.lengths)
        self.sizes = objective.length(self.spans.stop - self.spans.start)  # (I,) tokens
        if isinstance(corpus, Corpus) and corpus.words is not None:
            from nlpkit.data import words

            self.words = words.count_pieces(corpus.words, corpus.lengths, self.spans)
        self.token_field = next(n for n, f in objective.fields.items() if f.per == "token")
        source = np.searchsorted(corpus.starts, self.spans.document, side="right") - 1
        self.weights = corpus.weights[source]  # (I,) how often an epoch has each piece
        self.occurrences = int(corpus.weights.max()) + 1  # most that an epoch has of a piece
        is_training_task = split == TRAIN and isinstance(objective, Task)
        self.augment = cast(Task, objective).augment if is_training_task else None
        self.negatives: Negatives | None = None
        if objective.negatives and len(self.spans):
            from nlpkit.data import negatives

            what = "the held-out data" if split == HELD_OUT else "the training data"
            self.negatives = negatives.Negatives(self.spans, corpus.lengths, self.weights, what)

    def __len__(self) -> int:
        return len(self.spans)

    def generator(self, *key: int) -> np.random.Generator:
        """Return random numbers that depend on the seed, the split and `key` alone."""
        return np.random.Generator(np.random.PCG64([self.seed, self.split, *key]))

    def epoch(self, epoch: int) -> np.ndarray:
        """Return the epoch's items in random order; item = occurrence * len(self) + piece.

        A piece of weight w occurs floor(w) times and once more with probability w - floor(w).
        """
        rng = self.generator(epoch)
        drawn = np.floor(self.weights + rng.random(len(self)))
        if (total := drawn.sum()) > 10 * len(self) + 1e8:  # its plan would not fit into memory
            what = f"with these weights an epoch has {total:.3g} examples; lower them"
            raise UsageError(f"data.train: {what}")
        times = drawn.astype(np.int64)
        piece = np.repeat(np.arange(len(self)), times)
        first = np.repeat(np.cumsum(times) - times, times)
        return rng.permutation((np.arange(len(piece)) - first) * len(self) + piece)

    def carry_over(self, items: np.ndarray) -> np.ndarray:
        """Return what items of an epoch are called in the plan of the next one."""
        return items + self.occurrences * len(self)

    def make(self, item: int, epoch: int) -> dict[str, np.ndarray]:
        """Return the example of `item` in the plan of `epoch`."""
        occurrence, piece = divmod(int(item), len(self))
        carried, occurrence = divmod(occurrence, self.occurrences)
        rng = self.generator((epoch - carried) % self.objective.repeats_after, piece, occurrence)
        source: Any = self.source(piece)
        if self.augment is not None:
            source = self.augment(source, rng)
        if self.negatives is None:
            return self.objective.example(source, rng)
        drawn = self.negatives.draw(piece, self.objective.negatives, rng)
        return self.objective.example(source, rng, [self.source(other) for other in drawn])

    def source(self, piece: int) -> np.ndarray | Item | FlaggedIds:
        """Return what an example is made of: the ids (T,) of a piece, for a task an item.

        Ids of a frame are those in the span. If the objective has any `token_flags`, ids have them.
        """
        spans, corpus = self.spans, self.corpus
        document, start, stop = (int(e[piece]) for e in (spans.document, spans.start, spans.stop))
        if isinstance(corpus, TaskDataset):
            return corpus.items[document]
        span, before, after = (document, start, stop), spans.before, spans.after
        if before or after or stop > corpus.lengths[document]:
            ids = frame_documents(corpus.document, *span, before, after)
        else:
            ids = corpus.document(document)[start:stop]
        if not self.objective.token_flags:
            return ids
        no_flags = [0] * len(before), [0] * len(after)
        return FlaggedIds(ids, frame_documents(corpus.flags, *span, *no_flags))

    def batch(self, items: np.ndarray, epoch: int, progress: float = 0.0) -> Batch:
        """Return the pack of these items as they are when this share of the run is done."""
        made = [self.make(item, epoch) for item in items]
        if defines(self.objective, Objective, "at_progress"):
            made = [self.objective.at_progress(example, progress) for example in made]
        batch = pack_examples(self.objective, made)
        if self.words is not None:
            batch.words = int(self.words[items % len(self)].sum())
        return batch


class Stream:
    """Map-style data set of optimizer steps counted from `start`.

    `batches_per_step` is a number, or a function of the number of a step of the run: 1, 2, ….
    """

    def __init__(
        self,
        examples: Examples,
        *,
        budget: int,
        batches_per_step: int | Callable[[int], int],
        start: Position = Position(),
        progress: Progress = Progress(),
        rank: int = 0,
        world_size: int = 1,
    ):
        self.examples, self.budget, self.batches_per_step = examples, budget, batches_per_step
        self.start, self.progress = start, progress
        self.rank, self.world_size = rank, world_size
        tokens = float((examples.sizes * examples.weights).sum())  # of an epoch, expected
        self.round = min(ROUND_BINS, math.ceil(ROUND_BINS * budget / tokens))  # epochs
        self._plans: dict[int, Bins] = {}
        self._ends = [0]  # the bins of the first steps together, where steps differ
        self._firsts: list[int] = [-start.bin]  # number of the first bin of start.epoch + k

    def plan(self, epoch: int) -> Bins:
        """Return the bins of `epoch`; the last two epochs asked for are kept."""
        if epoch not in self._plans:
            bins = self._pack(epoch)
            self._plans = {e: b for e, b in self._plans.items() if e == epoch - 1} | {epoch: bins}
        return self._plans[epoch]

    def _pack(self, epoch: int) -> Bins:
        examples = self.examples
        items = examples.epoch(epoch)
        if epoch % self.round:
            carried = examples.carry_over(self.plan(epoch - 1).leftover)
            items = np.concatenate([carried, items])
        sizes, rng = examples.sizes[items % len(examples)], examples.generator(epoch, 0, 0, 1)
        leaves = (epoch + 1) % self.round != 0
        return plan_bins(items, sizes, self.budget, rng, allow_leftover=leaves)

    def locate(self, number: int) -> Position:
        """Return epoch and bin of the `number`-th bin counted from the start position."""
        while number >= self._firsts[-1] + len(self.plan(self.start.epoch + len(self._firsts) - 1)):
            epoch = self.start.epoch + len(self._firsts) - 1
            self._firsts.append(self._firsts[-1] + len(self.plan(epoch)))
        index = bisect_right(self._firsts, number) - 1
        return Position(self.start.epoch + index, number - self._firsts[index])

    def bins_of(self, step: int) -> range:
        """Return the numbers of the bins of the `step`-th step after the start, as `locate`."""
        size = self.batches_per_step
        if isinstance(size, int):
            return range(step * size, (step + 1) * size)
        while len(self._ends) < step + 2:
            number = self.progress.first_step + len(self._ends)
            self._ends.append(self._ends[-1] + size(number))
        return range(self._ends[step], self._ends[step + 1])

    def __getitem__(self, step: int) -> Step:
        """Return this process's share of the `step`-th step after the start."""
        bins, progress = self.bins_of(step), self.progress.at(step)
        numbers = bins[self.rank :: self.world_size]
        stand_in = len(numbers) < -(-len(bins) // self.world_size)
        batches = []
        for number in [*numbers, bins[0]] if stand_in else numbers:
            epoch, index = self.locate(number)
            batches.append(self.examples.batch(self.plan(epoch)[index], epoch, progress))
        return Step(batches, self.locate(bins.stop), stand_in)


def steps(stream: Stream, count: int, workers: int) -> Iterator[Step]:
    """Yield the first `count` steps of a stream, prepared by `workers` processes (0: by this).

    Examples that follow a clock are made by this process, when their step begins.

    Raises:
        OutOfMemory: a worker was killed.
    """
    follows = defines(stream.examples.objective, Objective, "at_progress")
    if workers == 0 or (follows and stream.progress.clock):
        yield from map(stream.__getitem__, range(count))
        return
    from nlpkit.data._worker_pool import run_in_workers

    # The workers inherit the plan, and an error in it is raised here.
    stream.plan(stream.start.epoch)
    prepared = run_in_workers(
        *(stream.__getitem__, iter(range(count)), workers, lambda: None),
        setting="train.workers: 0",
        context=multiprocessing.get_context("fork"),  # a worker has the stream without a copy
        ahead=workers,
    )
    with closing(prepared):
        yield from (step for _, step in prepared)


def held_out_batches(examples: Examples, budget: int) -> tuple[Bins, Callable[[int], Batch]]:
    """Return the bins of a held-out set, always the same, and what makes the batch of one.

    Examples that change in the course of a run are those of its end at every evaluation, so that
    the losses can be compared.
    """
    bins = plan_bins(np.arange(len(examples)), examples.sizes, budget, None)
    return bins, lambda index: examples.batch(bins[index], 0, 1.0)
