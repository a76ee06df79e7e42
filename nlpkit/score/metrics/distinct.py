"""Distinct-n: distinct n-grams divided by all n-grams, a measure of diversity.

Li et al. 2016, "A diversity-promoting objective function for neural conversation models". 0...1,
without references. Longer texts have lower scores: compare outputs of the same size. `--level
corpus` counts over all lines together. `sentence` is the mean of the scores of the lines; a line
without an n-gram has score 0.
"""

from array import array
from collections.abc import Iterator, Sequence

from nlpkit.contracts.metric import Lines, Option, References, Score
from nlpkit.errors import DataError, UsageError
from nlpkit.plural import number_of
from nlpkit.score.counts.means import mean
from nlpkit.score.counts.words import TOKENIZERS, is_unspaced, list_ngrams

LEVELS = ("corpus", "sentence")
TOKENIZE = ("whitespace", "word", "unicode", "zh", "char")
REFERENCES = (0, 0)
OPTIONS = (
    Option("n", 2, "the length of the n-grams", type=int, metavar="N"),
    Option("level", "corpus", "over all lines together, or the mean of lines", choices=LEVELS),
    Option("tokenize", "whitespace",
           "whitespace: split at white space; word: a-z and 0-9; unicode: words of any script; zh: "
           "Chinese characters and other words; char: every character except white space",
           ("-tok",), choices=TOKENIZE),
)  # fmt: skip


def score(
    hypotheses: Lines,
    references: References = (),
    *,
    n: int = 2,
    level: str = "corpus",
    tokenize: str = "whitespace",
) -> Score:
    """Return distinct-n; raise `DataError` if no line has n tokens."""
    seen: set[tuple[str, ...]] = set()
    shares, total, short = array("d"), 0, 0
    for line in _lines(hypotheses, n, tokenize):
        seen.update(line)
        shares.append(_share(line))
        total += len(line)
        short += not line
    if not total:
        few = f"none of {number_of(len(shares), 'lines')} has {number_of(n, 'tokens')} ({tokenize})"
        raise DataError(f"distinct-{n} is undefined: {few}")
    distinct, by_line = len(seen), mean(shares)
    value = distinct / total if level == "corpus" else by_line
    unsplit = tokenize == "whitespace" and is_unspaced(hypotheses)
    warning = "the lines are written without spaces, so each line is one token: use --tokenize zh"
    details = {
        "corpus": distinct / total,
        "sentence": by_line,
        "distinct": distinct,
        "ngrams": total,
        "lines": len(shares),
        "lines_without_ngram": short,
        "warnings": [warning] if unsplit else [],
    }
    verbose = (
        f"{distinct} of {total}, {short} of {number_of(len(shares), 'lines')} without an n-gram"
    )
    signature = _signature(level, tokenize)
    return Score(f"distinct-{n}", value, signature, verbose, details, percent=False)


def sentences(
    hypotheses: Lines,
    references: References = (),
    *,
    n: int = 2,
    level: str = "corpus",
    tokenize: str = "whitespace",
) -> Iterator[Score]:
    """Yield the score of each line, 0 if it has no n-gram."""
    signature = _signature("sentence", tokenize)
    for line in _lines(hypotheses, n, tokenize):
        verbose = f"{len(set(line))} of {len(line)}"
        yield Score(f"distinct-{n}", _share(line), signature, verbose, percent=False)


def _lines(hypotheses: Lines, n: int, tokenize: str) -> Iterator[list[tuple[str, ...]]]:
    if n < 1:
        raise UsageError(f"n is {n}; it must be 1 or more")
    split = TOKENIZERS[tokenize]
    return (list_ngrams(split(line), n) for line in hypotheses)


def _share(line: Sequence[tuple[str, ...]]) -> float:
    return len(set(line)) / len(line) if line else 0.0


def _signature(level: str, tokenize: str) -> str:
    case = "mixed" if tokenize in ("char", "whitespace") else "lc"
    return f"level:{level}|tok:{tokenize}|case:{case}"
