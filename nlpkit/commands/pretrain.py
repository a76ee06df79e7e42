"""Train RECIPE from scratch, or resume its run."""

from nlpkit.commands import _smoke_test, _training
from nlpkit.commands._options import (
    AllowChange,
    Common,
    Grid,
    MaxTime,
    PrintRuns,
    RecipeName,
    Seeds,
    SmokeTest,
    shared,
)


@shared()
def command(
    recipe: RecipeName,
    common: Common,
    grid: Grid = None,
    seeds: Seeds = None,
    print_runs: PrintRuns = False,
    max_time: MaxTime = None,
    allow_change: AllowChange = False,
    smoke_test: SmokeTest = False,
) -> None:
    """Train RECIPE from scratch, or resume its run.

    Prints the directory of the best checkpoint, or of the latest if the run was not evaluated;
    transformers can open it if it has the family. The same command again resumes the run from the
    newest checkpoint, or reports that it is finished.

    With --grid there is a run for each combination of the values, in its own directory inside that
    of the run, or --out. All are checked before the first one begins. A run that fails does not
    stop the others. The same command again does what is left. `nlpkit report DIR` is their table.
    """
    if grid or print_runs or (seeds is not None and not smoke_test):
        from nlpkit.commands._grid_runs import Sweep
        from nlpkit.commands._sweep import sweep

        words = ("pretrain", recipe)
        sweep(
            Sweep(
                words,
                lambda sets: common.load(recipe, sets),
                common,
                grid or (),
                seeds,
                max_time,
                allow_change,
                print_only=print_runs,
                smoke_test=smoke_test,
            )
        )
        return
    resolved = common.load(recipe)
    if smoke_test:
        _smoke_test.smoke_test(resolved, common)
    else:
        _training.train(resolved, common, max_time, allow_change)
