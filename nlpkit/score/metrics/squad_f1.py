"""Answer F1 of question answering: words in common (SQuAD), or Chinese characters (CMRC).

0...1: the mean over lines of the best F1 over the references of a line. `squad` is the rule of the
SQuAD v1.1 script (Rajpurkar et al. 2016): words in common after normalisation. `cmrc` is the rule
of CMRC 2018: the longest run of characters in common. Differs from CMRC 2018: Latin words are split
at signs, not by nltk. Both scripts print 100 times this score.
"""

from collections import Counter
from collections.abc import Iterator

from nlpkit.contracts.metric import Lines, Option, References, Score
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.score.counts import means
from nlpkit.score.counts.answers import SPLITTERS, pair_answers
from nlpkit.score.counts.edits import longest_run
from nlpkit.score.counts.words import is_unspaced

REFERENCES = (1, None)
OPTIONS = (
    Option("normalize", "squad",
           "squad: words, without case, ASCII punctuation and a, an, the; cmrc: Chinese "
           "characters, without punctuation, in one run", choices=tuple(SPLITTERS)),
    Option("no_answer", False,
           "an empty answer is right where the reference is empty, as in SQuAD 2.0", type=bool),
)  # fmt: skip


def score(
    hypotheses: Lines, references: References, *, normalize: str = "squad", no_answer: bool = False
) -> Score:
    """Return the mean F1 of the lines."""
    options: JsonObject = {"normalize": normalize, "no_answer": no_answer}
    values = list(_values(hypotheses, references, **options))
    details: JsonObject = {"lines": len(values), "lines_with_0": values.count(0.0)}
    details["warnings"] = []
    if normalize == "squad" and is_unspaced(references[0]):
        details["warnings"].append(
            "the references are written without spaces, so a line is one word: use --normalize cmrc"
        )
    signature = _signature(len(references), **options)
    verbose = f"{number_of(len(values), 'lines')}, {details['lines_with_0']} with 0"
    return Score("answer-F1", means.mean(values), signature, verbose, details, percent=False)


def _values(
    hypotheses: Lines, references: References, *, normalize: str = "squad", no_answer: bool = False
) -> Iterator[float]:
    for hypothesis, answers in pair_answers(hypotheses, references):
        ours, *right = map(SPLITTERS[normalize], (hypothesis, *answers))
        # SQuAD 2.0: where either side has no word, the two must be equal; an answer without a word
        # counts only if all of them have none.
        unanswered = no_answer and not ours and not any(right)
        in_a_row = normalize == "cmrc"
        yield 1.0 if unanswered else max(_f1(ours, theirs, in_a_row) for theirs in right)


def _f1(ours: list[str], theirs: list[str], in_a_row: bool) -> float:
    """Return the F1 of the words that both have, or of those that both have in a row."""
    both = longest_run(theirs, ours) if in_a_row else (Counter(ours) & Counter(theirs)).total()
    return 2 * both / (len(ours) + len(theirs)) if both else 0.0


def _signature(references: int, *, normalize: str = "squad", no_answer: bool = False) -> str:
    empty = "|empty:right" if no_answer else ""
    return f"nrefs:{references}|norm:{normalize}{empty}|multi:max|mean:lines"


_MEAN = means.LineMean("answer-F1", _values, _signature)
sentences, statistics, from_sums = _MEAN.sentences, _MEAN.statistics, _MEAN.from_sums
