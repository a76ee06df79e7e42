"""Word and character error rate: edits divided by the reference length."""

from collections.abc import Callable, Sequence

from nlpkit.contracts.metric import Score, Sums
from nlpkit.errors import DataError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.score.counts.edits import Edits, count_edits
from nlpkit.score.counts.summed import Row, SummedScore


def make_error_rate(
    name: str, unit: str, tokenize: Callable[..., Sequence[str]], signature: Callable[..., str]
) -> SummedScore[JsonObject]:
    """Return the functions of a metric; they pass its options to `tokenize` and `signature`.

    `score` raises `DataError` if the references are empty. The rate of a line with an empty
    reference is that of length 1, as in jiwer.
    """

    def count_row(line: str, references: Sequence[str], options: JsonObject) -> Row:
        reference = tokenize(references[0], **options)
        edits, size = count_edits(reference, tokenize(line, **options)), len(reference)
        return (*edits, size, 1, int(not edits.distance), int(not size))

    def compute(sums: Sums, options: JsonObject) -> float:
        return sum(map(int, sums[1:4])) / max(1, int(sums[4]))

    def make_score(sums: Sums, references: int, options: JsonObject, is_line: bool) -> Score:
        edits, (size, lines, correct, empty) = Edits(*map(int, sums[:4])), sums[4:]
        details: JsonObject = {**edits._asdict(), f"reference_{unit}": size}
        if not is_line:
            if not size:
                reason = f"the references have no {unit} ({number_of(int(lines), 'lines')})"
                raise DataError(f"{name} is undefined: {reason}")
            length = edits.hits + edits.substitutions + edits.insertions
            counted = number_of(int(empty), "lines have")
            warnings = [f"{counted} an empty reference; insertions there count"] if empty else []
            details |= {f"hypothesis_{unit}": length, "ratio": length / size, "lines": lines}
            details |= {"lines_without_error": correct, "warnings": warnings}
        kinds = f"S {edits.substitutions} D {edits.deletions} I {edits.insertions} of {size}"
        value = compute(sums, options)
        return Score(name, value, signature(**options), kinds, details, percent=False)

    return SummedScore(lambda **options: options, count_row, compute, make_score)
