"""Surprisal, -log p in nats, of each sentence, word, token and character, as a tsv file.

A word stands between white space, with its punctuation, as in reading-time corpora; Chinese is cut
by jieba. A token belongs to the word in which its first character that is no white space lies, so
the words of a sentence sum to it. A token shares its surprisal evenly among its characters; the
pieces of one character add up. What the model does not score (the first token where texts have no
begin token, unknown tokens that were left out) has an empty cell.
Imports no torch.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nlpkit.data.token_flags import is_chinese, word_starts
from nlpkit.disk import whole_file
from nlpkit.json_types import JsonObject
from nlpkit.runs.pairs import Scores, Sentence
from nlpkit.text_table import ESCAPES, aligned

if TYPE_CHECKING:
    from nlpkit.runs.likelihood import Encoded

COLUMNS = ("sentence", "unit", "index", "start", "stop", "text", "surprisal")
# (unit, start, stop, surprisal); start and stop are characters of the sentence.
Row = tuple[str, int, int, float]


def write(path: Path, sentences: Sequence[Sentence], scores: Scores) -> JsonObject:
    """Write the rows of all sentences; return the means by unit, in nats; raise `FileError`."""
    sums = dict.fromkeys(("sentence", "word", "token", "character"), 0.0)
    counts = dict.fromkeys(sums, 0)
    with whole_file(path) as file:
        file.write("\t".join(COLUMNS) + "\n")
        for sentence, text, values in zip(sentences, scores.encoded, scores.log_probs, strict=True):
            number = dict.fromkeys(sums, 0)
            for unit, start, stop, value in compute_rows(sentence.text, text, -values):
                number[unit] += 1
                known = math.isfinite(value)
                sums[unit] += value if known else 0.0
                counts[unit] += known
                cells = [sentence.place, unit, str(number[unit]), str(start), str(stop),
                         sentence.text[start:stop], repr(value) if known else ""]  # fmt: skip
                file.write("\t".join(cell.translate(ESCAPES) for cell in cells) + "\n")
    return {
        unit: {"count": counts[unit], "mean": sums[unit] / counts[unit] if counts[unit] else None}
        for unit in sums
    }


def compute_rows(text: str, encoded: "Encoded", surprisal: np.ndarray) -> Iterator[Row]:
    """Yield the rows of a sentence: itself, its words, its tokens (T,), its characters."""
    yield "sentence", 0, len(text), _sum_known(surprisal)
    starts = _find_words(text)
    owner = np.array([_find_word(text, starts, each) for each in encoded.offsets], np.int64)
    for number, start in enumerate(starts):
        stop = starts[number + 1] if number + 1 < len(starts) else len(text)
        stop = start + len(text[start:stop].rstrip())
        yield "word", start, stop, _sum_known(surprisal[owner == number])
    for (start, stop), value in zip(encoded.offsets, surprisal.tolist(), strict=True):
        yield "token", start, stop, value
    characters = np.full(len(text), np.nan)
    for (start, stop), value in zip(encoded.offsets, surprisal, strict=True):
        first = min(start, len(text) - 1)
        own = slice(first, max(stop, first + 1))
        part = characters[own]
        characters[own] = np.where(np.isnan(part), 0.0, part) + value / len(part)
    for index, value in enumerate(characters.tolist()):
        yield "character", index, index + 1, value


def _sum_known(values: np.ndarray) -> float:
    """Return the sum of the values that are known; NaN if none is."""
    known = values[~np.isnan(values)]
    return math.fsum(known.tolist()) if len(known) else math.nan


def _find_words(text: str) -> list[int]:
    """Return the first character of each word: behind white space, or where jieba cuts."""
    return [
        start
        for start in word_starts(text)
        if not start
        or text[start - 1].isspace()
        or is_chinese(text[start])
        or is_chinese(text[start - 1])
    ]


def _find_word(text: str, starts: Sequence[int], characters: tuple[int, int]) -> int:
    start, stop = characters
    while start < stop and text[start].isspace():
        start += 1
    return max(int(np.searchsorted(starts, start, side="right")) - 1, 0)


def format_table(means: JsonObject) -> str:
    """Return a line for each unit: name, number, mean."""
    rows = [["unit", "count", "mean surprisal"]] + [
        [unit, str(row["count"]), "undefined" if row["mean"] is None else f"{row['mean']:.4f}"]
        for unit, row in means.items()
    ]
    return "\n".join(aligned(rows))
