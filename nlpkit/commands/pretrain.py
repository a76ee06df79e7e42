"""Train RECIPE from scratch, or go on where it stopped."""

from nlpkit.commands import _training
from nlpkit.commands._options import AllowChange, Common, MaxTime, RecipeName, shared


@shared()
def command(
    recipe: RecipeName,
    common: Common,
    max_time: MaxTime = None,
    allow_change: AllowChange = False,
) -> None:
    """Train RECIPE from scratch, or go on where it stopped.

    Prints the directory of the final checkpoint, which transformers can open. The same command
    again goes on from the newest checkpoint, or says that the run is finished.
    """
    _training.train(common.load(recipe), common, max_time, allow_change)
