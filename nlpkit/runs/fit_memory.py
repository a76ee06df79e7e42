"""`train.memory`: the batch that fits, and gradient checkpointing if it is needed.

The estimate is that of `nlpkit plan`. What was chosen at the start of a run is recorded and stays,
since it decides which examples share a batch; also on a machine with other memory.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import Accelerator

from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.data.loader import Stream
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.runs.fastest_precision import PRECISION, Precision, keep_or_probe
from nlpkit.runs.planned import Planned, plan
from nlpkit.runs.resume import read_state
from nlpkit.runs.run import FITTED, Data, ModelPart, from_first
from nlpkit.runs.trial import measure
from nlpkit.train import recompute
from nlpkit.train.processes import is_sharded
from nlpkit.train.settings import Config
from nlpkit.units import format_bytes, parse_bytes


class Fitted(NamedTuple):
    """What was chosen, and the peak that was estimated for it."""

    tokens_per_batch: int
    gradient_checkpointing: bool
    peak: int = 0

    def settings(self, settings: Config) -> Config:
        """Return the settings with what was chosen."""
        on = self.gradient_checkpointing or settings.gradient_checkpointing
        chosen = {"tokens_per_batch": self.tokens_per_batch, "gradient_checkpointing": on}
        return settings.model_copy(update={**chosen, "memory": None})


def find_status(directory: RunDirectory, resumed: Path | None = None) -> JsonObject:
    """Return `run.json`; a run that begins with a checkpoint keeps what was chosen for that."""
    status = directory.status()
    if files.list_checkpoints(directory.path):
        return status
    status[FITTED] = None  # of a start that ended early
    read = files.MANIFEST, files.TRAINING
    if resumed and all((resumed / name).is_file() for name in read):  # reading a pipe would block
        with suppress(FileError):  # it is refused later
            saved = read_state(resumed, "")[0]
            # Older checkpoints do not have it, but the run that they lie in.
            before = RunDirectory(resumed.resolve().parent.parent).status()
            status.setdefault(PRECISION, saved.get(PRECISION, before.get(PRECISION)))
            status[FITTED] = saved.get(FITTED)
    return status


def recorded(status: JsonObject, settings: Config) -> Fitted | None:
    """Return what was chosen at the start of a run, unless its recipe names a batch."""
    if settings.memory is None and settings.tokens_per_batch is not None:
        return None
    found = status.get(FITTED)
    if isinstance(found, list) and [*map(type, found)] == [int, bool, int]:
        return Fitted(*found)
    return None


def find(
    resolved: Resolved,
    directory: RunDirectory,
    accelerator: Accelerator,
    part: ModelPart,
    data: Data,
    status: JsonObject,
    note: Callable[[str], None],
) -> Fitted | None:
    """Return what was chosen when the run began, or is now; None without `train.memory`.

    All processes call it together; `status` is that of `find_status`.

    Raises:
        UsageError: no batch fits; parameters are sharded, and nothing was chosen before; or a step
            is not a multiple of the batch that was chosen.
    """
    settings, processes = resolved.recipe.train, accelerator.num_processes
    if found := recorded(status, settings):
        size = found.tokens_per_batch
        if settings.tokens_per_step and settings.tokens_per_step % size:
            raise UsageError(
                f"train.tokens_per_step: {settings.tokens_per_step} is not a multiple of the batch "
                f"of {size} tokens that train.memory chose when the run began; give another "
                "number, or train.tokens_per_batch with train.memory: null"
            )
        note(f"batches of {size:,} tokens, as at the start of this run")
        return found
    if settings.memory is None or files.list_checkpoints(directory.path):
        return None
    if is_sharded(processes):
        raise UsageError(
            "train.memory: measures a whole model, and FSDP shards it; set train.tokens_per_batch"
        )

    def decide() -> Fitted:
        precision = keep_or_probe(resolved, status, accelerator.device).name
        chosen = resolved, part, data, accelerator.device
        return choose(*chosen, precision=precision, processes=processes, note=note)

    return from_first(decide)


def candidates(planned: Planned, processes: int) -> list[int]:
    """Return the budgets of a batch that divide a step and hold the longest example, ascending.

    Those are preferred that give every process as many batches.
    """
    step, longest = planned.settings.tokens_per_step, int(planned.data.examples.sizes.max())
    assert step is not None  # train.memory excludes rows_per_step
    sizes = [n for n in range(longest, step + 1) if step % n == 0]
    return [n for n in sizes if step // n % processes == 0] or sizes


def choose(
    resolved: Resolved,
    part: ModelPart,
    data: Data,
    device: torch.device,
    *,
    precision: str,
    processes: int = 1,
    note: Callable[[str], None] = lambda line: None,
) -> Fitted:
    """Return the largest batch whose peak stays below `train.memory`.

    Gradient checkpointing is only switched on if no batch fits without it.

    Raises:
        UsageError: no batch that holds the longest example fits.
    """
    settings = resolved.recipe.train
    limit = settings.memory or ""
    most = parse_bytes(limit)
    widest = {"tokens_per_batch": settings.tokens_per_step, "memory": None}  # holds every example
    # The run itself builds its model with the weights of `init_from`, which leave the part then.
    part = replace(part, start=None)
    planned = plan(resolved, settings.model_copy(update=widest), part, data, device)
    sizes = candidates(planned, processes)
    if not sizes:
        longest = int(planned.data.examples.sizes.max())
        raise UsageError(
            f"train.tokens_per_step: {settings.tokens_per_step}: the longest example has "
            f"{longest} tokens; raise it, or lower objective.max_length"
        )
    ways = [settings.gradient_checkpointing]
    if ways == [False] and recompute.layers(planned.model):
        ways.append(True)
    for on in ways:
        planned.settings = planned.settings.model_copy(update={"gradient_checkpointing": on})
        found = _fit(planned, sizes, most, precision)
        if found.peak <= most:
            number = number_of(found.settings(settings).batches_per_step, "batches")
            note(
                f"train.memory: {limit}: {number} of {found.tokens_per_batch:,} tokens a step, "
                f"about {format_bytes(found.peak)} at the peak"
                + ("; switches train.gradient_checkpointing on" if len(ways) > 1 and on else "")
            )
            return found
    more = " with train.gradient_checkpointing" if ways[-1] else ""
    raise UsageError(
        f"train.memory: {limit}: even a batch of {sizes[0]:,} tokens, the smallest that divides "
        "train.tokens_per_step and holds the longest example, needs about "
        f"{format_bytes(found.peak)}{more}; give more memory, lower objective.max_length, or take "
        "a smaller model"
    )


def _fit(planned: Planned, sizes: list[int], most: int, precision: str) -> Fitted:
    """Return the largest of `sizes` that fits, or else the smallest one.

    The smallest one is measured. Memory grows with the tokens of a batch, which gives the size to
    try; while a size does not fit, half of it is tried.
    """
    least, fixed = _estimate_peak(planned, sizes[0], most, precision)
    per_token = (least - fixed) / sizes[0]
    sizes = [n for n in sizes if n == sizes[0] or fixed + per_token * n <= most]
    while len(sizes) > 1:
        peak, _ = _estimate_peak(planned, sizes[-1], most, precision)
        if peak <= most:
            return Fitted(sizes[-1], planned.settings.gradient_checkpointing, peak)
        sizes = [n for n in sizes if n <= max(sizes[-1] // 2, sizes[0])]
    return Fitted(sizes[0], planned.settings.gradient_checkpointing, least)


def _estimate_peak(planned: Planned, size: int, most: int, precision: str) -> tuple[int, int]:
    """Return the peak of a run with batches of this size, and what does not depend on the size.

    The peak is more than `most` if what was tried does not fit.
    """
    settings = planned.settings.model_copy(update={"tokens_per_batch": size})
    stream = Stream(planned.data.examples, budget=size, batches_per_step=settings.batches_per_step)
    changed = replace(planned, settings=settings, stream=stream)
    found = measure(changed, Precision(precision, "given"), most)
    peak = found.state if found.peak is None else found.peak
    return peak if found.fits else max(peak, most + 1), min(found.state, peak)
