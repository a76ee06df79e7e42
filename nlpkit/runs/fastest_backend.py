"""Lets a run on a CPU prefer the backend of attention that takes the least time on its first batch.

The choice is kept with the run, because another backend rounds differently.
"""

from collections.abc import Callable
from typing import Any

import torch
from accelerate import PartialState

from nlpkit import attention
from nlpkit.attention import measured
from nlpkit.attention.contract import PREFER, Request
from nlpkit.data.loader import Stream
from nlpkit.data.pack import Batch
from nlpkit.recipe import Resolved
from nlpkit.runs.parts import ModelPart
from nlpkit.runs.run import Run, from_first
from nlpkit.train import shards
from nlpkit.train.loop import to_device
from nlpkit.train.state import State

_STATUS = "attention_backend"  # in run.json; "" is the usual order


def choose(run: Run, state: State) -> None:
    """Set what the model prefers. A run that has begun keeps its choice, or the usual order."""
    if not is_open(run.resolved, run.part, run.accelerator.device):
        return
    processes = PartialState()
    kept = from_first(processes, lambda: run.directory.status().get(_STATUS))
    if kept is None and not state.step:
        found = _measured(run, processes)
        kept = found[0] if found else ""
        if processes.is_main_process:
            run.directory.set_status(**{_STATUS: kept})
        if found:
            run.log.info(f"attention: {found[0]} first ({found[1]})")
    if kept in measured.CANDIDATES:  # run.json may name anything, also a module of a stranger
        prefer(run.unwrapped.model, kept)


def is_open(resolved: Resolved, part: ModelPart, device: torch.device) -> bool:
    """Return whether there is a choice: a CPU, `auto`, a model with attention."""
    is_auto = resolved.recipe.attention.backend == "auto"
    return is_auto and device.type == "cpu" and bool(part.config.kinds)


def prefer(model: Any, backend: str) -> None:
    """Let a model prefer a backend; "" is the usual order."""
    if backend:
        model.backend = PREFER + backend


def sample(stream: Stream, device: torch.device) -> Batch:
    """Return every third example of the first batch of a run: enough to tell, in half a second."""
    return to_device(stream.examples.batch(stream.plan(0)[0][::3], 0), device)


def fastest(forward: Callable[[], object]) -> tuple[str, str] | None:
    """Return the backend to prefer for a forward pass, and why; None: the usual order."""
    return measured.fastest(requests(forward), attention.usual)


def requests(forward: Callable[[], object]) -> list[Request]:
    """Return the requests that a forward pass makes of `auto`; no random number is used up."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), measured.noting() as found:
        forward()
    return found


def _measured(run: Run, processes: PartialState) -> tuple[str, str] | None:
    """Return what rank 0 finds; all processes take part in the forward pass."""
    settings = run.settings
    stream = Stream(
        run.data.examples,
        budget=settings.batch_budget,
        batches_per_step=settings.batches_per_step,
    )
    batch = sample(stream, run.accelerator.device)
    run.training.train()
    noted = requests(lambda: run.unwrapped(batch))
    shards.release(run.training)
    return from_first(processes, lambda: measured.fastest(noted, attention.usual))
