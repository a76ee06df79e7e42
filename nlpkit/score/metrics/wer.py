"""Word error rate: edits that turn the reference into the hypothesis, by words of the reference.

Levenshtein distance over words between white space, corpus level: all edits by all reference
words, so above 1 where much is inserted. As `jiwer.process_words`, the kinds of edit too, but that
a tab or U+3000 separates words here; jiwer splits at the space (U+0020) alone.
"""

from collections.abc import Sequence

from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics._error_rate import ErrorRate
from nlpkit.score.metrics._text_units import is_unspaced

REFERENCES = (1, 1)
LOWER_IS_BETTER = True
OPTIONS = (Option("lowercase", False, "compare in lower case", ("-lc",), type=bool),)


def _tokens(line: str, *, lowercase: bool = False) -> list[str]:
    return (line.lower() if lowercase else line).split()


def _signature(*, lowercase: bool = False) -> str:
    return f"case:{'lc' if lowercase else 'mixed'}|tok:whitespace|level:corpus"


_RATE = ErrorRate("WER", "words", _tokens, _signature)
sentences, statistics, from_sums = _RATE.sentences, _RATE.statistics, _RATE.from_sums


def score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> Score:
    """Return edits by reference words; raise `DataError` if the references have no word."""
    result = _RATE.score(hypotheses, references, lowercase=lowercase)
    if is_unspaced(references[0]):
        result.details["warnings"].append(
            "the references are written without spaces, so a line is a word: use cer"
        )
    return result
