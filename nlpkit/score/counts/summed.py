"""Scores of sums over lines, each with one or several references: BLEU, chrF and TER."""

from collections.abc import Callable, Iterator, Sequence
from operator import add
from typing import Generic, NamedTuple, TypeVar

from nlpkit.contracts.metric import Lines, Score, Sums
from nlpkit.score.counts.references import (
    OptionalReferences,
    count_references,
    pair_references,
)

Row = tuple[float, ...]
Settings = TypeVar("Settings")


class SummedScore(NamedTuple, Generic[Settings]):
    """The functions of a metric; `settings` are made of its options once for all lines."""

    settings: Callable[..., Settings]
    row: Callable[[str, Sequence[str], Settings], Row]  # of a line and its references
    value: Callable[[Sums, Settings], float]
    # `(sums, number of references, settings, whether they are the row of a line)`
    result: Callable[[Sums, int | str, Settings, bool], Score]

    def score(self, hypotheses: Lines, references: OptionalReferences, **options: object) -> Score:
        """Return the score of all lines."""
        settings = self.settings(**options)
        sums: list[float] = []
        for row in self._rows(hypotheses, references, settings):
            sums = list(map(add, sums, row)) if sums else list(row)
        return self.result(sums, count_references(references), settings, False)

    def sentences(
        self, hypotheses: Lines, references: OptionalReferences, **options: object
    ) -> Iterator[Score]:
        """Yield the score of each line."""
        settings = self.settings(**options)
        pairs = pair_references(hypotheses, references)
        for (_, lines), row in zip(
            pairs, self._rows(hypotheses, references, settings), strict=True
        ):
            yield self.result(list(row), len(lines), settings, True)

    def statistics(
        self, hypotheses: Lines, references: OptionalReferences, **options: object
    ) -> Iterator[Row]:
        """Return the row of each line."""
        return self._rows(hypotheses, references, self.settings(**options))

    def from_sums(self, sums: Sums, **options: object) -> float:
        """Return the score that the sums of the rows give."""
        return self.value(sums, self.settings(**options))

    def _rows(
        self, hypotheses: Lines, references: OptionalReferences, settings: Settings
    ) -> Iterator[Row]:
        # As sacrebleu's command line, without white space at line ends, which chrF can count.
        for hypothesis, lines in pair_references(hypotheses, references):
            yield self.row(hypothesis.rstrip(), [line.rstrip() for line in lines], settings)
