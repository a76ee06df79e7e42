"""`--grid` and `--seeds`: trains a recipe with several settings, one run after the other.

Each run is the command that `--print` prints, in a forked process, which has not imported torch:
what fails or is killed there ends nothing here.
"""

import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from nlpkit.commands import pretrain
from nlpkit.commands._grid import SEED, Axes, GridRun, Sweep, list_axes, list_runs
from nlpkit.commands._options import Common
from nlpkit.errors import DataError, NlpkitError, RunsFailed, Stopped, TryAgain, UsageError
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from nlpkit.train.log import Log

Process = multiprocessing.process.BaseProcess
_KILLED = 128 + signal.SIGKILL
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def sweep(asked: Sweep) -> None:
    """Train all runs of the grid that are not finished; print their figures.

    Raises:
        RecipeError: a setting is wrong in one of the runs; none is begun.
        RunsFailed: some runs failed; the others are finished.
        Stopped, TryAgain: a signal or the time limit; the running one is saved.
    """
    common, log = asked.common, asked.common.open_log()
    _check_options(asked)
    axes = list_axes(asked)
    runs = list_runs(asked, axes)
    if asked.options.print_runs:
        lines = [shlex.join(["nlpkit", *run.arguments]) for run in runs]
        common.print_result("\n".join(lines), commands=lines)
        return
    root = runs[0].path.parents[runs[0].name.count("/")]
    for run in runs:
        pretrain.check_directory(run.resolved, common, asked.options.allow_change)
        check_surroundings(run)
    _check_folder(root, axes, runs)
    if common.device not in ("auto", "cpu"):
        check_device(runs[0])
    if common.dry_run:
        log.info(f"{number_of(len(runs), 'runs')} in {root}; the first one:")
        pretrain.train_one(runs[0].resolved, common, asked.options)
        return
    failed: dict[str, int] = {}
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _train_here(asked, runs, log)
    else:
        failed = train_all(runs, asked.options.max_time, log)
    if int(os.environ.get("RANK", "0")) == 0:
        _print_result(common, axes, root, [run for run in runs if run.name not in failed])
    if failed:
        raise RunsFailed(describe_failures(failed, len(runs)), failed.values())


def _check_options(asked: Sweep) -> None:
    if not asked.options.grid and asked.options.seeds is None:
        raise UsageError("--print needs --grid KEY=V1,V2 or --seeds N, whose runs it prints")
    if asked.options.smoke_test:
        raise UsageError("--smoke-test excludes --grid; try one of its runs: see --print")
    if asked.common.resume not in ("auto", "never"):
        raise UsageError(
            "--resume PATH resumes one run; with --grid and --seeds give auto or never"
        )


def _check_folder(root: Path, axes: Axes, runs: Sequence[GridRun]) -> None:
    from nlpkit.checkpoints.run_directory import RECIPE, runs_inside
    from nlpkit.recipe import load
    from nlpkit.recipe.known import find_changes

    if (root / RECIPE).is_file() and [*axes] != [SEED]:
        raise UsageError(f"{root} is a run; give --out another directory for the grid")
    own = {run.path.resolve() for run in runs}
    for path in runs_inside(root):
        if path.resolve() in own:
            continue
        try:
            before = load(str(path / RECIPE)).dump()
        except NlpkitError:  # of another version, or of parts that are not here
            continue
        for key in find_changes(before, runs[0].resolved.dump()):
            if not any(f"{key}.".startswith(f"{axis}.") for axis in axes):
                raise UsageError(
                    f"{root} holds runs of another grid: {path.relative_to(root)} differs in "
                    f"{key}; give --out another directory"
                )


def check_surroundings(run: GridRun) -> None:
    """Raise an error if a package or data are missing, or data can be read by one run only."""
    from nlpkit.runs import columns

    pretrain.check_installed(run.resolved)
    data = run.resolved.recipe.data
    if any("-" in source.files for source in (*data.train, *data.valid)):
        raise UsageError("data: -: stdin can be read by one run only; write it into a file")
    columns.check(run.resolved)


def check_device(run: GridRun) -> None:
    """Exit if the device is not there; a child looks, since who has looked cannot be forked."""
    with _pass_signals_on() as child:
        if code := child.run([*run.arguments, "--dry-run", "-q"]):
            raise SystemExit(code)


def _train_here(asked: Sweep, runs: Sequence[GridRun], log: "Log") -> None:
    """Train in this process, which was launched together with others; the first error ends it."""
    from nlpkit.cli import exit_now
    from nlpkit.train.signals import catch_signals

    options = asked.options
    with catch_signals(exit_now, options.max_time) as stop:
        for number, run in enumerate(runs, 1):
            log.info(f"run {number} of {len(runs)}: {run.path}")
            common, change = asked.common, options.allow_change
            pretrain.train_in_directory(run.resolved, common, change, log, stop)


