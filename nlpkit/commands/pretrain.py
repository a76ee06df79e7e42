"""Train RECIPE from scratch, or resume its run."""

from nlpkit.commands import _smoke_test, _training
from nlpkit.commands._options import AllowChange, Common, MaxTime, RecipeName, SmokeTest, shared


@shared()
def command(
    recipe: RecipeName,
    common: Common,
    max_time: MaxTime = None,
    allow_change: AllowChange = False,
    smoke_test: SmokeTest = False,
) -> None:
    """Train RECIPE from scratch, or resume its run.

    Prints the directory of the best checkpoint, or of the latest if the run was not evaluated;
    transformers can open it if it has the family. The same command again resumes the run from the
    newest checkpoint, or reports that it is finished.
    """
    resolved = common.load(recipe)
    if smoke_test:
        _smoke_test.smoke_test(resolved, common)
    else:
        _training.train(resolved, common, max_time, allow_change)
