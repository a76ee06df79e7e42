"""chrF and chrF++: F-score of character (and word) n-grams, 0 … 100.

Popović 2015 and 2017; `--chrf-word-order 2` is chrF++. Each line uses the reference with its best
score. Score and signature are equal to those of sacrebleu 2.6.0.
"""

import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nlpkit.contracts.metric import Option, Score, Sums
from nlpkit.errors import UsageError
from nlpkit.score.counts.bleu_tokens import VERSION
from nlpkit.score.counts.summed import Row, SummedScore

OPTIONS = (
    Option("char_order", 6, "longest character n-grams", ("--chrf-char-order", "-cc"), int,
           metavar="N"),
    Option("word_order", 0, "longest word n-grams; 2 is chrF++", ("--chrf-word-order", "-cw"), int,
           metavar="N"),
    Option("beta", 2, "how much more recall counts than precision", ("--chrf-beta",), int,
           metavar="N"),
    Option("lowercase", False, "compare without case", ("--chrf-lowercase",), bool),
    Option("whitespace", False, "count white space as characters", ("--chrf-whitespace",), bool),
    Option("eps_smoothing", False, "smooth as chrF++.py, NLTK and Moses do",
           ("--chrf-eps-smoothing",), bool),
)  # fmt: skip
REFERENCES = (1, None)

_EPSILON = 1e-16


class Settings(NamedTuple):
    """The options, with their defaults."""

    char_order: int = 6
    word_order: int = 0
    beta: int = 2
    lowercase: bool = False
    whitespace: bool = False
    eps_smoothing: bool = False


def _settings(**options: Any) -> Settings:
    settings = Settings(**options)
    for (name, value), least in zip(settings._asdict().items(), (1, 0, 0), strict=False):
        if value < least:
            raise UsageError(f"chrF's {name} is {value}, must be {least} or more")
    return settings


def _row(line: str, references: Sequence[str], settings: Settings) -> Row:
    """Return for each order the n-grams of the line, of its best reference, and of both."""
    ours = list(_ngrams(line, settings))
    rows = []
    for reference in references:
        counts: list[int] = []
        for own, theirs in zip(ours, _ngrams(reference, settings), strict=True):
            shared = sum(min(count, theirs[gram]) for gram, count in own.items() if gram in theirs)
            # Without an n-gram in the reference, those of the line do not count.
            counts += [own.total() if theirs else 0, theirs.total(), shared]
        rows.append(tuple(counts))
    return max(rows, key=lambda row: _f_score(row, settings))


def _ngrams(line: str, settings: Settings) -> Iterator[Counter[str]]:
    line = line.lower() if settings.lowercase else line
    text = line if settings.whitespace else "".join(line.split())
    for n in range(1, settings.char_order + 1):
        yield Counter(text[i : i + n] for i in range(len(text) - n + 1))
    words = list(_words(line)) if settings.word_order else []
    for n in range(1, settings.word_order + 1):
        yield Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))


def _words(line: str) -> Iterator[str]:
    """Yield the words; a sign at the end of a word, or else at its beginning, is one of its own."""
    for word in line.split():
        if len(word) > 1 and word[-1] in string.punctuation:
            yield from (word[:-1], word[-1])
        elif len(word) > 1 and word[0] in string.punctuation:
            yield from (word[0], word[1:])
        else:
            yield word


def _f_score(sums: Sums, settings: Settings) -> float:
    """Return the score of summed counts, with the same order of operations as sacrebleu."""
    factor = settings.beta**2
    smoothed = precisions = recalls = 0.0
    orders = 0
    for ours, theirs, shared in zip(sums[::3], sums[1::3], sums[2::3], strict=True):
        precision = shared / ours if ours > 0 else _EPSILON
        recall = shared / theirs if theirs > 0 else _EPSILON
        divisor = factor * precision + recall
        smoothed += (1 + factor) * precision * recall / divisor if divisor > 0 else _EPSILON
        if ours > 0 and theirs > 0:
            precisions += precision
            recalls += recall
            orders += 1
    if settings.eps_smoothing:
        return 100 * smoothed / (settings.char_order + settings.word_order)
    precision, recall = precisions / (orders or 1), recalls / (orders or 1)
    if not precision + recall:
        return 0.0
    score = (1 + factor) * precision * recall
    score /= factor * precision + recall
    return 100 * score


def _result(sums: Sums, references: int, settings: Settings, is_line: bool) -> Score:
    case = "lc" if settings.lowercase else "mixed"
    effective = "no" if settings.eps_smoothing else "yes"
    space = "yes" if settings.whitespace else "no"
    signature = (
        f"nrefs:{references}|case:{case}|eff:{effective}|nc:{settings.char_order}|"
        f"nw:{settings.word_order}|space:{space}|version:{VERSION}"
    )
    name = f"chrF{settings.beta}{'+' * settings.word_order}"
    return Score(name, _f_score(sums, settings), signature, details={"sums": sums})


_CHRF = SummedScore(_settings, _row, _f_score, _result)
score, sentences = _CHRF.score, _CHRF.sentences
statistics, from_sums = _CHRF.statistics, _CHRF.from_sums
