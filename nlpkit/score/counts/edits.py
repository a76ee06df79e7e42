"""Longest common subsequence and Levenshtein distance, bit-parallel on Python's integers.

A row of the dynamic programming table is one integer, and one step is a few operations on integers
(Hyyrö 2004, "Bit-parallel LCS-length computation revisited"; Hyyrö 2003, "A bit-vector
algorithm for computing Levenshtein and Damerau edit distances").
"""

from collections.abc import Hashable, Sequence
from math import isqrt
from typing import NamedTuple


class Edits(NamedTuple):
    """The numbers of operations that turn a reference into a hypothesis."""

    hits: int
    substitutions: int
    deletions: int
    insertions: int

    @property
    def distance(self) -> int:
        """The Levenshtein distance."""
        return self.substitutions + self.deletions + self.insertions


def _index_tokens(tokens: Sequence[Hashable]) -> dict[Hashable, int]:
    """Return for each token an integer; its bit i is 1 if the token is at index i."""
    positions: dict[Hashable, int] = {}
    for i, token in enumerate(tokens):
        positions[token] = positions.get(token, 0) | 1 << i
    return positions


def lcs_length(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence."""
    positions, full = _index_tokens(a), (1 << len(a)) - 1
    row = full
    for token in b:
        bits = positions.get(token)
        if bits:
            both = row & bits
            row = ((row + both) | (row - both)) & full
    return len(a) - row.bit_count()


def longest_run(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the length of the longest run of tokens that occurs in both without a gap."""
    positions, row, longest = _index_tokens(a), {0: 0}, 0
    for token in b:
        # row[e]: the length of the common run that ends before e in a and at this token in b.
        row = {e + 1: row.get(e, 0) + 1 for e in _list_bits(positions.get(token, 0))}
        longest = max(longest, max(row.values(), default=0))
    return longest


def _list_bits(number: int) -> list[int]:
    """Return the indices of the bits that are 1, ascending."""
    indices = []
    while number:
        low = number & -number
        indices.append(low.bit_length() - 1)
        number ^= low
    return indices


def count_edits(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> Edits:
    """Return the numbers of operations in a shortest edit script.

    If there are several, it is the script of RapidFuzz and jiwer: going back from the end, it takes
    a deletion if possible, else an insertion, else a substitution.
    """
    if reference == hypothesis:
        return Edits(len(reference), 0, 0, 0)
    begin, shorter = 0, min(len(reference), len(hypothesis))
    while begin < shorter and reference[begin] == hypothesis[begin]:
        begin += 1
    end = 0
    while end < shorter - begin and reference[-1 - end] == hypothesis[-1 - end]:
        end += 1
    inner = reference[begin : len(reference) - end]
    script = _backtrack(inner, hypothesis[begin : len(hypothesis) - end])
    return script._replace(hits=script.hits + begin + end)


def _backtrack(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> Edits:
    """Return the edits by backtracking; recompute the rows in blocks to store O(n sqrt(m)) bits."""
    if not reference or not hypothesis:
        return Edits(0, 0, len(reference), len(hypothesis))
    positions, full = _index_tokens(reference), (1 << len(reference)) - 1
    block = isqrt(len(hypothesis)) + 1
    starts = [(full, 0)]
    for begin in range(0, len(hypothesis), block):
        part = hypothesis[begin : begin + block]
        starts.append(_compute_rows(positions, full, part, *starts[-1])[-1])
    hits = substitutions = deletions = insertions = 0
    column = len(reference)
    for k in range(len(starts) - 2, -1, -1):
        part = hypothesis[k * block : (k + 1) * block]
        rows = [starts[k], *_compute_rows(positions, full, part, *starts[k])]
        for i in range(len(part), 0, -1):
            while column and rows[i][0] >> (column - 1) & 1:
                column -= 1
                deletions += 1
            # In the first row every column is reached by deletions only: no negative step.
            if not column or rows[i - 1][1] >> (column - 1) & 1:
                insertions += 1
                continue
            column -= 1
            if reference[column] == part[i - 1]:
                hits += 1
            else:
                substitutions += 1
    return Edits(hits, substitutions, deletions + column, insertions)


def _compute_rows(
    positions: dict[Hashable, int], full: int, tokens: Sequence[Hashable], up: int, down: int
) -> list[tuple[int, int]]:
    """Return for each token the columns where the distance rises (`up`) or falls (`down`) by one.

    Hyyrö 2003, fig. 2. The arguments `up` and `down` are VP and VN of the previous row.
    """
    rows = []
    for token in tokens:
        same = positions.get(token, 0)
        diagonal = (((same & up) + up) ^ up) | same | down
        right = down | ~(diagonal | up)
        left = diagonal & up
        right = (right << 1 | 1) & full
        left = left << 1 & full
        up = (left | ~(diagonal | right)) & full
        down = right & diagonal
        rows.append((up, down))
    return rows
