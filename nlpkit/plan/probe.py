"""Measures what a run would cost: a few of its batches, also the longest, and the disk."""

import hashlib
import math
import os
import tempfile
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nlpkit.disk import user_path
from nlpkit.json_types import JsonObject
from nlpkit.plan import phases
from nlpkit.runs import fastest_precision
from nlpkit.runs.planned import Planned
from nlpkit.runs.trial import Measured, Times, longest_tokens, measure
from nlpkit.train import machine, spinning
from nlpkit.train.budget import KNOWN_BY
from nlpkit.train.progress import Show, show_nothing
from nlpkit.train.step_sizes import mean_batches

FULL = 0.8  # share of the memory above which the plan warns
_SAMPLE_BYTES = 1 << 25


def probe(plan: Planned, show: Show = show_nothing) -> JsonObject:
    """Return the estimate of time and memory; if memory is too small, `fits` is False."""
    machine.configure_allocator()
    if plan.device.type == "cpu":  # as in the run: beside other programs it counts most
        spinning.start()
    if plan.settings.deterministic:
        machine.use_deterministic_algorithms(plan.device)
    precision = fastest_precision.probe(plan.settings.precision, plan.device)
    found = measure(plan, precision, show=show)
    return {
        "precision": f"{found.precision.name} ({found.precision.reason})",
        "attention": found.attention or None,
        **_estimate_time(plan, found.times, phases.measure_costs(plan, found)),
        **_estimate_memory(plan, found),
    }


def _estimate_time(plan: Planned, times: Times, costs: Sequence[phases.Cost] = ()) -> JsonObject:
    """Return the seconds of the whole run; None if nothing was timed. `costs` are of its phases."""
    names = (
        *("seconds_per_batch", "seconds_per_update", "seconds_per_step", "tokens_per_second"),
        *("training_seconds", "evaluation_seconds", "saving_seconds", "total_seconds", "tokens"),
    )
    settings, steps = plan.settings, plan.settings.known_steps
    counts = ("steps", "evaluations", "checkpoints")
    if not times.batches:
        known = dict(zip(counts, (steps, *_count_occasions(plan)), strict=True)) if steps else {}
        return dict.fromkeys((*names, *counts)) | known
    batch = float(np.mean(times.batches))
    held_out = int(plan.data.held_out.sizes.sum()) if plan.data.held_out is not None else 0
    held_out += plan.judge.tokens if plan.judge else 0
    seconds = batch * mean_batches(settings, plan.stream) + times.update
    tokens = float(np.mean(times.tokens)) * mean_batches(settings, plan.stream)
    if costs:
        seconds = sum(each.share * each.seconds for each in costs)
        tokens = sum(each.share * each.tokens for each in costs)
    saving = _measure_saving(Path(plan.resolved.recipe.out), plan.checkpoint_bytes)
    folders = saving / plan.checkpoint_bytes * plan.milestone_bytes
    cost = Cost(seconds, times.held_out_token * held_out, saving, folders)
    if settings.budget_seconds is not None:
        free = {} if settings.budget_clock == "wall" else {"evaluation": 0.0}
        steps = count_bought_steps(plan, cost._replace(**free), settings.budget_seconds)
    assert steps is not None
    occasions = (steps, *_count_occasions(plan, steps))
    whole = cost.of(*occasions)
    figures = (batch, times.update, cost.step, tokens / cost.step, *whole, sum(whole))
    values = (*figures, round(steps * tokens), *occasions)
    of_phases = [
        {
            "steps": round(each.share * steps),
            "tokens": round(each.share * steps * each.tokens),
            "training_seconds": each.share * steps * each.seconds,
        }
        for each in costs
    ]
    estimate = dict(zip((*names, *counts), values, strict=True))
    return estimate | ({"phases": of_phases} if of_phases else {})


