"""`--grid` and `--seeds`: trains a recipe with several settings, one run after the other."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from nlpkit import report as reports
from nlpkit.checkpoints.run_directory import RECIPE, runs_inside
from nlpkit.commands import pretrain
from nlpkit.commands._grid import SEED, Axes, Sweep, list_axes, list_runs
from nlpkit.commands._options import Common
from nlpkit.commands._runs import Run, Runner, check, check_device, raise_failures
from nlpkit.errors import NlpkitError, UsageError
from nlpkit.plural import number_of
from nlpkit.recipe import load
from nlpkit.recipe.known import find_changes
from nlpkit.report import history, seeds
from nlpkit.report import sweep as report
from nlpkit.train.state import LOSS


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
    check(runs, common, asked.options.allow_change)
    _check_folder(root, axes, runs)
    check_device(runs[0], common)
    if common.dry_run:
        log.info(f"{number_of(len(runs), 'runs')} in {root}; the first one:")
        pretrain.train_one(runs[0].resolved, common, asked.options)
        return
    failed: dict[str, int] = {}
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # In this process, which was launched together with others; the first error ends it.
        with common.catch_signals(asked.options.max_time) as stop:
            for number, run in enumerate(runs, 1):
                log.info(f"run {number} of {len(runs)}: {run.path}")
                change = asked.options.allow_change
                pretrain.train_in_directory(run.resolved, common, change, log, stop)
    else:
        failed = Runner(log, asked.options.max_time).train(runs)
    if int(os.environ.get("RANK", "0")) == 0:
        _print_result(common, axes, root, [run for run in runs if run.name not in failed])
    raise_failures(failed, len(runs))


def _check_options(asked: Sweep) -> None:
    if not asked.options.grid and asked.options.seeds is None:
        raise UsageError("--print needs --grid KEY=V1,V2 or --seeds N, whose runs it prints")
    if asked.options.smoke_test:
        raise UsageError("--smoke-test excludes --grid; try one of its runs: see --print")
    if asked.common.resume not in ("auto", "never"):
        raise UsageError(
            "--resume PATH resumes one run; with --grid and --seeds give auto or never"
        )


def _check_folder(root: Path, axes: Axes, runs: Sequence[Run]) -> None:
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


def _print_result(common: Common, axes: Axes, root: Path, runs: Sequence[Run]) -> None:
    found = [history.read(run.path, run.name, may_be_empty=True).chosen for run in runs]
    if [*axes] == [SEED] and found and all(found):  # else the runs are listed
        numbers = [run.resolved.recipe.seed for run in runs]
        figures = [{LOSS: each[LOSS]} | each["metrics"] for each in found]
        result = seeds.summary(numbers, figures)
        common.print_result(seeds.table(result), **result)
        return
    table = report.make_table(reports.read([root], may_be_empty=True))
    common.print_result(report.format_table(table), **report.to_json(table))
