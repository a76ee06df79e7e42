"""Runs that are commands, each in a forked process, which has not imported torch.

What fails or is killed there ends nothing here.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from types import FrameType
from typing import TypeVar

from nlpkit import cli
from nlpkit.checkpoints import changes
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.commands import pretrain
from nlpkit.commands._options import Common
from nlpkit.disk import user_path
from nlpkit.errors import DivergedError, RunsFailed, Stopped, TryAgain, UsageError
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.runs import columns
from nlpkit.train.log import Log

Process = multiprocessing.process.BaseProcess
_Result = TypeVar("_Result")
_KILLED = 128 + signal.SIGKILL
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
_MAX_SECONDS = 1e9  # `setitimer` refuses much larger values


@dataclass(frozen=True)
class Run:
    """A run: its name, its checked recipe, and its command line.

    With `output` it trains nothing: this file is what it is to print.
    """

    name: str
    resolved: Resolved
    arguments: list[str]
    output: Path | None = None

    @property
    def path(self) -> Path:
        """The directory of the run."""
        return user_path(self.resolved.recipe.out)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do; with other settings (--allow-change), a run goes on."""
        if self.output is not None:
            return self.output.is_file()
        directory = RunDirectory(self.path)
        resolved = changes.as_begun(directory, self.resolved)
        return bool(directory.finished()) and not changes.list_changes(directory, resolved)

    @property
    def draft(self) -> Path:
        """What gets the output until the command has ended well."""
        output = self.output
        return Path(os.devnull) if output is None else output.with_name(f".{output.name}.part")

    @property
    def has_diverged(self) -> bool:
        """Whether the run has ended so."""
        return bool(RunDirectory(self.path).status().get("diverged"))


def check(runs: Sequence[Run], common: Common, allow_change: bool | None = None) -> None:
    """Raise an error if one of the runs cannot begin, or not go on; `common` is of all of them."""
    before = None
    for run in runs:
        pretrain.check_directory(run.resolved, common, allow_change)
        pretrain.check_installed(run.resolved)
        recipe = run.resolved.recipe
        if any("-" in source.files for source in (*recipe.data.train, *recipe.data.valid)):
            raise UsageError("data: -: stdin can be read by one run only; write it into a file")
        if (read := (recipe.data, recipe.objective, recipe.eval)) != before:
            columns.check(run.resolved)
        before = read


def check_device(run: Run, common: Common) -> None:
    """Exit if the device is not there."""
    if common.device in ("auto", "cpu"):
        return
    if code := call(cli.run, [*run.arguments, "--dry-run", "-q"]):
        raise SystemExit(code)


