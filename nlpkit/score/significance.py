"""Confidence intervals and paired tests from the sums of lines (Koehn 2004; Riezler, Maxwell 2005).

The random numbers are those of sacrebleu 2.6.0 for the same seed, drawn in pieces, so that memory
does not grow with samples x lines. Our figures are exact where those of sacrebleu are not:
- its bootstrap uses float32: the score of a sample has a relative error of up to 5e-8, and a larger
  error if a sum is above 2**24 (28.70 instead of 28.58 for 37.5 million tokens);
- its randomization cuts a fractional `add-k` to an integer;
- its paired tests ignore the seed 0, and count a difference that equals the real one as smaller:
  two equal systems differ there at p = 0.0001.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nlpkit.errors import DataError, UsageError
from nlpkit.plural import number_of

Rows = Iterable[Sequence[float]]
FromSums = Callable[[Sequence[float]], float]

SEED = 12345
_CELLS = 1 << 20  # random numbers held at a time
_LINES = 1 << 15  # of them, as floats
_WORD = 32  # random bits come 32 at a time, so a piece ends where a word does


class Tested(NamedTuple):
    """A system's score, mean and half width of the 95 % interval, p-value against the first."""

    score: float
    mean: float | None
    half_width: float | None
    p_value: float | None


def read_seed() -> int | None:
    """Return SACREBLEU_SEED, by default 12345; `none` is None, a new seed at every run."""
    text = os.environ.get("SACREBLEU_SEED", str(SEED))
    if text.lower() == "none":
        return None
    if not text.isdecimal() or len(text) > 1000:
        raise UsageError(f"SACREBLEU_SEED is {text!r}, must be a number of 0 or more, or none")
    return int(text)


def sign(signature: str, kind: str, samples: int, seed: int | None) -> str:
    """Return the signature with the samples of a test after `nrefs`: `bs:1000|seed:12345`."""
    first, *rest = signature.split("|")
    return "|".join([first, f"{kind}:{samples}", f"seed:{str(seed).lower()}", *rest])


def paired_bootstrap(
    systems: Sequence[Rows], from_sums: FromSums, samples: int = 1000, seed: int | None = SEED
) -> list[Tested]:
    """Return the test of each system against the first, on the same samples of lines.

    The p-value is the share of samples whose difference, less the mean difference, is at least
    the real one; the first system has an interval alone.

    `systems` are what a metric's `statistics` yields, a line each; `from_sums` is the score of
    their sums. Raise `DataError` if there are no lines or systems differ in them, `UsageError` for
    fewer than one sample.
    """
    tables, real = _make_tables(systems, from_sums, samples)
    drawn = [[from_sums(s) for s in sums] for sums in _draw_samples(tables, samples, seed)]
    by_system = list(zip(*drawn, strict=True))
    found = [Tested(real[0], *_compute_interval(by_system[0]), None)]
    for score, scores in zip(real[1:], by_system[1:], strict=True):
        differences = np.abs(np.array(scores) - np.array(by_system[0]))
        p = _compute_p(differences - differences.mean(), abs(real[0] - score))
        found.append(Tested(score, *_compute_interval(scores), p))
    return found


def paired_approximate_randomization(
    systems: Sequence[Rows], from_sums: FromSums, samples: int = 10000, seed: int | None = SEED
) -> list[Tested]:
    """Return the test of each system against the first: lines are exchanged at random.

    The p-value is the share of trials whose difference is at least the real one. There is no
    interval. Raise as `paired_bootstrap`.
    """
    tables, real = _make_tables(systems, from_sums, samples)
    totals = [table.sum(0) for table in tables]
    differences: list[list[float]] = [[] for _ in tables[1:]]
    # A trial exchanges lines: it moves the difference between baseline and system.
    moved = [tables[0] - table for table in tables[1:]]
    for taken in _draw_shuffles(moved, samples, seed):
        for own, total, trials in zip(differences, totals[1:], taken, strict=True):
            for sums in trials:
                a, b = total + sums, totals[0] - sums
                own.append(abs(from_sums(a.tolist()) - from_sums(b.tolist())))
    found = [Tested(real[0], None, None, None)]
    for score, own in zip(real[1:], differences, strict=True):
        found.append(Tested(score, None, None, _compute_p(np.array(own), abs(real[0] - score))))
    return found


def _make_tables(
    systems: Sequence[Rows], from_sums: FromSums, samples: int
) -> tuple[list[np.ndarray], list[float]]:
    """Return the rows as arrays (lines, columns), of integers, or floats if any is; the scores."""
    if samples < 1:
        raise UsageError(f"{samples} samples: must be 1 or more")
    tables = [np.array(list(rows)) for rows in systems]
    for table in tables:
        if not len(table):
            raise DataError("there are no lines")
        if len(table) != len(tables[0]):
            raise DataError(
                f"systems of {len(tables[0])} and {number_of(len(table), 'lines')}: must be as many"
            )
    return tables, [from_sums(table.sum(0).tolist()) for table in tables]


def _draw_samples(
    tables: list[np.ndarray], samples: int, seed: int | None
) -> Iterator[list[list[float]]]:
    """Yield, for each sample of lines, drawn with replacement, the sums of every table."""
    rng = np.random.default_rng(seed)
    lines = len(tables[0])
    piece = max(1, _CELLS // lines)
    floats = [table.astype(np.float64) for table in tables]  # their products are fast, and exact
    for start in range(0, samples, piece):
        drawn = rng.choice(lines, size=(min(piece, samples - start), lines), replace=True)
        for sample in drawn:
            times = np.bincount(sample, minlength=lines).astype(np.float64)
            sums = zip(floats, tables, strict=True)
            yield [(times @ each).astype(table.dtype).tolist() for each, table in sums]


def _draw_shuffles(
    tables: list[np.ndarray], samples: int, seed: int | None
) -> Iterator[list[np.ndarray]]:
    """Yield, for pieces of the trials, each table's sums (trials, columns) over lines taken."""
    rng = np.random.default_rng(seed)
    lines = len(tables[0])
    piece = max(1, _CELLS // (_WORD * lines)) * _WORD
    for start in range(0, samples, piece):
        taken = rng.integers(2, size=(min(piece, samples - start), lines), dtype=bool)
        sums = [np.zeros((len(taken), table.shape[1])) for table in tables]
        for first in range(0, lines, _LINES):
            weights = taken[:, first : first + _LINES].astype(np.float64)
            for total, table in zip(sums, tables, strict=True):
                total += weights @ table[first : first + _LINES]
        yield [total.astype(table.dtype) for total, table in zip(sums, tables, strict=True)]


def _compute_interval(scores: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(scores)
    cut = len(ordered) // 40
    return math.fsum(ordered) / len(ordered), 0.5 * (ordered[-cut - 1] - ordered[cut])


def _compute_p(statistic: np.ndarray, real: float) -> float:
    # One is added, or a true null hypothesis is rejected too often (Phipson and Smyth 2010).
    # Equal differences, common with few lines, differ in rounding where rows are floats.
    least = real * (1 - 1e-12)
    return (int((statistic >= least).sum()) + 1) / (len(statistic) + 1)
