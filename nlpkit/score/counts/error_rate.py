"""The common part of word and character error rate: edits divided by the reference length."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nlpkit.contracts.metric import Lines, References, Score, Sums
from nlpkit.errors import DataError
from nlpkit.plural import number_of
from nlpkit.score.counts.edits import Edits, count_edits


class ErrorRate(NamedTuple):
    """The functions of a metric; they pass `options` to `tokens` and `signature`."""

    name: str
    unit: str
    tokens: Callable[..., Sequence[str]]  # splits a line
    signature: Callable[..., str]

    def score(self, hypotheses: Lines, references: References, **options: bool) -> Score:
        """Return edits divided by the length of the references; `details` has each kind of edit.

        Raise `DataError` if the references are empty.
        """
        total, length, lines, correct, empty = Edits(0, 0, 0, 0), 0, 0, 0, 0
        for line_edits, size in self._edits(hypotheses, references, options):
            total = Edits(*map(int.__add__, total, line_edits))
            length += size
            lines += 1
            correct += not line_edits.distance
            empty += not size
        if not length:
            reason = f"the references have no {self.unit} ({number_of(lines, 'lines')})"
            raise DataError(f"{self.name} is undefined: {reason}")
        warnings = []
        if empty:
            noun = "line has" if empty == 1 else "lines have"
            warnings.append(f"{empty} {noun} an empty reference; insertions there count")
        hypothesis_length = total.hits + total.substitutions + total.insertions
        details = {
            **total._asdict(),
            f"reference_{self.unit}": length,
            f"hypothesis_{self.unit}": hypothesis_length,
            "ratio": hypothesis_length / length,
            "lines": lines,
            "lines_without_error": correct,
            "warnings": warnings,
        }
        value = total.distance / length
        signature = self.signature(**options)
        return Score(
            self.name, value, signature, _format_kinds(total, length), details, percent=False
        )

    def sentences(
        self, hypotheses: Lines, references: References, **options: bool
    ) -> Iterator[Score]:
        """Yield the rate of each line; an empty reference has length 1, as in jiwer."""
        signature = self.signature(**options)
        for line_edits, size in self._edits(hypotheses, references, options):
            details = {**line_edits._asdict(), f"reference_{self.unit}": size}
            value = line_edits.distance / max(1, size)
            kinds = _format_kinds(line_edits, size)
            yield Score(self.name, value, signature, kinds, details, percent=False)

    def statistics(
        self, hypotheses: Lines, references: References, **options: bool
    ) -> list[tuple[int, int]]:
        """Return for each line its number of edits and the length of its reference."""
        pairs = self._edits(hypotheses, references, options)
        return [(line_edits.distance, size) for line_edits, size in pairs]

    def from_sums(self, sums: Sums, **_options: bool) -> float:
        """Return edits divided by length; a length of 0 counts as 1."""
        return int(sums[0]) / max(1, int(sums[1]))

    def _edits(
        self, hypotheses: Lines, references: References, options: dict[str, bool]
    ) -> Iterator[tuple[Edits, int]]:
        """Yield the edits of each line, and the length of its reference."""
        for pair in zip(hypotheses, references[0], strict=True):
            hypothesis, reference = (self.tokens(line, **options) for line in pair)
            yield count_edits(reference, hypothesis), len(reference)


def _format_kinds(line_edits: Edits, length: int) -> str:
    substitutions, deletions, insertions = line_edits[1:]
    return f"S {substitutions} D {deletions} I {insertions} of {length}"
