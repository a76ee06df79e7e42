"""Train RECIPE from scratch, or go on where it stopped."""

from pathlib import Path

from nlpkit.commands._options import AllowChange, Common, MaxTime, RecipeName, seconds, shared
from nlpkit.errors import UsageError


@shared()
def command(
    recipe: RecipeName,
    common: Common,
    max_time: MaxTime = None,
    allow_change: AllowChange = False,
) -> None:
    """Train RECIPE from scratch, or go on where it stopped.

    Prints the directory of the final checkpoint; transformers opens it. The same command run again
    goes on from the newest checkpoint, or says that the run is finished.
    """
    resolved = common.load(recipe)  # first: a mistake in it is said before anything is imported
    from nlpkit.cli import leave
    from nlpkit.rundir import RunDirectory
    from nlpkit.train.log import Log
    from nlpkit.train.signals import catch_signals

    log = Log(common.verbosity)
    directory = RunDirectory(Path(resolved.recipe.out).expanduser())
    limit = None if max_time is None else seconds(max_time)
    if common.dry_run:
        from nlpkit.planning import dry_run

        described = dry_run(resolved, directory.path, common.device, log)
        if common.json:
            common.result("", **described)
        return
    with catch_signals(leave, limit) as stop, directory.locked():
        changed = directory.accept(resolved, allow_change)
        done = None if changed else directory.finished()
        if done is not None and common.resume == "never":
            raise UsageError(f"{directory.path} holds a finished run; give --out another directory")
        if done is None:
            from nlpkit.run import pretrain

            done = pretrain(
                resolved,
                directory,
                device=common.device,
                resume=common.resume,
                log=log,
                stop=stop,
            )
        else:
            log.say(f"{directory.path} is finished; nothing to do")
        if is_first_process():
            common.result(str(done), checkpoint=str(done))


def is_first_process() -> bool:
    """Return whether this process prints the result."""
    from nlpkit.rundir import process_rank

    return process_rank() == 0
