"""TER: edits and shifts of word runs per reference word, in per cent, by sacrebleu.

Translation edit rate (Snover et al. 2006). 0 is best; the score can be above 100.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _sacrebleu
from nlpkit.score.metrics._references import References

OPTIONS = (
    Option("case_sensitive", False, "compare with case", ("--ter-case-sensitive",), bool),
    Option(
        "asian_support",
        False,
        "split Chinese and Japanese characters; only with the two options below",
        ("--ter-asian-support",),
        bool,
    ),
    Option("no_punct", False, "remove punctuation", ("--ter-no-punct",), bool),
    Option("normalized", False, "separate punctuation from words", ("--ter-normalized",), bool),
)
REFERENCES = (1, None)
LOWER_IS_BETTER = True


def score(hypotheses: Sequence[str], references: References, **options: Any) -> Score:
    """Return TER of the corpus: fewest edits divided by the mean length of the references."""
    return _sacrebleu.corpus_score(_metric(options), hypotheses, references)


def sentences(hypotheses: Sequence[str], references: References, **options: Any) -> Iterator[Score]:
    """Yield TER of each line."""
    return _sacrebleu.sentence_scores(_metric(options), hypotheses, references)


def statistics(
    hypotheses: Sequence[str], references: References, **options: Any
) -> Iterator[_sacrebleu.Row]:
    """Yield the fewest edits of each line and the mean length of its references."""
    return _sacrebleu.rows(_metric(options), hypotheses, references)


def from_sums(sums: Sequence[float], **options: Any) -> float:
    """Return TER computed from the sums of the rows of `statistics`."""
    return _sacrebleu.score_of_sums(_metric(options), sums)


def _metric(options: dict[str, Any]) -> Any:
    return _sacrebleu.imported("TER").TER(**options)