class Cost(NamedTuple):
    """Seconds of a step, an evaluation, a checkpoint, and all folders of `train.save_at`."""

    step: float
    evaluation: float
    saving: float
    folders: float = 0.0

    def of(self, steps: int, evaluations: int, checkpoints: int) -> tuple[float, float, float]:
        """Return the seconds of so many steps, of evaluations, and of all that is saved."""
        saving = checkpoints * self.saving + self.folders
        return steps * self.step, evaluations * self.evaluation, saving


def count_bought_steps(plan: Planned, cost: Cost, seconds: float) -> int:
    """Return the number of steps, at least 1, that end in this time with all that is due."""

    def count_seconds(steps: int) -> float:
        return sum(cost.of(steps, *_count_occasions(plan, steps)))

    most = max(1, int(seconds / cost.step))
    return max(1, bisect_right(range(1, most + 1), seconds, key=count_seconds))


def _count_occasions(plan: Planned, steps: int | None = None) -> tuple[int, int]:
    """Return the number of evaluations, and of checkpoints if every evaluation is the best.

    `steps` is the number of steps if the recipe has a budget of time.
    """
    settings = plan.settings
    last, save_every = steps or settings.steps, settings.save_every
    eval_every = settings.eval_every or last
    evaluations, checkpoints, first = 0, 1 + (last - 1) // save_every, min(save_every, last)
    if plan.data.held_out is not None:
        evaluations, first = 1 + (last - 1) // eval_every, min(first, eval_every)
        checkpoints += (last - 1) // eval_every - (last - 1) // math.lcm(eval_every, save_every)
    if settings.budget_seconds is not None:
        known_by = math.ceil(KNOWN_BY * last)
        if evaluations and min(eval_every, last) > known_by and settings.budget_clock == "wall":
            evaluations += 1
            checkpoints += known_by % save_every > 0
        elif first > known_by:
            checkpoints += 1
    return evaluations, checkpoints


def _measure_saving(directory: Path, size: int) -> float:
    directory = user_path(directory).absolute()
    while not directory.is_dir():
        directory = directory.parent
    sample = os.urandom(min(size, _SAMPLE_BYTES))
    where = directory if os.access(directory, os.W_OK) else None
    with tempfile.TemporaryFile(dir=where) as file:
        start = time.perf_counter()
        file.write(sample)
        file.flush()
        os.fsync(file.fileno())
        hashlib.sha256(sample).digest()
        return (time.perf_counter() - start) * size / len(sample)


def _estimate_memory(plan: Planned, found: Measured) -> JsonObject:
    share = None if found.peak is None else round(found.peak / found.limit, 4)
    return {
        "longest_batch_tokens": longest_tokens(plan),
        "peak_memory_bytes": found.peak,
        "memory_limit_bytes": found.limit,
        "memory_share": share,
        "fits": found.fits,
        "advice": None if found.fits and (share or 0) <= FULL else advise(plan, found),
    }


def advise(plan: Planned, found: Measured) -> str:
    """Return one line: the memory that is needed, what there is, and the setting that would fit."""
    settings, gib = plan.settings, 2**30
    needed = f"about {found.peak / gib:.1f} GiB" if found.peak else "more memory"
    head = f"the longest batch needs {needed} and there are {found.limit / gib:.1f} GiB; "
    free = FULL * found.limit - found.state
    fitting = int(free / found.per_token) if found.per_token and free > 0 else 0
    most = min(fitting, settings.batch_budget - 1)
    step = settings.tokens_per_step or 0  # with rows_per_step, batches may have any size
    size = max((n for n in range(1, most + 1) if step % n == 0), default=0)
    longest_example = int(plan.data.examples.sizes.max())
    if size and size >= longest_example:
        return head + f"set train.tokens_per_batch={size}"
    objective = plan.resolved.recipe.objective[0].config
    if size and size >= longest_example // 8 and objective.setting("max_length"):
        return head + f"set objective.max_length={size} and train.tokens_per_batch={size}"
    return (
        f"weights, gradients and the optimizer's state take {found.state / gib:.1f} GiB and there "
        f"are {found.limit / gib:.1f} GiB: take a smaller model or a machine with more memory"
    )
