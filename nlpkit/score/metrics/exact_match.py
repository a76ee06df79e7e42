"""Exact match: the share of lines that equal a reference answer.

0...1. If there are several references, one must match. `--normalize squad` is the rule of the SQuAD
v1.1 script (Rajpurkar et al. 2016); `cmrc` is the rule of CMRC 2018. Both scripts print 100 times
this score.
"""

from collections.abc import Iterator, Sequence

from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _means
from nlpkit.score.metrics._answers import NORMALIZERS, with_answers

NORMALIZE = ("none", "squad", "cmrc")
REFERENCES = (1, None)
OPTIONS = (
    Option(
        "normalize",
        "none",
        "none: only without white space around a line; squad: lower case, without ASCII "
        "punctuation and a, an, the; cmrc: lower case, without Chinese punctuation",
        choices=NORMALIZE,
    ),
)


def score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, normalize: str = "none"
) -> Score:
    """Return the share of lines that match."""
    matches = _matches(hypotheses, references, normalize)
    value = _means.mean(matches)
    details = {"matches": sum(matches), "lines": len(matches)}
    verbose = f"{sum(matches)} of {len(matches)} match"
    return Score("EM", value, _signature(references, normalize), verbose, details, percent=False)


def sentences(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, normalize: str = "none"
) -> Iterator[Score]:
    """Yield 1 for a line that matches, else 0."""
    signature = _signature(references, normalize)
    for match in _matches(hypotheses, references, normalize):
        yield Score("EM", float(match), signature, percent=False)


def statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, normalize: str = "none"
) -> list[tuple[int, int]]:
    """Return for each line a row: 1 if it matches, else 0; and 1."""
    return [(match, 1) for match in _matches(hypotheses, references, normalize)]


def from_sums(sums: Sequence[int], **_options: object) -> float:
    """Return the share of lines that match."""
    return int(sums[0]) / int(sums[1])


def _matches(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], normalize: str
) -> list[int]:
    normalized = NORMALIZERS[normalize]
    return [
        int(normalized(hypothesis) in map(normalized, answers))
        for hypothesis, answers in with_answers(hypotheses, references)
    ]


def _signature(references: Sequence[Sequence[str]], normalize: str) -> str:
    return f"nrefs:{len(references)}|norm:{normalize}|multi:any"
