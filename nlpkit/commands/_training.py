"""One run from a checked recipe, as `pretrain` and `finetune` start it."""

from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands._options import Common, seconds
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved
    from nlpkit.train.log import Log
    from nlpkit.train.signals import StopFlag


def train(resolved: "Resolved", common: Common, max_time: str | None, allow_change: bool) -> None:
    """Train the recipe, or go on with it, and print the final checkpoint's directory."""
    from nlpkit.checkpoints.run_directory import RunDirectory, process_rank
    from nlpkit.cli import exit_now
    from nlpkit.train.log import Log
    from nlpkit.train.signals import catch_signals

    log = Log(common.verbosity)
    directory = RunDirectory(Path(resolved.recipe.out).expanduser())
    if common.dry_run:
        _check(resolved, common)
        from nlpkit.plan import dry_run

        described = dry_run(resolved, directory.path, common.device, log)
        if common.json:
            common.result("", **described)
        return
    limit = None if max_time is None else seconds(max_time)
    with catch_signals(exit_now, limit) as stop:
        done = one_run(resolved, common, allow_change, log, stop)
    if process_rank() == 0:
        common.result(str(done), checkpoint=str(done))


def one_run(
    resolved: "Resolved", common: Common, allow_change: bool, log: "Log", stop: "StopFlag"
) -> Path:
    """Return the final checkpoint's directory; says so if there is nothing left to train."""
    from nlpkit.checkpoints.run_directory import RunDirectory

    _check(resolved, common)
    directory = RunDirectory(Path(resolved.recipe.out).expanduser())
    with directory.locked():
        resolved = directory.as_begun(resolved)
        changed = directory.accept(resolved, allow_change)
        done = None if changed else directory.finished()
        if done is not None and common.resume == "never":
            raise UsageError(f"{directory.path} holds a finished run; give --out another directory")
        if done is not None:
            log.info(f"{directory.path} is finished; nothing to do")
            return done
        from nlpkit.runs.pretrain import pretrain

        return pretrain(
            resolved,
            directory,
            device=common.device,
            resume=common.resume,
            log=log,
            stop=stop,
        )


def _check(resolved: "Resolved", common: Common) -> None:
    """Raise `UsageError` if what is asked for is not here, before anything is written."""
    from nlpkit.train.trackers import check_installed

    check_installed(resolved.recipe.train.trackers)
    if common.device not in ("auto", "cpu"):  # these are everywhere, and torch takes a second
        from nlpkit.train.machine import find_device

        find_device(common.device)
