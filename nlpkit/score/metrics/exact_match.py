"""Exact match: the share of lines that equal a reference answer.

0...1. If there are several references, one must match. `--normalize squad` is the rule of the SQuAD
v1.1 script (Rajpurkar et al. 2016); `cmrc` is the rule of CMRC 2018. Both scripts print 100 times
this score.
"""

from nlpkit.contracts.metric import Lines, Option, References, Score
from nlpkit.score.counts import means
from nlpkit.score.counts.answers import NORMALIZERS, pair_answers

NORMALIZE = ("none", "squad", "cmrc")
REFERENCES = (1, None)
OPTIONS = (
    Option("normalize", "none",
           "none: only without white space around a line; squad: lower case, without ASCII "
           "punctuation and a, an, the; cmrc: lower case, without Chinese punctuation",
           choices=NORMALIZE),
)  # fmt: skip


def score(hypotheses: Lines, references: References, *, normalize: str = "none") -> Score:
    """Return the share of lines that match."""
    matches = _matches(hypotheses, references, normalize=normalize)
    value = means.mean(matches)
    details = {"matches": sum(matches), "lines": len(matches)}
    verbose = f"{sum(matches)} of {len(matches)} match"
    signature = _signature(len(references), normalize=normalize)
    return Score("EM", value, signature, verbose, details, percent=False)


def _matches(hypotheses: Lines, references: References, *, normalize: str = "none") -> list[int]:
    normalized = NORMALIZERS[normalize]
    return [
        int(normalized(hypothesis) in map(normalized, answers))
        for hypothesis, answers in pair_answers(hypotheses, references)
    ]


def _signature(references: int, *, normalize: str = "none") -> str:
    return f"nrefs:{references}|norm:{normalize}|multi:any"


_MEAN = means.LineMean("EM", _matches, _signature)
sentences, statistics, from_sums = _MEAN.sentences, _MEAN.statistics, _MEAN.from_sums
