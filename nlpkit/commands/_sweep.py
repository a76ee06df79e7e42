"""`--grid` and `--seeds`: trains a recipe with several settings, one run after the other."""

import os
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands import _training
from nlpkit.commands._forked import Forks
from nlpkit.commands._grid_runs import GridRun, Sweep, list_axes, list_runs
from nlpkit.commands._options import Common
from nlpkit.durations import seconds
from nlpkit.errors import DataError, NlpkitError, RunsFailed, Stopped, TryAgain, UsageError
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from nlpkit.commands._grid import Axis
    from nlpkit.train.log import Log

_KILLED = 128 + 9


def sweep(asked: Sweep) -> None:
    """Train all runs of the grid that are not finished; print their figures.

    Raises:
        RecipeError: a setting is wrong in one of the runs; none is begun.
        RunsFailed: some runs failed; the others are finished.
        Stopped, TryAgain: a signal or the time limit; the running one is saved.
    """
    from nlpkit.train.log import Log

    common, log = asked.common, Log(asked.common.verbosity)
    _check_options(asked)
    axes = list_axes(asked)
    runs = list_runs(asked, axes)
    if asked.options.print_runs:
        lines = [shlex.join(["nlpkit", *run.arguments]) for run in runs]
        common.print_result("\n".join(lines), commands=lines)
        return
    root = _find_root(runs[0])
    for run in runs:
        _training.check_directory(run.resolved, common, asked.options.allow_change)
        _check_surroundings(run)
    _check_folder(root, axes, runs)
    if common.dry_run:
        log.info(f"{number_of(len(runs), 'runs')} in {root}; the first one:")
        _training.train(
            runs[0].resolved, common, asked.options.max_time, asked.options.allow_change
        )
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _train_here(asked, runs, log)
        failed: dict[str, int] = {}
    else:
        _check_device(common, runs[0])
        failed = _train_all(asked, runs, log)
    if int(os.environ.get("RANK", "0")) == 0:
        _print_result(common, axes, root, [run for run in runs if run.point.name not in failed])
    if failed:
        raise RunsFailed(_describe_failures(failed, len(runs)), failed.values())


def _check_options(asked: Sweep) -> None:
    if not asked.options.grid and asked.options.seeds is None:
        raise UsageError("--print needs --grid KEY=V1,V2 or --seeds N, whose runs it prints")
    if asked.options.smoke_test:
        raise UsageError("--smoke-test excludes --grid; try one of its runs: see --print")
    if asked.common.resume not in ("auto", "never"):
        raise UsageError(
            "--resume PATH resumes one run; with --grid and --seeds give auto or never"
        )


def _find_root(run: GridRun) -> Path:
    return run.path.parents[run.point.name.count("/")]


def _check_folder(root: Path, axes: Sequence["Axis"], runs: Sequence[GridRun]) -> None:
    """Raise `UsageError` if the folder is a run, or holds runs of another grid."""
    from nlpkit.checkpoints.run_directory import RECIPE, runs_inside
    from nlpkit.commands._grid import SEED
    from nlpkit.recipe import changed, load

    keys = [axis.key for axis in axes]
    if (root / RECIPE).is_file() and keys != [SEED]:
        raise UsageError(f"{root} is a run; give --out another directory for the grid")
    own = {run.path.resolve() for run in runs}
    for path in runs_inside(root):
        if path.resolve() in own:
            continue
        try:
            before = load(str(path / RECIPE)).dump()
        except NlpkitError:  # of another version, or of parts that are not here
            continue
        other = [
            key
            for key in changed(before, runs[0].resolved.dump())
            if not any(f"{key}.".startswith(f"{axis}.") for axis in keys)
        ]
        if other:
            raise UsageError(
                f"{root} holds runs of another grid: {path.relative_to(root)} differs in "
                f"{other[0]}; give --out another directory"
            )


