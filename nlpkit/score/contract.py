"""The interface of a score file, and the types that it exchanges with the command line.

A file of `metrics/` is a `Metric`, which compares lines, or a `Tool`, which reads files of its own
kind. The first line of its docstring is its help. A metric may be a `LineMetric`, a `SummedMetric`
and an `ErrorRate`, too. It never changes what it is given, and raises `BadLine` for a line that it
cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

if TYPE_CHECKING:
    import argparse


Lines = Sequence[str]
References = Sequence[Lines]  # [k][i]: the k-th reference of line i, empty if it has fewer
Sums = Sequence[float]


class Option(NamedTuple):
    """One option of a metric: a keyword argument, on the command line `--name-with-dashes`."""

    name: str
    default: bool | float | str | None
    help: str
    flags: tuple[str, ...] = ()  # short forms, as sacrebleu's ("-tok",)
    type: Callable[[str], object] = str  # bool makes it a switch
    choices: tuple[str, ...] | None = None
    metavar: str | None = None


class Score(NamedTuple):
    """One result: what it is called, its value unrounded, the settings that decide it, the rest."""

    name: str  # as printed, such as BLEU or chrF2++
    score: float
    signature: str  # `key:value|key:value`, everything that moves the number
    verbose: str = ""  # what follows the number on the text line
    # More for --json, such as counts. The command line says what `warnings` has, a list of lines,
    # and warns of a `ratio` (length of the hypotheses by that of the references) far from 1.
    details: Mapping[str, Any] = MappingProxyType({})
    percent: bool = True  # 0…100 as BLEU is, for rounding in text


class Metric(Protocol):
    """A score of lines; `options` are those of `OPTIONS`, as keyword arguments.

    `references[k][i]` is the k-th reference of line i (an empty string where line i has fewer).
    """

    OPTIONS: tuple[Option, ...]
    REFERENCES: tuple[int, int | None]  # the fewest and most reference files, None: any number

    def score(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], **options: Any
    ) -> Score:
        """Return the score of all lines."""


class LineMetric(Metric, Protocol):
    """A metric that can score a line by itself."""

    def sentences(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], **options: Any
    ) -> Iterator[Score]:
        """Yield the score of each line."""


class SummedMetric(Metric, Protocol):
    """A metric computed from sums over lines, for confidence intervals and paired tests."""

    def statistics(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], **options: Any
    ) -> Iterable[Sequence[float]]:
        """Return a row of numbers for each line."""

    def from_sums(self, sums: Sequence[float], **options: Any) -> float:
        """Return the score that the sums of the rows give."""


class ErrorRate(Metric, Protocol):
    """A metric for which lower is better: its limit is `--fail-over`, not `--fail-under`."""

    LOWER_IS_BETTER: bool


class Tool(Protocol):
    """A score that reads files of its own kind."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments and options."""

    def run(self, arguments: argparse.Namespace) -> float | None:
        """Write the result to stdout; return the score for `--fail-under`, if there is one."""


# These look for names in the file: `isinstance` imports `inspect`, which takes milliseconds.
def is_tool(score: Metric | Tool) -> TypeGuard[Tool]:
    """Return whether it reads files of its own kind."""
    return "run" in vars(score)


def is_metric(score: Metric | Tool) -> TypeGuard[Metric]:
    """Return whether it compares lines."""
    return "score" in vars(score)


def scores_lines(metric: Metric) -> TypeGuard[LineMetric]:
    """Return whether it can score a line by itself."""
    return "sentences" in vars(metric)


def has_sums(metric: Metric) -> TypeGuard[SummedMetric]:
    """Return whether sums over lines decide it."""
    return {"statistics", "from_sums"} <= vars(metric).keys()


def is_error_rate(metric: Metric) -> bool:
    """Return whether less is better."""
    return bool(vars(metric).get("LOWER_IS_BETTER", False))


class BadLine(Exception):
    """Line `index` (from 0) of a file cannot be read: file 0 is the hypotheses, k a reference."""

    def __init__(self, file: int, index: int, message: str):
        super().__init__(message)
        self.file = file
        self.index = index
