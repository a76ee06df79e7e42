"""Trains one recipe, for `pretrain` and `finetune`."""

from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands._options import Common
from nlpkit.disk import user_path
from nlpkit.durations import seconds
from nlpkit.errors import DivergedError, FileError, UsageError

if TYPE_CHECKING:
    from nlpkit.checkpoints.run_directory import RunDirectory
    from nlpkit.recipe import Resolved
    from nlpkit.train.log import Log
    from nlpkit.train.signals import StopFlag


def train(resolved: "Resolved", common: Common, max_time: str | None, allow_change: bool) -> None:
    """Train the recipe, or resume its run, and print the directory of the run's checkpoint."""
    from nlpkit.checkpoints import files
    from nlpkit.checkpoints.run_directory import RunDirectory, process_rank
    from nlpkit.cli import exit_now
    from nlpkit.train.log import Log
    from nlpkit.train.signals import catch_signals

    log = Log(common.verbosity)
    if process_rank() == 0:
        log.warn_all(resolved.warnings)
    directory = RunDirectory(user_path(resolved.recipe.out))
    if common.dry_run:
        _check(resolved, common)
        resolved = check_directory(resolved, common, allow_change)
        from nlpkit.runs import columns

        columns.check(resolved)
        from nlpkit.plan import dry_run

        described = dry_run(resolved, directory.path, common.device, log)
        if common.json:
            common.print_result("", **described)
        return
    limit = None if max_time is None else seconds(max_time)
    with catch_signals(exit_now, limit) as stop:
        one_run(resolved, common, allow_change, log, stop)
    if process_rank() != 0:
        return
    chosen = files.choose_checkpoint(directory.path)
    assert chosen is not None  # the run is finished
    checkpoint, which = chosen
    best_by = resolved.recipe.train.best_by
    why = f"by held-out {best_by}" if which == "best" else "as no evaluation chose a best one"
    log.info(f"checkpoint of the run: the {which}, {why}: {checkpoint.name}")
    common.print_result(str(checkpoint), checkpoint=str(checkpoint))


def one_run(
    resolved: "Resolved", common: Common, allow_change: bool, log: "Log", stop: "StopFlag"
) -> None:
    """Train the recipe, or resume its run; a finished run is only reported."""
    from nlpkit.checkpoints import files
    from nlpkit.checkpoints.run_directory import RunDirectory, process_rank
    from nlpkit.runs import columns

    _check(resolved, common)
    directory = RunDirectory(user_path(resolved.recipe.out))
    with directory.locked():
        changed = []
        if files.list_checkpoints(directory.path):
            from nlpkit.checkpoints import changes

            resolved = changes.as_begun(directory, resolved)
            changed = changes.check_changes(directory, resolved, allow_change)
        if not changed and directory.finished():
            if common.resume == "never":
                raise UsageError(
                    f"{directory.path} holds a finished run; give --out another directory"
                )
            log.info(f"{directory.path} is finished; nothing to do")
            return
        if process_rank() == 0:
            _announce(directory, common.resume, changed, log)
        columns.check(resolved)  # before torch is loaded
        from nlpkit.runs.pretrain import pretrain

        try:
            pretrain(
                resolved,
                directory,
                device=common.device,
                resume=common.resume,
                log=log,
                stop=stop,
            )
        except DivergedError:
            if process_rank() == 0:
                directory.set_status(diverged=True)  # for the report
            raise


def _announce(directory: "RunDirectory", resume: str, changed: list[str], log: "Log") -> None:
    from nlpkit.checkpoints import files

    saved = files.list_checkpoints(directory.path)
    newest = f"step {saved[0].step}" if saved else ""
    where = {"auto": newest, "never": ""}.get(resume, resume)
    log.info(
        f"run: {directory.path.absolute()} " + (f"(resumes from {where})" if where else "(new)")
    )
    if changed:
        log.info(f"changed since the start of the run: {', '.join(changed)}")


def check_directory(resolved: "Resolved", common: Common, allow_change: bool) -> "Resolved":
    """Return the recipe as a run that is in its directory goes on with it; write nothing.

    Raises:
        UsageError: training would refuse to go on with this run.
    """
    from nlpkit.checkpoints import changes, files
    from nlpkit.checkpoints.run_directory import RunDirectory

    directory = RunDirectory(user_path(resolved.recipe.out))
    resolved = changes.as_begun(directory, resolved)
    changes.check_changes(directory, resolved, allow_change)
    if common.resume == "never" and files.list_directories(directory.path):
        raise UsageError(f"{directory.path} has checkpoints of a run; give --out another directory")
    return resolved


def _check(resolved: "Resolved", common: Common) -> None:
    """Raise an error if a checkpoint, a tracker or the device is missing, before any work."""
    if common.resume not in ("auto", "never") and not Path(common.resume).exists():
        raise FileError(f"--resume {common.resume}: no such checkpoint")
    check_installed(resolved)
    if common.device not in ("auto", "cpu"):  # always available; the import of torch takes a second
        from nlpkit.train.machine import find_device

        find_device(common.device)


def check_installed(resolved: "Resolved") -> None:
    """Raise an error if a package is missing that a tracker or the optimizer needs."""
    from nlpkit.train import param_groups

    if names := resolved.recipe.train.trackers:
        from nlpkit.train import trackers

        trackers.check_installed(names)
    param_groups.check_installed(resolved.recipe.train.optimizer.module.PACKAGE)
