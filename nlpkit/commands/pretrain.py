"""Train RECIPE from scratch, or resume its run."""

from nlpkit.commands import _training
from nlpkit.commands._options import AllowChange, Common, MaxTime, RecipeName, shared


@shared()
def command(
    recipe: RecipeName,
    common: Common,
    max_time: MaxTime = None,
    allow_change: AllowChange = False,
) -> None:
    """Train RECIPE from scratch, or resume its run.

    Prints the directory of the best checkpoint, or of the latest if the run was not evaluated;
    transformers can open it. The same command again resumes the run from the newest checkpoint, or
    reports that it is finished.
    """
    _training.train(common.load(recipe), common, max_time, allow_change)