def call(function: Callable[..., _Result], *given: object) -> _Result:
    """Return what a function returns in a process of its own: it may import torch."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, _follow_parent) as pool:
        return pool.submit(function, *given).result()


class Runner:
    """Runs commands, `jobs` at a time; `limit` is in seconds, of all together."""

    def __init__(self, log: Log, limit: float | None = None, jobs: int = 1):
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError("the runs are processes of their own; start this without a launcher")
        if jobs > 1:
            threads = max(1, (os.cpu_count() or 1) // jobs)
            os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        self.log, self.jobs = log, jobs
        self.end = time.monotonic() + min(limit or _MAX_SECONDS, _MAX_SECONDS)
        self.running: dict[Process, tuple[int, Run]] = {}
        self.signal: int | None = None  # the first one that came; SIGALRM is the time limit
        self.precisions: dict[str, set[str]] = {}  # that `auto` has chosen: names of runs

    def train(self, runs: Sequence[Run]) -> dict[str, int]:
        """Run what is not finished; return the exit codes of the runs that failed.

        Raises:
            Stopped, TryAgain: a signal or the time limit; what was running is saved.
        """
        failed: dict[str, int] = {}
        with self._signals_passed_on():
            for number, run in enumerate(runs, 1):
                self.log.info(f"run {number} of {len(runs)}: {run.name}")
                if run.is_finished:
                    self.log.info(f"{run.output or run.path} is finished; nothing to do")
                    continue
                self._start(number, run)
                failed |= self._wait(self.jobs - 1, len(runs))
            failed |= self._wait(0, len(runs))
        self._note_precisions(runs)
        return failed

    def warn_of_other_data(self, title: str, paths: Iterable[Path]) -> None:
        """Warn if runs that differ in the seed have not read the same."""
        read = {path.name: RunDirectory(path).status().get("data") for path in paths}
        read = {seed: data for seed, data in read.items() if data}  # some have not begun
        if others := [seed for seed, data in read.items() if data != read[min(read)]]:
            what = (
                f"{', '.join(others)} read other data, or with another tokenizer, than {min(read)}"
            )
            self.log.warn(f"{title}: {what}")

    def warn_of_other_bases(self, paths: Iterable[Path]) -> None:
        """Warn if runs began with weights of one path that were not the same."""
        first: dict[object, tuple[Path, object]] = {}
        for path in paths:
            source = RunDirectory(path).status().get("source") or {}
            start, sha256 = source.get("path"), source.get("sha256")
            before, known = first.setdefault(start, (path, sha256))
            if known != sha256:
                self.log.warn(f"{start}: {path} began with other weights of it than {before}")

    def _note_precisions(self, runs: Sequence[Run]) -> None:
        """Warn, once, if `precision: auto` has chosen several types: it times each run."""
        are_mixed = len(self.precisions) > 1
        for run in runs:
            kind = RunDirectory(run.path).status().get("precision")
            if kind and run.output is None and run.resolved.recipe.train.precision == "auto":
                self.precisions.setdefault(kind, set()).add(run.name)
        if len(self.precisions) > 1 and not are_mixed:
            counts = [f"{kind} in {len(names)}" for kind, names in self.precisions.items()]
            what = f"auto has chosen {' and '.join(counts)} of the runs"
            self.log.warn(f"train.precision: {what}; to compare them, set it")

    def _start(self, number: int, run: Run) -> None:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_run_child, args=(run.arguments, run.draft))
        # Before it has handlers of its own, the new process must not pass signals on.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        process.start()
        self.running[process] = number, run
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        if self.signal is not None:  # it came before this run
            self._send(self.signal)

    def _wait(self, most: int, count: int) -> dict[str, int]:
        """Wait until at most so many of `count` are running; return the codes of what failed."""
        failed = {}
        while len(self.running) > most:
            by_sentinel = {process.sentinel: process for process in self.running}
            process = by_sentinel[connection.wait([*by_sentinel])[0]]  # type: ignore[index]
            process.join()
            number, run = self.running.pop(process)
            code = process.exitcode or 0
            code = code if code >= 0 else 128 - code  # as in shells
            if self.signal is not None and (code or number < count):
                where = f"in run {number} of {count}; the same command goes on"
                if self.signal == signal.SIGALRM:
                    raise TryAgain(f"the time limit is reached {where}")
                name = signal.Signals(self.signal).name
                raise Stopped(f"stopped by {name} {where}", self.signal)
            if code:
                failed[run.name] = code
            elif run.output is not None:
                run.draft.replace(run.output)
        return failed

    def _send(self, number: int) -> None:
        for process in [*self.running]:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    @contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """In this context a signal ends the running processes, not this one; so does the limit."""

        def handle(number: int, _: FrameType | None) -> None:
            self.signal = self.signal or number
            self._send(number)

        before = {number: signal.signal(number, handle) for number in _list_passed_on()}
        signal.setitimer(signal.ITIMER_REAL, max(self.end - time.monotonic(), 1e-3))
        try:
            yield
        finally:
            for process in self.running:  # those that stop, too
                process.join()
            self.running.clear()
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)


def _list_passed_on() -> list[int]:
    """Return the signals that are passed on: with `nohup`, runs outlive their terminal."""
    return [n for n in _PASSED_ON if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


def _run_child(arguments: Sequence[str], output: Path) -> None:
    # ^C reaches a group of processes at once; here the parent passes it on, once.
    os.setpgid(0, 0)
    for number in _list_passed_on():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    output.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout = open(output, "w", encoding="utf-8")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    _follow_parent()
    sys.exit(cli.run(arguments))


def _follow_parent() -> None:
    """Save and stop when the parent is gone, also one that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def raise_failures(failed: dict[str, int], count: int) -> None:
    """Name the runs that failed, each with the reason, if there are any; `count` is that of all."""
    if not failed:
        return
    meanings = {5: "diverged", 7: "not enough memory", 75: "in use", _KILLED: "killed"}
    named = [
        f"{name} ({meanings.get(code, f'exit code {code}')})"
        for name, code in list(failed.items())[:10]
    ]
    more = f" and {len(failed) - 10} more" if len(failed) > 10 else ""
    said = f"{len(failed)} of {number_of(count, 'runs')} failed: {', '.join(named)}{more}"
    # Runs repeat to the bit, so one that diverged will diverge again.
    others = {*failed.values()} - {DivergedError.exit_code}
    again = "; the same command tries again" if others else ""
    raise RunsFailed(said + again, failed.values())
