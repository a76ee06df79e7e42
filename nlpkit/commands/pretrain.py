"""Train RECIPE from scratch, or resume its run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.checkpoints import files
from nlpkit.commands._options import Common, RecipeName, RunOptions, shared
from nlpkit.disk import user_path
from nlpkit.errors import DivergedError, FileError, UsageError

if TYPE_CHECKING:
    from nlpkit.checkpoints.run_directory import RunDirectory
    from nlpkit.recipe import Resolved
    from nlpkit.train.log import Log
    from nlpkit.train.signals import StopFlag

SHARED = ("overrides", "budget", "out", "device", "resume", "dry_run")  # options, as in finetune


@shared(*SHARED)
def command(recipe: RecipeName, common: Common, runs: RunOptions) -> None:
    """Train RECIPE from scratch, or resume its run.

    Prints the directory of the best checkpoint, or of the latest if the run was not evaluated;
    transformers can open it if it has the family. The same command again resumes the run from the
    newest checkpoint, or reports that it is finished.

    With --grid there is a run for each combination of the values, in its own directory inside that
    of the run, or --out. All are checked before the first one begins. A run that fails does not
    stop the others. The same command again does what is left. `nlpkit report DIR` is their table.
    """
    train(("pretrain", recipe), lambda sets: common.load(recipe, sets), common, runs)


def train(
    words: Sequence[str],
    load: Callable[[Sequence[str]], "Resolved"],
    common: Common,
    runs: RunOptions,
) -> None:
    """Train the run of a recipe, or its runs.

    `words` begin the command of each; `load` returns the recipe with further settings of `--set`.
    """
    if runs.grid or runs.print_runs or (runs.seeds is not None and not runs.smoke_test):
        from nlpkit.commands._grid import Sweep
        from nlpkit.commands._sweep import sweep

        sweep(Sweep(words, load, common, runs))
    elif runs.smoke_test:
        from nlpkit.commands._smoke_test import smoke_test

        smoke_test(load, common)
    else:
        train_one(load(()), common, runs)


def train_one(resolved: "Resolved", common: Common, runs: RunOptions) -> None:
    """Train the recipe, or resume its run, and print the directory of the run's checkpoint."""
    from nlpkit.checkpoints.run_directory import process_rank

    log = common.open_log()
    if process_rank() == 0:
        log.warn_all(resolved.warnings)
    if common.dry_run:
        _print_plan(resolved, common, runs, log)
        return
    with common.catch_signals(runs.max_time) as stop:
        train_in_directory(resolved, common, runs.allow_change, log, stop)
    if process_rank() != 0:
        return
    chosen = files.choose_checkpoint(user_path(resolved.recipe.out))
    assert chosen is not None  # the run is finished
    checkpoint, which = chosen
    best_by = resolved.recipe.train.best_by
    why = f"by held-out {best_by}" if which == "best" else "as no evaluation chose a best one"
    log.info(f"checkpoint of the run: the {which}, {why}: {checkpoint.name}")
    common.print_result(str(checkpoint), checkpoint=str(checkpoint))


def _print_plan(resolved: "Resolved", common: Common, runs: RunOptions, log: "Log") -> None:
    from nlpkit.runs import columns

    _check(resolved, common)
    resolved, _ = check_directory(resolved, common, runs.allow_change)
    log.warn_all(columns.check(resolved))
    from nlpkit.plan import dry_run

    described = dry_run(resolved, user_path(resolved.recipe.out), common.device, log)
    if common.json:
        common.print_result("", **described)


def train_in_directory(
    resolved: "Resolved", common: Common, allow_change: bool | None, log: "Log", stop: "StopFlag"
) -> None:
    """Train the recipe, or resume its run; a finished run is only reported."""
    from nlpkit.checkpoints.run_directory import RunDirectory, process_rank
    from nlpkit.runs import columns

    _check(resolved, common)
    directory = RunDirectory(user_path(resolved.recipe.out))
    with directory.locked():
        changed: list[str] = []
        if common.resume not in ("auto", "never") or len([*directory.path.glob("*")]) > 1:  # lock
            resolved, changed = check_directory(resolved, common, allow_change, begins=True)
        if not changed and directory.finished():
            log.info(f"{directory.path} is finished; nothing to do")
            return
        warnings = columns.check(resolved)  # before torch is loaded
        if process_rank() == 0:
            _announce(directory, common.resume, changed, log)
            log.warn_all(warnings)
        from nlpkit.runs.pretrain import pretrain

        device, resume = common.device, common.resume
        try:
            pretrain(resolved, directory, device=device, resume=resume, log=log, stop=stop)
        except DivergedError:
            if process_rank() == 0:
                directory.set_status(diverged=True)  # for the report
            raise
        except UsageError as error:
            error.args = (resolved.document.locate(str(error)),)
            raise


def _announce(directory: "RunDirectory", resume: str, changed: list[str], log: "Log") -> None:
    saved = files.list_checkpoints(directory.path)
    newest = f"step {saved[0].step}" if saved else ""
    where = {"auto": newest, "never": ""}.get(resume, resume)
    where = f"resumes from {where}" if where else "new"
    log.info(f"run: {directory.path.absolute()} ({where})")
    if changed:
        log.info(f"changed since the start of the run: {', '.join(changed)}")


def check_directory(
    resolved: "Resolved", common: Common, allow_change: bool | None, begins: bool = False
) -> tuple["Resolved", list[str]]:
    """Return the recipe as the run in its directory goes on with it, and what it changes.

    Raises:
        UsageError: training would refuse to go on with this run.
    """
    from nlpkit.checkpoints import changes
    from nlpkit.checkpoints.run_directory import RunDirectory

    directory = RunDirectory(user_path(resolved.recipe.out))
    resolved = changes.as_begun(directory, resolved, common.resume)
    changed = changes.check_changes(directory, resolved, allow_change)
    if common.resume == "never" and files.list_directories(directory.path):
        raise UsageError(f"{directory.path} has checkpoints of a run; give --out another directory")
    if begins:
        changes.forget_start(directory, resolved)
    return resolved, changed


def _check(resolved: "Resolved", common: Common) -> None:
    if common.resume not in ("auto", "never") and not (path := Path(common.resume)).exists():
        from nlpkit.checkpoints.nearest import suggest_path

        raise FileError(f"--resume {path}: no such checkpoint{suggest_path(path)}")
    check_installed(resolved)
    if common.device not in ("auto", "cpu"):  # always available; the import of torch takes a second
        from nlpkit.train.machine import find_device

        find_device(common.device)


def check_installed(resolved: "Resolved") -> None:
    """Raise an error if a package is missing that a tracker or the optimizer needs."""
    settings = resolved.recipe.train
    if settings.trackers or settings.optimizer.module.PACKAGE:
        from nlpkit.train import trackers

        trackers.check_installed("train.trackers", settings.trackers)
        trackers.check_installed("train.optimizer", [settings.optimizer.module.PACKAGE])
