"""What word and character error rate share: edits by the length of the reference."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nlpkit.errors import DataError
from nlpkit.score.contract import Score
from nlpkit.score.metrics._edits import Edits, edits


class ErrorRate(NamedTuple):
    """The functions of a metric; `options` are those of `tokens` and `signature`."""

    name: str
    unit: str
    tokens: Callable[..., Sequence[str]]  # of a line
    signature: Callable[..., str]

    def score(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], **options: bool
    ) -> Score:
        """Return edits by the length of the references, the kinds of edit in `details`.

        Raise `DataError` if the references are empty.
        """
        total, length, lines, right, empty = Edits(0, 0, 0, 0), 0, 0, 0, 0
        for found, size in self._edits(hypotheses, references, options):
            total = Edits(*map(int.__add__, total, found))
            length += size
            lines += 1
            right += not found.distance
            empty += not size
        if not length:
            what = f"the references have no {self.unit} ({lines} lines)"
            raise DataError(f"{self.name} is undefined: {what}")
        warnings = []
        if empty:
            noun = "line has" if empty == 1 else "lines have"
            warnings.append(f"{empty} {noun} an empty reference; what is inserted there counts")
        ours = total.hits + total.substitutions + total.insertions
        details = {
            **total._asdict(),
            f"reference_{self.unit}": length,
            f"hypothesis_{self.unit}": ours,
            "ratio": ours / length,
            "lines": lines,
            "lines_without_error": right,
            "warnings": warnings,
        }
        value = total.distance / length
        signature = self.signature(**options)
        return Score(self.name, value, signature, _kinds(total, length), details, percent=False)

    def sentences(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], **options: bool
    ) -> Iterator[Score]:
        """Yield the rate of each line; an empty reference counts as 1 long, as jiwer does."""
        signature = self.signature(**options)
        for found, size in self._edits(hypotheses, references, options):
            details = {**found._asdict(), f"reference_{self.unit}": size}
            value = found.distance / max(1, size)
            kinds = _kinds(found, size)
            yield Score(self.name, value, signature, kinds, details, percent=False)

    def statistics(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], **options: bool
    ) -> list[tuple[int, int]]:
        """Return a row a line: edits, length of the reference."""
        found = self._edits(hypotheses, references, options)
        return [(each.distance, size) for each, size in found]

    def from_sums(self, sums: Sequence[int], **_options: bool) -> float:
        """Return edits by length; empty references alone count as 1 long."""
        return int(sums[0]) / max(1, int(sums[1]))

    def _edits(
        self,
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]],
        options: dict[str, bool],
    ) -> Iterator[tuple[Edits, int]]:
        """Yield the edits of each line, and the length of its reference."""
        for pair in zip(hypotheses, references[0], strict=True):
            hypothesis, reference = (self.tokens(line, **options) for line in pair)
            yield edits(reference, hypothesis), len(reference)


def _kinds(found: Edits, length: int) -> str:
    parts = f"S {found.substitutions} D {found.deletions} I {found.insertions}"
    return f"{parts} of {length}"
