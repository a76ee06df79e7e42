"""`train.memory`: the batch that fits, and gradient checkpointing if it is needed.

The estimate is that of `nlpkit plan`: a trial trains on the longest batches and on a few others.
What was chosen at the start of a run is recorded and stays, since it decides which examples share
a batch; also on a machine with other memory.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator, PartialState

from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.data.loader import Stream
from nlpkit.errors import UsageError
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.runs import trial
from nlpkit.runs.fastest_precision import Precision, keep_or_probe
from nlpkit.runs.planned import Planned, plan
from nlpkit.runs.resume import find_problem, read_state
from nlpkit.runs.run import Data, ModelPart, from_first
from nlpkit.runs.save import FITTED
from nlpkit.train import machine, memory, recompute
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
        return settings.model_copy(
            update={
                "tokens_per_batch": self.tokens_per_batch,
                "gradient_checkpointing": self.gradient_checkpointing
                or settings.gradient_checkpointing,
                "memory": None,
            }
        )


def recorded(directory: RunDirectory, resumed: Path | None) -> Fitted | None:
    """Return what was chosen at the start of this run, or of the run of a checkpoint."""
    found: Any = None
    if files.list_checkpoints(directory.path):
        found = directory.status().get(FITTED)
    elif resumed is not None and resumed.exists() and find_problem(resumed) is None:
        found = read_state(resumed, "")[0].get(FITTED)
    return Fitted(*found) if _is_fitted(found) else None


def _is_fitted(found: Any) -> bool:
    """Return whether this is what a `Fitted` is in a file."""
    return isinstance(found, list) and [*map(type, found)] == [int, bool, int]


def of_run(
    resolved: Resolved,
    directory: RunDirectory,
    accelerator: Accelerator,
    part: ModelPart,
    data: Data,
    resumed: Path | None,
    note: Callable[[str], None],
) -> Config:
    """Return the section `train` with what is chosen now, or was when the run began; record it.

    All processes call it together.

    Raises:
        UsageError: no batch fits; parameters are sharded, and nothing was chosen before.
    """
    settings, processes = resolved.recipe.train, accelerator.num_processes
    begun = bool(files.list_checkpoints(directory.path))
    if settings.memory is not None and not begun and is_sharded(processes):
        raise UsageError(
            "train.memory: measures a whole model, and FSDP shards it; set train.tokens_per_batch"
        )

    def decide() -> Fitted | None:
        found = recorded(directory, resumed)
        if found is None and settings.memory is not None and not begun:
            found = choose(
                *(resolved, part, data, accelerator.device),
                precision=keep_or_probe(resolved, directory, accelerator.device).name,
                processes=processes,
                note=note,
            )
        if found is not None or FITTED in directory.status():  # of a start that ended too early
            directory.set_status(**{FITTED: found})
        return found

    found = from_first(PartialState(), decide)
    if found is None:
        return settings.model_copy(update={"memory": None})
    if begun:
        note(f"batches of {found.tokens_per_batch:,} tokens, as at the start of this run")
    return found.settings(settings)


def candidates(planned: Planned, processes: int) -> list[int]:
    """Return the budgets of a batch that divide a step and hold the longest example, ascending.

    Those are preferred that give every process as many batches.
    """
    step, longest = planned.settings.tokens_per_step, int(planned.data.examples.sizes.max())
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
    planned = plan(resolved, settings.model_copy(update=widest), part, data, device)
    sizes = candidates(planned, processes)
    if not sizes:
        longest = int(planned.data.examples.sizes.max())
        raise UsageError(
            f"train.tokens_per_step: {settings.tokens_per_step}: the longest example has "
            f"{longest} tokens; raise it, or lower objective.max_length"
        )
    ways = [True] if settings.gradient_checkpointing else [False]
    if ways == [False] and recompute.layers(planned.model):
        ways.append(True)
    least = 0
    for on in ways:
        planned.settings = planned.settings.model_copy(update={"gradient_checkpointing": on})
        found, least = _find_largest(planned, sizes, most, precision)
        if found is not None:
            note(f"train.memory: {limit}: {_said(found, settings)}")
            return found
    more = " with train.gradient_checkpointing" if ways[-1] else ""
    raise UsageError(
        f"train.memory: {limit}: even a batch of {sizes[0]:,} tokens, the smallest that divides "
        "train.tokens_per_step and holds the longest example, needs about "
        f"{format_bytes(least)}{more}; give more memory, lower objective.max_length, or take a "
        "smaller model"
    )


def _said(found: Fitted, settings: Config) -> str:
    """Return what was chosen, for the log."""
    number = settings.tokens_per_step // found.tokens_per_batch
    switched = found.gradient_checkpointing and not settings.gradient_checkpointing
    return (
        f"{number_of(number, 'batches')} of {found.tokens_per_batch:,} tokens a step, about "
        f"{format_bytes(found.peak)} at the peak"
        + ("; switches train.gradient_checkpointing on" if switched else "")
    )


def _find_largest(
    planned: Planned, sizes: list[int], most: int, precision: str
) -> tuple[Fitted | None, int]:
    """Return the largest of `sizes` that fits, if one does, and the peak of the smallest one."""
    size, best, least = sizes[0], None, 0
    while True:
        peak, fixed = _estimate_peak(planned, size, most, precision)
        least = least or peak
        if peak <= most:
            best = Fitted(size, planned.settings.gradient_checkpointing, peak)
            sizes = [n for n in sizes if n > size]
        else:
            sizes = [n for n in sizes if n < size]
        per_token = (peak - fixed) / size
        sizes = [n for n in sizes if fixed + per_token * n <= most]
        sizes = [n for n in sizes if best is None or n > best.tokens_per_batch]
        if best is None or not sizes:
            return best, least
        size = sizes[-1]


def _estimate_peak(planned: Planned, size: int, most: int, precision: str) -> tuple[int, int]:
    """Return the peak of a run with batches of this size, and what does not depend on the size."""
    settings = planned.settings.model_copy(update={"tokens_per_batch": size})
    stream = Stream(planned.data.examples, budget=size, batches_per_step=settings.batches_per_step)
    changed = replace(planned, settings=settings, stream=stream)
    device = changed.device
    memory.release(device)
    memory.forget_peak(device)
    now = machine.used_memory(device)[0]
    found = trial.Memory(min(memory.limit(device), most), now + changed.state_bytes)
    peak = None
    try:
        if found.state <= found.limit:
            peak = _measure(trial.Trial(changed, Precision(precision, "given")), found)
    except (RuntimeError, MemoryError) as error:
        if not memory.is_shortage(error):
            raise
    finally:
        memory.release(device)
    if peak is None:  # what was tried does not fit
        tokens = trial.longest_tokens(changed)
        peak = max(most + 1, int(found.state + (found.per_token or 0.0) * tokens))
    return peak, min(found.state, peak)


def _measure(tried: trial.Trial, found: trial.Memory) -> int | None:
    """Return the estimated peak, or None if the longest batch does not fit."""
    device, data = tried.device, tried.plan.data
    trial.measure_memory(tried, found)
    if not found.fits:
        return None
    longest = machine.used_memory(device)[1]
    bins = tried.plan.stream.plan(0)
    for index in trial.varied(tried.plan):
        tried.train(data.examples.batch(bins[index], 0))
    tried.update()
    return trial.peak_of_run(longest, machine.used_memory(device)[1], device)
