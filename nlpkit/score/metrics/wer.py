"""Word error rate: edits from reference to hypothesis, divided by reference words.

Levenshtein distance over words between white space, at corpus level: the sum of edits is divided by
the sum of reference words. It is above 1 if there are many insertions. Score and kinds of edits are
those of `jiwer.process_words`. Differs from jiwer: a tab or U+3000 also separates words.
"""

from nlpkit.contracts.metric import Lines, Option, References, Score
from nlpkit.score.counts.error_rate import make_error_rate
from nlpkit.score.counts.words import is_unspaced

LOWER_IS_BETTER = True
OPTIONS = (Option("lowercase", False, "compare in lower case", ("-lc",), type=bool),)


def _tokens(line: str, *, lowercase: bool = False) -> list[str]:
    return (line.lower() if lowercase else line).split()


def _signature(*, lowercase: bool = False) -> str:
    return f"case:{'lc' if lowercase else 'mixed'}|tok:whitespace|level:corpus"


_RATE = make_error_rate("WER", "words", _tokens, _signature)
sentences, statistics, from_sums = _RATE.sentences, _RATE.statistics, _RATE.from_sums


def score(hypotheses: Lines, references: References, *, lowercase: bool = False) -> Score:
    """Return edits divided by reference words; raise `DataError` if there is no reference word."""
    result = _RATE.score(hypotheses, references, lowercase=lowercase)
    if is_unspaced(references[0]):
        result.details["warnings"].append(
            "the references are written without spaces, so each line is one word: use cer"
        )
    return result
