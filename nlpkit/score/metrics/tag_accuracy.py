"""Tag accuracy: the share of right tags in lines of tags, such as parts of speech.

0...1. A line has the tags of a sentence with white space between them. Every tag counts the same,
as in the accuracy of conlleval.
"""

from collections.abc import Iterator

from nlpkit.contracts.metric import Lines, References, Score, Sums
from nlpkit.plural import number_of
from nlpkit.score.counts import tags


def score(hypotheses: Lines, references: References) -> Score:
    """Return the share of right tags."""
    rows = list(statistics(hypotheses, references))
    right, total = (sum(column) for column in zip(*rows, strict=True))
    details = {"right": right, "tags": total, "lines": len(rows)}
    verbose = f"{right} of {number_of(total, 'tags')} in {number_of(len(rows), 'lines')}"
    return Score("tag-accuracy", right / total, "mean:tags", verbose, details, percent=False)


def statistics(hypotheses: Lines, references: References) -> Iterator[tuple[int, int]]:
    """Yield for each line the numbers of right tags and of tags."""
    for ours, theirs in tags.read(hypotheses, references):
        yield sum(a == b for a, b in zip(ours, theirs, strict=True)), len(theirs)


def from_sums(sums: Sums) -> float:
    """Return the share of right tags; 0 if a resample has no tag."""
    return int(sums[0]) / int(sums[1]) if sums[1] else 0.0
