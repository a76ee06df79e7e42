"""chrF and chrF++: F-score of character (and word) n-grams, 0 … 100, by sacrebleu.

Popović 2015 and 2017; `--chrf-word-order 2` is chrF++. sacrebleu counts the n-grams and computes
the score. It gets one line at a time, which needs less memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nlpkit.errors import UsageError
from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _sacrebleu
from nlpkit.score.metrics._references import References

OPTIONS = (
    Option(
        "char_order",
        6,
        "longest character n-grams",
        ("--chrf-char-order", "-cc"),
        int,
        metavar="N",
    ),
    Option(
        "word_order",
        0,
        "longest word n-grams; 2 is chrF++",
        ("--chrf-word-order", "-cw"),
        int,
        metavar="N",
    ),
    Option(
        "beta", 2, "how much more recall counts than precision", ("--chrf-beta",), int, metavar="N"
    ),
    Option("lowercase", False, "compare without case", ("--chrf-lowercase",), bool),
    Option("whitespace", False, "count white space as characters", ("--chrf-whitespace",), bool),
    Option(
        "eps_smoothing",
        False,
        "smooth as chrF++.py, NLTK and Moses do",
        ("--chrf-eps-smoothing",),
        bool,
    ),
)
REFERENCES = (1, None)


def score(hypotheses: Sequence[str], references: References, **options: Any) -> Score:
    """Return chrF of the corpus, 0 … 100; each line uses the reference with its best score."""
    return _sacrebleu.corpus_score(_metric(options), hypotheses, references)


def sentences(hypotheses: Sequence[str], references: References, **options: Any) -> Iterator[Score]:
    """Yield chrF of each line, 0 … 100."""
    return _sacrebleu.sentence_scores(_metric(options), hypotheses, references)


def statistics(
    hypotheses: Sequence[str], references: References, **options: Any
) -> Iterator[_sacrebleu.Row]:
    """Yield for each line and order the n-grams of the hypothesis, the reference, and both."""
    return _sacrebleu.rows(_metric(options), hypotheses, references)


def from_sums(sums: Sequence[float], **options: Any) -> float:
    """Return chrF computed from the sums of the rows of `statistics`."""
    return _sacrebleu.score_of_sums(_metric(options), sums)


def _metric(options: dict[str, Any]) -> Any:
    metric = _sacrebleu.imported("chrF").CHRF(**options)
    for name, least in (("char_order", 1), ("word_order", 0), ("beta", 0)):
        if getattr(metric, name) < least:
            raise UsageError(f"chrF's {name} is {getattr(metric, name)}, must be {least} or more")
    return metric
