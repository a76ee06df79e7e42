"""Scores of sums over lines, each with one or several references: BLEU, chrF and TER."""

from collections.abc import Callable, Iterator, Sequence
from operator import add
from typing import Generic, NamedTuple, TypeVar

from nlpkit.contracts.metric import Lines, References, Repeated, Score, Sums
from nlpkit.errors import DataError

Row = tuple[float, ...]
Settings = TypeVar("Settings")


class SummedScore(NamedTuple, Generic[Settings]):
    """The functions of a metric; `settings` are made of its options once for all lines."""

    settings: Callable[..., Settings]
    row: Callable[[str, Sequence[str], Settings], Row]  # of a line and its references
    value: Callable[[Sums, Settings], float]
    # `(sums, number of references, settings, whether they are the row of a line)`
    result: Callable[[Sums, int, Settings, bool], Score]

    def score(self, hypotheses: Lines, references: References, **options: object) -> Score:
        """Return the score of all lines."""
        settings = self.settings(**options)
        sums: list[float] = []
        for row in self._rows(hypotheses, references, settings):
            sums = list(map(add, sums, row)) if sums else list(row)
        return self.result(sums, len(references), settings, False)

    def sentences(
        self, hypotheses: Lines, references: References, **options: object
    ) -> Iterator[Score]:
        """Yield the score of each line."""
        settings = self.settings(**options)
        for row in self._rows(hypotheses, references, settings):
            yield self.result(list(row), len(references), settings, True)

    def statistics(
        self, hypotheses: Lines, references: References, **options: object
    ) -> Iterator[Row]:
        """Return the row of each line."""
        return self._rows(hypotheses, references, self.settings(**options))

    def from_sums(self, sums: Sums, **options: object) -> float:
        """Return the score that the sums of the rows give."""
        return self.value(sums, self.settings(**options))

    def _rows(self, hypotheses: Lines, references: References, settings: Settings) -> Iterator[Row]:
        if not hypotheses:
            raise DataError("there are no hypotheses")
        # As sacrebleu's command line, without white space at line ends, which chrF can count.
        for hypothesis, *lines in zip(hypotheses, *references, strict=True):
            given = [line.rstrip() for line in lines if not isinstance(line, Repeated)]
            yield self.row(hypothesis.rstrip(), given, settings)
