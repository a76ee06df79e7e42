"""What needs no model: the commonest answer, and words that are counted. Imports no torch.

Where all rows have the same answers, words and pairs of words vote for them by naive Bayes
(Wang & Manning 2012, sec. 2.2: what a text has counts once). Where each row has its own answers,
the one is chosen that shares the most with the row's text, rare words counting more. A Chinese
character is a word.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from nlpkit.evaluate.prompts import PromptRow

_WORD = re.compile(r"[㐀-鿿]|[^\W㐀-鿿]+")


def choose_commonest(train: Sequence[PromptRow], rows: Sequence[PromptRow]) -> list[str]:
    """Return, for each row, the answer that most training rows have."""
    (answer, _), *_ = Counter(row.label for row in train).most_common(1)
    return [answer] * len(rows)


def count_words(train: Sequence[PromptRow], rows: Sequence[PromptRow]) -> list[str]:
    """Return, for each row, the name of the answer that its words choose."""
    if len({row.answers for row in train}) > 1:
        return _choose_overlap(train, rows)
    return _choose_class(train, rows)


def _find_parts(text: str) -> set[str]:
    """Return words and pairs of neighbours, and how many words are there more than once."""
    words = _WORD.findall(text.lower())
    pairs = {f"{one} {two}" for one, two in pairwise(words)}
    return {*words, *pairs, f"{len(words) - len({*words})} again"}


def _choose_class(train: Sequence[PromptRow], rows: Sequence[PromptRow]) -> list[str]:
    counts: dict[str, Counter[str]] = {name: Counter() for name in train[0].names}
    rows_of = Counter(row.label for row in train)
    for row in train:
        counts[row.label].update(_find_parts(row.prompt))
    known = set().union(*counts.values())
    # Laplace: each part is counted once more in each class.
    totals = {name: math.log(found.total() + len(known)) for name, found in counts.items()}

    def score(name: str, parts: set[str]) -> float:
        prior = math.log((rows_of[name] + 1) / len(train))
        return prior + sum(math.log(counts[name][part] + 1) - totals[name] for part in parts)

    found = []
    for row in rows:
        parts = _find_parts(row.prompt) & known
        found.append(max(counts, key=lambda name, parts=parts: score(name, parts)))  # type: ignore[misc]
    return found


def _choose_overlap(train: Sequence[PromptRow], rows: Sequence[PromptRow]) -> list[str]:
    texts = Counter(part for row in train for part in _find_parts(row.prompt))
    found = []
    for row in rows:
        prompt = _find_parts(row.prompt)
        shared = [
            sum(
                math.log((len(train) + 1) / (texts[part] + 1))
                for part in _find_parts(each) & prompt
            )
            for each in row.answers
        ]
        found.append(row.names[shared.index(max(shared))])
    return found
