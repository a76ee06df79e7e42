"""ROUGE-1, ROUGE-2 and ROUGE-L: words or Chinese characters in common with a reference summary.

Lin 2004, "ROUGE: a package for automatic evaluation of summaries"; equal to the package
`rouge_score` without stemming. If a line has several references, the best F-measure counts, as in
`score_multi` of that package. The score is the mean over lines, 0...1. An empty reference counts
only if all references of the line are empty.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from nlpkit.contracts.metric import Lines, Option, References, Score
from nlpkit.json_types import JsonObject
from nlpkit.score.counts import means
from nlpkit.score.counts.edits import lcs_length
from nlpkit.score.counts.words import TOKENIZERS, count_dropped_letters, list_ngrams

VARIANTS = ("rouge1", "rouge2", "rougeL")
TOKENIZE = ("word", "unicode", "zh", "char", "whitespace")
REFERENCES = (1, None)
OPTIONS = (
    Option("variant", "rougeL", "the score", choices=VARIANTS),
    Option("tokenize", "word",
           "word: only a-z and 0-9, as rouge_score; unicode: words of any script; "
           "zh: Chinese characters and other words, without punctuation; "
           "char: every character except white space; whitespace: split at white space",
           ("-tok",), choices=TOKENIZE),
)  # fmt: skip
_TITLES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
Tokens = Sequence[str]

# A smaller share of removed letters comes from names and loan words in an English text.
_WARN_SHARE = 0.01


class _Part(NamedTuple):
    precision: float
    recall: float
    f: float


def score(
    hypotheses: Lines, references: References, *, variant: str = "rougeL", tokenize: str = "word"
) -> Score:
    """Return the mean F-measure of `variant`; `details` has all three, precision and recall."""
    columns = {v: [array("d") for _ in _Part._fields] for v in VARIANTS}
    lines = empty = 0
    for hypothesis, answers in _tokens(hypotheses, references, tokenize):
        lines += 1
        empty += not any(answers)
        for name, parts in columns.items():
            for column, value in zip(parts, _best(hypothesis, answers, name), strict=True):
                column.append(value)
    details: JsonObject = {
        name: _Part(*map(means.mean, parts))._asdict() for name, parts in columns.items()
    }
    details["lines"] = lines
    details["warnings"] = list(_warnings(references, tokenize, lines, empty))
    chosen = _Part(**details[variant])
    others = " ".join(f"{_TITLES[v]} {details[v]['f']:.4f}" for v in VARIANTS if v != variant)
    verbose = f"P {chosen.precision:.4f} R {chosen.recall:.4f} {others}"
    signature = _signature(len(references), tokenize)
    return Score(_TITLES[variant], chosen.f, signature, verbose, details, percent=False)


def sentences(
    hypotheses: Lines, references: References, *, variant: str = "rougeL", tokenize: str = "word"
) -> Iterator[Score]:
    """Yield the F-measure of `variant` of each line."""
    signature = _signature(len(references), tokenize)
    for hypothesis, answers in _tokens(hypotheses, references, tokenize):
        part = _best(hypothesis, answers, variant)
        verbose = f"P {part.precision:.4f} R {part.recall:.4f}"
        details = part._asdict()
        yield Score(_TITLES[variant], part.f, signature, verbose, details, percent=False)


_MEAN = means.LineMean("ROUGE", lambda *of, **more: [line.score for line in sentences(*of, **more)])
statistics, from_sums = _MEAN.statistics, _MEAN.from_sums


def _tokens(
    hypotheses: Lines, references: References, tokenize: str
) -> Iterator[tuple[Tokens, list[Tokens]]]:
    split = TOKENIZERS[tokenize]
    for hypothesis, *answers in zip(hypotheses, *references, strict=True):
        yield split(hypothesis), [split(answer) for answer in answers]


def _best(hypothesis: Tokens, answers: list[Tokens], variant: str) -> _Part:
    return max((_measure(hypothesis, each, variant) for each in answers), key=lambda part: part.f)


def _measure(hypothesis: Tokens, reference: Tokens, variant: str) -> _Part:
    if variant == "rougeL":
        return _part(lcs_length(reference, hypothesis), len(hypothesis), len(reference))
    n = int(variant[-1])
    ours, theirs = Counter(list_ngrams(hypothesis, n)), Counter(list_ngrams(reference, n))
    shared = sum(min(count, theirs[gram]) for gram, count in ours.items() if gram in theirs)
    return _part(shared, ours.total(), theirs.total())


def _part(shared: int, ours: int, theirs: int) -> _Part:
    if not shared:
        return _Part(0.0, 0.0, 0.0)
    precision, recall = shared / ours, shared / theirs
    # The order of operations is that of rouge_score, so that the results are equal.
    return _Part(precision, recall, 2 * precision * recall / (precision + recall))


def _signature(references: int, tokenize: str) -> str:
    case = "mixed" if tokenize in ("char", "whitespace") else "lc"
    return f"nrefs:{references}|case:{case}|tok:{tokenize}|stem:no|multi:max|mean:lines"


def _warnings(references: References, tokenize: str, lines: int, empty: int) -> Iterator[str]:
    read = references if tokenize == "word" else ()
    dropped, total = count_dropped_letters(chain.from_iterable(read))
    if dropped > _WARN_SHARE * total:
        yield (
            f"--tokenize word drops {dropped} of {total} letters of the references (all but a-z "
            "and 0-9): --tokenize zh for Chinese, unicode for other scripts"
        )
    if empty:
        yield f"{empty} of {lines} lines score 0 because their references have no token"
