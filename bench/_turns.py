"""What the benchmarks of whole training steps share: processes that take turns, and the machine.

Every subject runs in a process of its own, so that peak memory is its own. It is counted from where
the libraries are loaded and no model exists. A round has two clocks: the wall, and the processor
time of the process, which other jobs disturb less; with several threads it counts those that wait.
"""

import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from nlpkit.train import memory
from nlpkit.train.machine import used_memory

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Spent:
    """What a round took, in seconds."""

    wall: float
    cpu: float


class Turns:
    """The rounds of a subject, as it sees them: the next begins when the process is told so."""

    def __init__(self, pipe: Connection):
        self._pipe = pipe
        self._started: tuple[float, float] | None = None
        self.peak = 0  # bytes, at the end of the last round

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Report what the last round took; return the work of the next one."""
        if self._started is not None:
            wall, cpu = self._started
            self.peak = used_memory(_CPU)[1]
            self._pipe.send(Spent(time.perf_counter() - wall, time.process_time() - cpu))
        work = self._pipe.recv()
        if work is None:
            raise StopIteration
        self._started = time.perf_counter(), time.process_time()
        return work


class Subject(Protocol):
    """What is measured."""

    def run(self, turns: Turns) -> None:
        """Take the work of each round from `turns` and do it."""


class Worker:
    """A subject in a process of its own, which `make(*arguments)` returns there."""

    def __init__(self, make: Callable[..., Subject], threads: int, *arguments: Any):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, threads, arguments))
        self._process.start()
        theirs.close()  # so that `recv` raises EOFError if the process dies

    def train(self, work: Any) -> Spent:
        """Return what training on this work took."""
        self._pipe.send(work)
        return self._pipe.recv()

    def finish(self) -> int:
        """End the process; return its peak memory in bytes, without what its libraries took."""
        self._pipe.send(None)
        peak = self._pipe.recv()
        self._process.join()
        return peak

    def stop(self) -> None:
        """End the process at once, such as when another one has died."""
        self._process.terminate()


def _serve(pipe: Connection, make: Callable[..., Subject], threads: int, arguments: Any) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    memory.forget_peak(_CPU)
    before = used_memory(_CPU)[0]
    with suppress(EOFError):  # the measuring process has died
        turns = Turns(pipe)
        make(*arguments).run(turns)
        pipe.send(turns.peak - before)


def redirect(log: Path) -> None:
    """Send stdout and stderr of this process to a file: stdout is for the table."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)


def gemm_rate(dtype: torch.dtype, threads: int, clock: str) -> float:
    """Return the best rate of a large matrix product, FLOP/s, by the same `clock` as a round."""
    now = time.perf_counter if clock == "wall" else time.process_time
    torch.set_num_threads(threads)
    a = torch.randn(2048, 2048, dtype=dtype)
    best = float("inf")
    for _ in range(6):
        start = now()
        a @ a
        best = min(best, now() - start)
    return 2 * 2048**3 / best


def machine(threads: int) -> str:
    """Return date, processor, threads and version of torch, for the head of a table."""
    return (
        f"{date.today()}, {platform.machine()} {_processor()}, {threads} "
        f"thread{'s' if threads > 1 else ''}, torch {torch.__version__}"
    )


def _processor() -> str:
    """Return the name of the processor, and whether it has units for matrices in bf16."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    about = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    units = [unit for unit in ("avx512_bf16", "amx_bf16") if unit in about.get("flags", "")]
    return f"{about.get('model name', '')} ({', '.join(units) or 'no bf16 units'})"
