"""The text around blanks, shortened where it is too long.

T tokens of text, M of blanks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nlpkit.plural import number_of


def laid_out(
    parts: Sequence[Sequence[int]], blanks: Sequence[int], max_tokens: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the text (T,), where blanks are among text and blanks (T + M,), and what is cut.

    `parts` are the texts before, between and after the blanks, `blanks` their numbers of tokens. If
    both have more than `max_tokens`, the text loses its start, up to the first blank, then its end.

    Raises:
        ValueError: the text from the first blank to the last is too long.
    """
    first, *between, last = (list(part) for part in parts)
    size = sum(map(len, parts)) + sum(blanks)
    before = min(max(size - max_tokens, 0), len(first))
    after = max(size - before - max_tokens, 0)
    if after > len(last):
        inside = size - len(first) - len(last)
        raise ValueError(
            f"{number_of(inside, 'tokens')} from the first blank to the last; at most "
            f"{max_tokens} fit"
        )
    pieces = [first[before:], *between, last[: len(last) - after]]
    is_blank = [np.zeros(len(pieces[0]), np.bool_)]
    for blank, piece in zip(blanks, pieces[1:], strict=True):
        is_blank += [np.ones(blank, np.bool_), np.zeros(len(piece), np.bool_)]
    text = np.concatenate([np.asarray(piece, np.int64) for piece in pieces])
    return text, np.concatenate(is_blank), before + after
