"""Train RECIPE from scratch, or resume its run."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nlpkit.commands import _training
from nlpkit.commands._options import Common, RecipeName, RunOptions, shared

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved


@shared()
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

    `words` are the verb, the recipe and the options of the verb alone; `load` returns the recipe
    with further settings, as `--set` takes them.
    """
    if runs.grid or runs.print_runs or (runs.seeds is not None and not runs.smoke_test):
        from nlpkit.commands._grid_runs import Sweep
        from nlpkit.commands._sweep import sweep

        sweep(Sweep(words, load, common, runs))
    elif runs.smoke_test:
        from nlpkit.commands._smoke_test import smoke_test

        smoke_test(load(()), common)
    else:
        _training.train(load(()), common, runs.max_time, runs.allow_change)
