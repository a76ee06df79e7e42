"""Word error rate: edits that turn the reference into the hypothesis, by words of the reference.

Levenshtein distance over words between white space, corpus level: all edits by all reference
words, so above 1 where much is inserted. As `jiwer.process_words`, the kinds of edit too, but that
a tab or U+3000 separates words here; jiwer splits at the space (U+0020) alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _error_rate
from nlpkit.score.metrics._text_units import is_unspaced

REFERENCES = (1, 1)
LOWER_IS_BETTER = True
OPTIONS = (Option("lowercase", False, "compare in lower case", ("-lc",), type=bool),)


def score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> Score:
    """Return edits by reference words; raise `DataError` if the references have no word."""
    pairs = _pairs(hypotheses, references, lowercase)
    result = _error_rate.corpus("WER", "words", pairs, _signature(lowercase))
    if is_unspaced(references[0]):
        result.details["warnings"].append(
            "the references are written without spaces, so a line is a word: use cer"
        )
    return result


def sentences(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> Iterator[Score]:
    """Yield each line's edits by its reference words."""
    pairs = _pairs(hypotheses, references, lowercase)
    return _error_rate.lines("WER", "words", pairs, _signature(lowercase))


def statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> list[tuple[int, int]]:
    """Return a row a line: edits, reference words."""
    return _error_rate.statistics(_pairs(hypotheses, references, lowercase))


def from_sums(sums: Sequence[int], **_options: Any) -> float:
    """Return the word error rate."""
    return _error_rate.rate(int(sums[0]), int(sums[1]))


def _pairs(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool
) -> Iterator[_error_rate.Pair]:
    for hypothesis, reference in zip(hypotheses, references[0], strict=True):
        if lowercase:
            hypothesis, reference = hypothesis.lower(), reference.lower()
        yield hypothesis.split(), reference.split()


def _signature(lowercase: bool) -> str:
    return f"case:{'lc' if lowercase else 'mixed'}|tok:whitespace|level:corpus"
