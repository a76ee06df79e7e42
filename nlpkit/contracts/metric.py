"""The contract of `score/metrics/NAME.py`, and what it exchanges with the command line.

A file is a `Metric`, which compares lines, or a `Tool`, which reads files of its own kind. The
first line of its docstring is its help.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

from nlpkit.json_types import JsonMapping

if TYPE_CHECKING:
    import argparse


Lines = Sequence[str]
References = Sequence[Lines]  # [k][i]: the k-th reference of line i, `Repeated` if it has fewer
Sums = Sequence[float]


class Repeated(str):
    """The first reference of a line again, where other lines have more; a mean leaves it out."""

    __slots__ = ()


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
    details: JsonMapping = MappingProxyType({})
    percent: bool = True  # 0…100 as BLEU is, for rounding in text


class Metric(Protocol):
    """A score of lines; `options` are those of `OPTIONS`, as keyword arguments.

    It never changes what it is given, and raises `BadLine` for a line that it cannot read.
    """

    OPTIONS: tuple[Option, ...] = ()
    REFERENCES: tuple[int, int | None] = (1, 1)  # the fewest and most files; None: any number
    LOWER_IS_BETTER: bool = False  # then its limit is `--fail-over`, not `--fail-under`
    IS_TOOL: bool = False
    # `(hypotheses, references, **options)`: yields the score of each line.
    sentences: Callable[..., Iterator[Score]] | None = None
    # Of a metric that sums over lines decide, for confidence intervals and paired tests:
    # `(hypotheses, references, **options)`: the numbers of each line;
    statistics: Callable[..., Iterable[Sums]] | None = None
    # `(sums, **options)`: the score that the sums of these rows give.
    from_sums: Callable[..., float] | None = None

    @abstractmethod
    def score(self, hypotheses: Lines, references: References, **options: Any) -> Score:
        """Return the score of all lines."""


class Tool(Protocol):
    """A score that reads files of its own kind."""

    IS_TOOL: bool = True
    HAS_SCORE: bool = True  # whether `run` may return a score, which `--fail-under` takes

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments and options."""

    @abstractmethod
    def run(self, arguments: argparse.Namespace) -> float | None:
        """Write the result to stdout; return the score for `--fail-under`, if there is one."""


def is_tool(score: Metric | Tool) -> TypeGuard[Tool]:
    """Return whether it reads files of its own kind."""
    return score.IS_TOOL


def is_metric(score: Metric | Tool) -> TypeGuard[Metric]:
    """Return whether it compares lines."""
    return not score.IS_TOOL


class BadLine(Exception):
    """Line `index` (from 0) of a file cannot be read: file 0 is the hypotheses, k a reference."""

    def __init__(self, file: int, index: int, message: str):
        super().__init__(message)
        self.file = file
        self.index = index


CONTRACTS = (Metric, Tool)
