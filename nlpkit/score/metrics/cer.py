"""Character error rate: edits that turn the reference into the hypothesis, by its characters.

Levenshtein distance over characters (Unicode code points), corpus level: all edits by all
reference characters. As `jiwer.process_characters`: white space around a line is dropped, spaces
inside count as characters unless `ignore_spaces`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _error_rate

REFERENCES = (1, 1)
LOWER_IS_BETTER = True
OPTIONS = (
    Option("lowercase", False, "compare in lower case", ("-lc",), type=bool),
    Option("ignore_spaces", False, "leave white space out, as is usual for Chinese", type=bool),
)


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    ignore_spaces: bool = False,
) -> Score:
    """Return edits by reference characters; raise `DataError` if the references have none."""
    pairs = _pairs(hypotheses, references, lowercase, ignore_spaces)
    return _error_rate.corpus("CER", "characters", pairs, _signature(lowercase, ignore_spaces))


def sentences(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    ignore_spaces: bool = False,
) -> Iterator[Score]:
    """Yield each line's edits by its reference characters."""
    pairs = _pairs(hypotheses, references, lowercase, ignore_spaces)
    return _error_rate.lines("CER", "characters", pairs, _signature(lowercase, ignore_spaces))


def statistics(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    ignore_spaces: bool = False,
) -> list[tuple[int, int]]:
    """Return a row a line: edits, reference characters."""
    return _error_rate.statistics(_pairs(hypotheses, references, lowercase, ignore_spaces))


def from_sums(sums: Sequence[int], **_options: Any) -> float:
    """Return the character error rate."""
    return _error_rate.rate(int(sums[0]), int(sums[1]))


def _pairs(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    lowercase: bool,
    ignore_spaces: bool,
) -> Iterator[_error_rate.Pair]:
    for pair in zip(hypotheses, references[0], strict=True):
        hypothesis, reference = (line.lower() if lowercase else line for line in pair)
        if ignore_spaces:
            yield "".join(hypothesis.split()), "".join(reference.split())
        else:
            yield hypothesis.strip(), reference.strip()


def _signature(lowercase: bool, ignore_spaces: bool) -> str:
    case, spaces = "lc" if lowercase else "mixed", "no" if ignore_spaces else "yes"
    return f"case:{case}|tok:char|spaces:{spaces}|level:corpus"
