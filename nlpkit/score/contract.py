"""What a score file offers, and the small types that pass between it and the command line.

A metric file has
- a docstring whose first line is its help;
- `OPTIONS: tuple[Option, ...]`, the keyword arguments of `score`;
- `REFERENCES: tuple[int, int | None]`, the fewest and most reference files it takes;
- `score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], **options) -> Score`:
  `references[k][i]` is the k-th reference of line i (an empty string where line i has fewer);
- if it can score a line alone, `sentences(hypotheses, references, **options) -> Iterator[Score]`;
- `LOWER_IS_BETTER = True`, if it is an error rate: for `--fail-over` instead of `--fail-under`;
- if sums over lines decide it, `statistics(hypotheses, references, **options)`, a row of integers
  a line, and `from_sums(sums, **options) -> float`, for confidence intervals.

It never changes what it is given, and raises `BadLine` for a line that it cannot read.
A tool file has a docstring, `add_arguments(parser: argparse.ArgumentParser)` and
`run(arguments: argparse.Namespace) -> float | None`, which writes its result to stdout itself and
returns the number that `--fail-under` compares, if it has one.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Option(NamedTuple):
    """One option of a metric: a keyword argument, on the command line `--name-with-dashes`."""

    name: str
    default: Any
    help: str
    flags: tuple[str, ...] = ()  # short forms, as sacrebleu's ("-tok",)
    type: Callable[[str], Any] = str  # bool makes it a switch
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


class BadLine(Exception):
    """Line `index` (from 0) of a file cannot be read: file 0 is the hypotheses, k a reference."""

    def __init__(self, file: int, index: int, message: str):
        super().__init__(message)
        self.file = file
        self.index = index
