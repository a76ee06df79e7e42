"""Marks: a byte beside each token of a store, for what is in the text and not in the ids.

An objective names the marks that it needs; each is a bit of the byte. They are made from the text,
since the ids do not tell where a sentence ends if the tokenizer drops white space.

T tokens of a text.
"""

from collections.abc import Iterable

import numpy as np

from nlpkit.contracts.batch import bit
from nlpkit.data.sentences import sentence_starts
from nlpkit.data.words import word_starts


def mark_tokens(
    text: str,
    offsets: list[tuple[int, int]],
    names: Iterable[str],
    is_second: bool,
    by_line: bool = False,
) -> np.ndarray:
    """Return the marks (T,) uint8 of the tokens of `text` that stand at `offsets`.

    With `by_line` each line is a sentence.
    """
    marks = np.zeros(len(offsets), np.uint8)
    stops = np.maximum.accumulate(np.array([stop for _, stop in offsets], np.int64))
    for name in names:
        if name == "second_side":
            marks |= bit(name) * is_second
            continue
        is_sentence = name == "sentence_start"
        starts = sentence_starts(text, by_line) if is_sentence else word_starts(text)
        # A token may begin with the space before: the first that ends behind the character.
        first = np.searchsorted(stops, starts, side="right")
        marks[first[first < len(marks)]] |= bit(name)
    return marks
