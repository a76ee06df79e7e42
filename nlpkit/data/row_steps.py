"""The stream of steps of a number of rows, as papers count batches: `train.rows_per_step`.

An epoch's rows, in their random order, are cut into groups of so many, as a `DataLoader` cuts them:
the last group is what is left. Each is packed by itself and is one step, in as many batches of the
token budget as it needs. So a step has exactly these rows, and none is handed on to another epoch.
"""

from typing import Any

import numpy as np

from nlpkit.data.loader import Examples, Stream
from nlpkit.data.pack import Bins, plan_bins


class RowStream(Stream):
    """The stream of steps of `rows` examples; see `Stream` for the other arguments."""

    def __init__(self, examples: Examples, *, rows: int, **others: Any):
        super().__init__(examples, batches_per_step=1, **others)
        self.rows = rows

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of the first epoch; others have about as many rows (see weights)."""
        return -(-len(self.plan(0).items) // self.rows)

    def _pack(self, epoch: int) -> Bins:
        items = self.examples.epoch(epoch)
        sizes = self.examples.sizes[items % len(self.examples)]
        order, offsets = [items[:0]], [np.zeros(1, np.int64)]
        for start in range(0, len(items), self.rows):
            group = slice(start, start + self.rows)
            bins = plan_bins(items[group], sizes[group], self.budget, None)
            order.append(bins.items)
            offsets.append(start + bins.offsets[1:])
        return Bins(np.concatenate(order), np.concatenate(offsets))

    def bins_of(self, step: int) -> range:
        """Return the numbers of the bins of the `step`-th step after the start, as `locate`."""
        while len(self._ends) < step + 2:
            epoch, index = self.locate(self._ends[-1])
            offsets = self.plan(epoch).offsets  # how many rows there are before each bin
            end = min((offsets[index] // self.rows + 1) * self.rows, offsets[-1])
            self._ends.append(self._ends[-1] + int(np.searchsorted(offsets, end)) - index)
        return range(self._ends[step], self._ends[step + 1])
