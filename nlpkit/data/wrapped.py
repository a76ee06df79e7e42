"""Finds text whose lines a program has wrapped, of which a line is no document.

A program fills lines: a line ends where its next word would not have fitted. Of lines that are
documents, few end at such a width; so lists, verses and sentences are told from wrapped text.
"""

import unicodedata
from collections.abc import Sequence
from itertools import islice, pairwise

from nlpkit.contracts.reader import TextFile
from nlpkit.data.lines import lines

_SAMPLE = 5000  # lines
_FEWEST = 20  # lines within paragraphs, of the sample
_WIDTHS = range(40, 201)  # columns; verses are narrower
# The share of the lines within paragraphs that end where the next word does not fit: 14 licenses,
# some wrapped by hand, have 0.54 to 0.96; 27 corpora of a text or a sentence a line have at most
# 0.13, plays in verse 0.22 (2026-11-26).
_FULL = 0.4
_WITHIN = 0.5  # share that end within a sentence
_ENDS = (*".!?:;。！？：；…", '."', '!"', '?"', ".”", "!”", "?”", "。”", "！”", "？”", "」", "』")


def describe(file: TextFile) -> list[str]:
    """Return a warning if the lines of a file of text are wrapped, and empty lines divide it.

    The lines of the whole file are counted then.

    Raises:
        DataError, FileError: as for `lines`.
    """
    sample = [raw.decode(errors="replace").rstrip() for raw in islice(lines(file), _SAMPLE)]
    width = find_width(sample)
    if width is None:
        return []
    documents = paragraphs = 0
    is_inside = False
    for raw in lines(file):
        is_text = bool(raw.strip())
        documents += is_text
        paragraphs += is_text and not is_inside
        is_inside = is_text
    return [
        f"{file.name}: its text is wrapped at {width} columns, and each of its {documents:,} lines "
        f"is a document; data.format: paragraphs makes the {paragraphs:,} texts between empty "
        "lines the documents"
    ]


def find_width(sample: Sequence[str]) -> int | None:
    """Return the columns at which these lines are wrapped; None if they are not."""
    pairs = [(line, after) for line, after in pairwise(sample) if line]
    if len(pairs) == len(sample) - 1:  # no empty line divides the text
        return None
    inside = [(line, after.split()[0]) for line, after in pairs if after]
    if len(inside) < _FEWEST:
        return None
    widths = sorted(_columns(line) for line, _ in inside)
    width = widths[int(0.95 * len(widths))]
    if width not in _WIDTHS:
        return None
    full = sum(_columns(line) + _needed(word) > width for line, word in inside)
    within = sum(not line.endswith(_ENDS) for line, _ in inside)
    is_wrapped = full >= _FULL * len(inside) and within >= _WITHIN * len(inside)
    return width if is_wrapped else None


def _needed(word: str) -> int:
    """Return the columns that a line needs to take the next word; Chinese is cut anywhere."""
    return 2 if _is_wide(word[0]) else 1 + _columns(word)


def _columns(text: str) -> int:
    return len(text) + sum(map(_is_wide, text))


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
