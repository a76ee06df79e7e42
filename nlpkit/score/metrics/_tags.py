"""The lines of tags that tagging is scored by: one sentence a line, white space between tags."""

from collections.abc import Sequence

from nlpkit.errors import DataError
from nlpkit.plural import number_of
from nlpkit.score.contract import BadLine


def read(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> list[tuple[list[str], list[str]]]:
    """Return the predicted and the right tags of each line.

    Raises:
        BadLine: a line has another number of tags than its reference.
        DataError: there is no tag.
    """
    found = []
    for index, (ours, theirs) in enumerate(zip(hypotheses, references[0], strict=True)):
        predicted, right = ours.split(), theirs.split()
        if len(predicted) != len(right):
            raise BadLine(
                0, index, f"{number_of(len(predicted), 'tags')}; the reference has {len(right)}"
            )
        found.append((predicted, right))
    if not any(right for _, right in found):
        raise DataError("there is no tag to score")
    return found
