"""Lets waiting threads sleep while other programs need the processors.

The threads of libgomp, which torch computes with, spin when they wait for each other: the fastest
way on a quiet machine. Beside other programs, a thread that spins takes the processor from the one
that it waits for, and a step takes several times as long. libgomp hardly spins while a process has
more of its threads than processors (`gomp_throttled_spin_count_var` in gcc/libgomp/env.c). So a
second team of threads, which does nothing but sleep, is kept while the machine is busy. What is
computed, and by how many threads, stays the same.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_SECONDS = 0.5  # between two looks at the machine
_BUSY, _QUIET = 0.3, 0.1  # processors that are missing; between them all stays as it is
_QUIET_LOOKS = 4  # in a row, before threads spin again
_SET_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_started = threading.Lock()


@dataclass(frozen=True)
class Look:
    """What the processors of this process have done so far, in seconds."""

    time: float
    busy: float  # of all programs, and of other machines on the same processors
    own: float  # of this process alone: its workers need processors as other programs do


def start(note: Callable[[str], None] = lambda text: None) -> None:
    """Watch the machine until the process ends; `note` is told once that it is busy.

    Nothing is watched outside of Linux, with one thread, without /proc, or where the user has set
    how threads wait.
    """
    threads = torch.get_num_threads()
    if threads < 2 or any(name in os.environ for name in _SET_BY_USER) or look() is None:
        return
    if _started.acquire(blocking=False):
        watch = Watch(threads, len(os.sched_getaffinity(0)), note)
        threading.Thread(target=watch.forever, name="load", daemon=True).start()


def look() -> Look | None:
    """Return the figures of now, or None where the system does not tell them."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
    except (OSError, ValueError):
        return None
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for name, *figures in lines:
        if name in ours:
            user, nice, system, _, _, irq, softirq, steal = map(int, figures[:8])
            ticks += user + nice + system + irq + softirq + steal
    busy = ticks / os.sysconf("SC_CLK_TCK")
    return Look(time.monotonic(), busy, time.process_time())


class Watch:
    """Decides whether threads spin or sleep while they wait."""

    def __init__(self, threads: int, processors: int, note: Callable[[str], None]):
        self.threads, self.processors, self.note = threads, processors, note
        self.sleeping: Sleepers | None = None
        self._quiet = 0
        self._noted = False

    def forever(self) -> None:
        before = look()
        while before is not None:
            time.sleep(_SECONDS)
            after = look()
            if after is not None:
                self.decide(before, after)
            before = after

    def decide(self, before: Look, after: Look) -> None:
        """Let threads sleep if other programs leave too few processors for them, or spin again."""
        seconds = max(after.time - before.time, 1e-3)
        others = (after.busy - before.busy - (after.own - before.own)) / seconds
        missing = others + self.threads - self.processors
        self._quiet = self._quiet + 1 if missing < _QUIET else 0
        if self.sleeping is None and missing > _BUSY:
            self.sleeping = Sleepers(self.threads)
            if not self._noted:
                self._noted = True
                self.note(
                    f"other processes use {others:.1f} of {self.processors} processors: threads "
                    "sleep while they wait for each other"
                )
        elif self.sleeping is not None and self._quiet >= _QUIET_LOOKS:
            self.sleeping.end()
            self.sleeping = None


class Sleepers:
    """A second team of libgomp's threads, which sleeps until `end`."""

    def __init__(self, threads: int) -> None:
        self._end = threading.Event()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._sleep, args=(ready, threads), name="sleepers", daemon=True
        )
        self._thread.start()
        ready.wait()

    def _sleep(self, ready: threading.Event, threads: int) -> None:
        torch.set_num_threads(threads)  # of this thread: the main one may compute with one just now
        torch.zeros(2**18).add_(1)  # computed by a team, which stays as long as this thread
        ready.set()
        self._end.wait()

    def end(self) -> None:
        """End the threads."""
        self._end.set()
        self._thread.join()
