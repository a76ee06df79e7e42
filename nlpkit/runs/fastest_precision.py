"""Chooses the type that a run on a CPU computes in: batches of its own are timed in both.

Where it has units for bf16, some examples decide, as a small model takes more time for casts, and
for kernels of new shapes, than bf16 saves: forward and backward of a part of a batch, twice. Its
shapes are new, then they are known; a run has batches of both sorts.
"""

import time
from typing import NamedTuple

import numpy as np
import torch

from nlpkit.contracts.batch import Batch
from nlpkit.data.loader import Stream
from nlpkit.json_types import JsonObject
from nlpkit.recipe import Resolved
from nlpkit.runs.run import Training
from nlpkit.train import machine

PRECISION = "precision"  # in run.json and training.json
_TOKENS = (250, 1000, 2000)  # of the batches of each round
_GAIN = 1.05  # times as fast: for less, the better numbers are kept


class Precision(NamedTuple):
    """`fp32` or `bf16`, the reason in words, and whether batches may decide otherwise."""

    name: str
    reason: str
    is_open: bool = False


def probe(requested: str, device: torch.device) -> Precision:
    """Return what is asked for, or what the device has units for."""
    name, reason = machine.choose_precision(requested, device)
    return Precision(name, reason, requested == "auto" and device.type == "cpu" and name == "bf16")


def keep_or_probe(resolved: Resolved, status: JsonObject, device: torch.device) -> Precision:
    """Return the precision that a run has kept since its first start (`status`), or `probe`.

    The batch that `train.memory` chooses is one for this type, which is final then.
    """
    requested, kept = resolved.recipe.train.precision, status.get(PRECISION)
    if kept in ("fp32", "bf16") and requested in ("auto", kept):
        return Precision(kept, "as at the start of this run")
    found = probe(requested, device)
    return found._replace(is_open=found.is_open and resolved.recipe.train.memory is None)


def time_batches(precision: Precision, training: Training, stream: Stream) -> Precision:
    """Return the precision, decided by a few batches if it is open; it draws no random number."""
    if not precision.is_open:
        return precision
    speed = _speed(training, stream)
    name = "bf16" if speed > _GAIN else "fp32"
    return Precision(name, f"a batch in bf16 is {speed:.2g} x as fast")


def _speed(training: Training, stream: Stream) -> float:
    """Return the time of a batch in fp32, divided by that in bf16; no module is wrapped yet.

    The clock is that of one thread: other programs take time, too, but not from it.
    """
    before, threads = training.precision, torch.get_num_threads()
    torch.set_num_threads(1)
    training.train()
    try:
        with torch.random.fork_rng(devices=[]):
            for index, tokens in enumerate(_TOKENS):
                times: list[float] = []
                first, second = (_part(stream, 2 * index + n, tokens) for n in (0, 1))
                for training.precision in ("fp32", "bf16"):
                    compute_gradients(training, first)  # finds what torch loads late, too
                    start = time.thread_time()
                    compute_gradients(training, second)
                    compute_gradients(training, second)
                    times.append(time.thread_time() - start)
                if (speed := times[0] / times[1]) > _GAIN:  # in larger batches bf16 gains more
                    break
    finally:
        torch.set_num_threads(threads)
        training.precision = before
        training.zero_grad(set_to_none=True)
    return speed


def _part(stream: Stream, index: int, tokens: int) -> Batch:
    """Return about so many tokens of a batch of the first epoch."""
    bins, examples = stream.plan(0), stream.examples
    items = bins[index % len(bins)]
    sizes = examples.sizes[items % len(examples.sizes)]
    order = np.argsort(sizes, kind="stable")  # the smallest one stands first
    part = items[order[:: max(1, int(sizes.sum()) // tokens)]]
    return machine.to_device(examples.batch(part, 0), torch.device("cpu"))


def compute_gradients(training: Training, batch: Batch) -> None:
    """Compute the gradients of a batch, also of one without targets."""
    num_targets = {name: max(1, number) for name, number in batch.num_targets.items()}
    training(batch).mean(num_targets).backward()