def _check_surroundings(run: GridRun) -> None:
    """Raise an error if a package or data are missing, or data can be read by one run only."""
    from nlpkit.runs import columns

    _training.check_installed(run.resolved)
    data = run.resolved.recipe.data
    if any("-" in source.files for source in (*data.train, *data.valid)):
        raise UsageError("data: -: stdin can be read by one run only; write it into a file")
    columns.check(run.resolved)


def _check_device(common: Common, run: GridRun) -> None:
    """Exit if a device that is named is not there; a process of its own looks, and says so.

    A process that has looked for GPUs cannot be forked any more.
    """
    if common.device not in ("auto", "cpu"):
        with (forks := Forks()).pass_signals_on():
            if code := forks.run([*run.arguments, "--dry-run", "-q"]):
                raise SystemExit(code)


def _train_here(asked: Sweep, runs: Sequence[GridRun], log: "Log") -> None:
    """Train in this process, which was launched together with others; the first error ends it."""
    from nlpkit.cli import exit_now
    from nlpkit.train.signals import catch_signals

    limit = None if asked.options.max_time is None else seconds(asked.options.max_time)
    with catch_signals(exit_now, limit) as stop:
        for number, run in enumerate(runs, 1):
            log.info(f"run {number} of {len(runs)}: {run.path}")
            _training.one_run(run.resolved, asked.common, asked.options.allow_change, log, stop)


def _train_all(asked: Sweep, runs: Sequence[GridRun], log: "Log") -> dict[str, int]:
    """Train each run in a process of its own; return the exit codes of those that failed."""
    from nlpkit.checkpoints.run_directory import RunDirectory

    limit = (
        None
        if asked.options.max_time is None
        else time.monotonic() + seconds(asked.options.max_time)
    )
    failed: dict[str, int] = {}
    forks = Forks()
    with forks.pass_signals_on():
        for number, run in enumerate(runs, 1):
            log.info(f"run {number} of {len(runs)}: {run.point.name}")
            directory = RunDirectory(run.path)
            if directory.finished() and _is_as_begun(run):
                log.info(f"{run.path} is finished; nothing to do")
                continue
            arguments = run.arguments
            if limit is not None:
                left = limit - time.monotonic()
                if left < 1:
                    raise TryAgain(
                        _describe_stop(number - 1, len(runs), "the time limit is reached")
                    )
                arguments = [*arguments, "--max-time", f"{int(left)}s"]
            # A signal may have come before this run.
            code = forks.run(arguments) if forks.signal is None else 128 + forks.signal
            if forks.signal is not None and (code or number < len(runs)):
                name = f"stopped by {signal.Signals(forks.signal).name}"
                raise Stopped(_describe_stop(number - 1, len(runs), name), forks.signal)
            if code == TryAgain.exit_code and limit is not None and limit - time.monotonic() < 2:
                raise TryAgain(_describe_stop(number - 1, len(runs), "the time limit is reached"))
            if code:
                failed[run.point.name] = code
    return failed


def _is_as_begun(run: GridRun) -> bool:
    """Return whether a finished run has these settings; else it has to go on (--allow-change)."""
    from nlpkit.checkpoints import changes
    from nlpkit.checkpoints.run_directory import RunDirectory

    directory = RunDirectory(run.path)
    return not changes.check_changes(directory, changes.as_begun(directory, run.resolved), True)


def _describe_stop(done: int, count: int, why: str) -> str:
    return f"{why} in run {done + 1} of {count}; the same command goes on"


def _describe_failures(failed: dict[str, int], count: int) -> str:
    """Return which runs failed, and how."""
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


def _print_result(common: Common, axes: Sequence["Axis"], root: Path, runs: list[GridRun]) -> None:
    """Print the figures of finished runs: of seeds their mean, median and deviation."""
    from nlpkit import report as reports
    from nlpkit.commands import _grid
    from nlpkit.report import seeds
    from nlpkit.report import sweep as report

    if [axis.key for axis in axes] == [_grid.SEED] and runs:
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
