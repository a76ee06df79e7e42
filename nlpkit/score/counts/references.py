"""Lines with their references, for the translation scores."""

from collections.abc import Iterator, Sequence

from nlpkit.contracts.metric import BadLine, Lines
from nlpkit.errors import DataError
from nlpkit.plural import number_of

# references[k][i]; None: line i has no k-th reference
OptionalReferences = Sequence[Sequence[str | None]]


def pair_references(
    hypotheses: Lines, references: OptionalReferences
) -> Iterator[tuple[str, list[str]]]:
    """Return each hypothesis with its references.

    As in sacrebleu, an empty string is a reference without words, and None is no reference.

    Raises:
        DataError: there is no line, or the numbers of lines differ.
        BadLine: when it is reached, a line without a reference.
    """
    if not hypotheses:
        raise DataError("there are no hypotheses")
    if not references:
        raise DataError("there are no references")
    for number, reference in enumerate(references, 1):
        if len(reference) != len(hypotheses):
            raise DataError(
                f"{number_of(len(hypotheses), 'hypotheses')}, but "
                f"{number_of(len(reference), 'lines')} in reference {number}"
            )
    return _pairs(hypotheses, references)


def _pairs(hypotheses: Lines, references: OptionalReferences) -> Iterator[tuple[str, list[str]]]:
    for index, (hypothesis, *lines) in enumerate(zip(hypotheses, *references, strict=True)):
        kept = [line for line in lines if line is not None]
        if not kept:
            raise BadLine(1, index, "there is no reference for this line")
        yield hypothesis, kept


def count_references(references: OptionalReferences) -> int | str:
    """Return the number of references for each line, or `var` if it differs between lines."""
    if not any(None in lines for lines in references):
        return len(references)
    counts = {sum(line is not None for line in lines) for lines in zip(*references, strict=True)}
    return counts.pop() if len(counts) == 1 else "var"