def train_all(
    runs: Sequence[GridRun], limit: float | None, log: "Log", jobs: int = 1
) -> dict[str, int]:
    """Train each run in a process of its own; return the exit codes of those that failed.

    `limit` is in seconds, of all together; `jobs` is how many runs are trained at a time.
    """
    from nlpkit.checkpoints import changes
    from nlpkit.checkpoints.run_directory import RunDirectory

    end = None if limit is None else time.monotonic() + limit
    failed: dict[str, int] = {}
    running: dict[Process, tuple[int, GridRun]] = {}
    with _pass_signals_on() as child:

        def collect(most: int) -> None:
            """Wait until at most so many are running; raise an error if all have to stop."""
            while len(running) > most:
                process = child.wait(running)
                number, run = running.pop(process)
                code = _exit_code(process)
                where = f"in run {number} of {len(runs)}; the same command goes on"
                if child.signal is not None and (code or number < len(runs)):
                    name = signal.Signals(child.signal).name
                    raise Stopped(f"stopped by {name} {where}", child.signal)
                if code == TryAgain.exit_code and end is not None and end - time.monotonic() < 2:
                    raise TryAgain(f"the time limit is reached {where}")
                if code:
                    failed[run.name] = code

        for number, run in enumerate(runs, 1):
            log.info(f"run {number} of {len(runs)}: {run.name}")
            directory = RunDirectory(run.path)
            # With other settings (--allow-change), a finished run goes on.
            resolved = changes.as_begun(directory, run.resolved)
            if directory.finished() and not changes.check_changes(directory, resolved, True):
                log.info(f"{run.path} is finished; nothing to do")
                continue
            arguments = run.arguments
            if end is not None:
                left = int(end - time.monotonic())
                if left < 1:
                    where = f"in run {number} of {len(runs)}; the same command goes on"
                    raise TryAgain(f"the time limit is reached {where}")
                arguments = [*arguments, "--max-time", f"{left}s"]
            running[child.start(arguments)] = number, run
            collect(jobs - 1)
        collect(0)
    return failed


def _exit_code(process: Process) -> int:
    """Return the exit code of a process that has ended, as shells do."""
    code = process.exitcode or 0
    return code if code >= 0 else 128 - code


class _Child:
    """The processes of runs; `signal` is the first signal that came meanwhile."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.processes: list[Process] = []

    def start(self, arguments: Sequence[str]) -> Process:
        """Start `nlpkit ARGUMENTS`, its stdout thrown away."""
        # Before it has handlers of its own, the new process must not pass signals on.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        process = multiprocessing.get_context("fork").Process(target=_run_child, args=(arguments,))
        process.start()
        self.processes.append(process)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        if self.signal is not None:  # it came before this run
            self.pass_on(self.signal)
        return process

    def wait(self, processes: Iterable[Process]) -> Process:
        """Return a process that has ended, as soon as there is one."""
        by_sentinel = {process.sentinel: process for process in processes}
        process = by_sentinel[connection.wait([*by_sentinel])[0]]  # type: ignore[index]
        process.join()
        self.processes.remove(process)
        return process

    def run(self, arguments: Sequence[str]) -> int:
        """Run `nlpkit ARGUMENTS`, its stdout thrown away; return its exit code."""
        return _exit_code(self.wait([self.start(arguments)]))

    def pass_on(self, number: int) -> None:
        """Send a signal to the running processes."""
        for process in self.processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)


@contextmanager
def _pass_signals_on() -> Iterator[_Child]:
    """In this context a signal ends the running child, not this process."""
    child = _Child()

    def handle(number: int, _: FrameType | None) -> None:
        child.signal = child.signal or number
        child.pass_on(number)

    before = {number: signal.signal(number, handle) for number in _PASSED_ON}
    try:
        yield child
    finally:
        for process in child.processes:  # those that stop, too
            process.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_child(arguments: Sequence[str]) -> None:
    from nlpkit import cli

    # ^C reaches a group of processes at once; here the parent passes it on, once.
    os.setpgid(0, 0)
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(cli.run(arguments))


def _end_with_parent() -> None:
    """Save and stop when the parent is gone, also one that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def describe_failures(failed: dict[str, int], count: int) -> str:
    """Return the names of the runs that failed, each with the reason; `count` is that of all."""
    meanings = {5: "diverged", 7: "not enough memory", 75: "in use", _KILLED: "killed"}
    named = [
        f"{name} ({meanings.get(code, f'exit code {code}')})"
        for name, code in list(failed.items())[:10]
    ]
    more = f" and {len(failed) - 10} more" if len(failed) > 10 else ""
    return (
        f"{len(failed)} of {number_of(count, 'runs')} failed: {', '.join(named)}{more}; "
        "the same command tries again"
    )


def _print_result(common: Common, axes: Axes, root: Path, runs: Sequence[GridRun]) -> None:
    from nlpkit import report as reports
    from nlpkit.report import seeds
    from nlpkit.report import sweep as report

    if [*axes] == [SEED] and runs:
        best_by = runs[0].resolved.recipe.train.best_by
        numbers = [run.resolved.recipe.seed for run in runs]
        try:
            result = seeds.summary(numbers, [seeds.best_evaluation(r.path, best_by) for r in runs])
        except DataError:
            pass  # no evaluation: the runs are listed
        else:
            common.print_result(seeds.table(result), **result)
            return
    table = report.make_table(reports.read([root], may_be_empty=True))
    common.print_result(report.format_table(table), **report.to_json(table))
