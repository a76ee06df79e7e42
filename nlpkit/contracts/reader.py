"""The contract of `data/readers/NAME.py`, and what a reader exchanges with the rest of `data/`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from nlpkit.json_types import JsonObject

KEPT_MESSAGES = 20  # malformed rows of which it is kept what is wrong


@dataclass(frozen=True)
class TextFile:
    """One input file: where it lies, what messages call it, and how its rows are written."""

    path: str
    name: str
    format: str
    gzip: bool = False
    second: TextFile | None = None  # the file that belongs to it: translations, labels
    text_key: str | list[str] | None = None  # where its text is; None: as `data.text_key` says
    max_rows: int | None = None  # only the first rows are read
    start: int = 0  # the bytes that are read, whole lines: up to `stop`, to the end if it is None
    stop: int | None = None

    @property
    def parts(self) -> tuple[TextFile, ...]:
        """The file itself, and the one that belongs to it."""
        return (self,) if self.second is None else (self, self.second)


class RowError(Exception):
    """A row without usable text: what is wrong, and in which line of the row, from 1."""

    def __init__(self, what: str, line: int = 1):
        super().__init__(what, line)
        self.what = what
        self.line = line


# Of each row its line, from 1, and its values (those of JSON, and arrays) or what is wrong with it.
Rows: TypeAlias = Iterator[tuple[int, JsonObject | RowError]]
Texts: TypeAlias = Iterator[tuple[int, list[str] | RowError]]  # the same of texts, such as cells


class LeftOut(RowError):
    """A row that a setting leaves out, such as one without an agreed label; or the cut to fit."""


class Bad(NamedTuple):
    """A row that was skipped; printed as `file:line: what`."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass
class Counts:
    """What was read and what was left out; `characters` and `bytes` (UTF-8) are the documents'.

    `blank` lines and `empty` texts are no documents; `held_out` ones belong to the other part.
    `unknown` tokens and documents without any token (`tokenless`) are known once it is tokenised;
    `unlearned` are the unknown ones in the targets of a task, which are not learned. `left_out`
    are rows that a setting of the task leaves out.
    """

    lines: int = 0
    documents: int = 0
    blank: int = 0
    empty: int = 0
    bad: int = 0
    held_out: int = 0
    characters: int = 0
    bytes: int = 0
    unknown: int = 0
    tokenless: int = 0
    unlearned: int = 0
    left_out: int = 0
    first_bad: list[Bad] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add `other`, whose rows come later."""
        for name, value in vars(other).items():
            if name != "first_bad":
                setattr(self, name, getattr(self, name) + value)
        free = KEPT_MESSAGES - len(self.first_bad)
        self.first_bad += other.first_bad[:free]

    def add_bad(self, bad: Bad) -> None:
        """Count a row that is skipped and keep what is wrong with it, if among the first."""
        self.bad += 1
        if len(self.first_bad) < KEPT_MESSAGES:
            self.first_bad.append(bad)


class Row(Protocol):
    """One row of a file; `line` counts from 1, after decompression."""

    @property
    def values(self) -> JsonObject: ...
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...

    def text(self, column: str) -> str:
        """Return the text in a column, at a path or of a template; raise `RowError`."""

    def find(self, column: str) -> object:
        """Return the value in a column or at a path, unchecked; raise `RowError` if none is."""

    def value(self, column: str) -> object:
        """Return the value in a column or at a path; raise `RowError` if there is no valid one."""


class Reader(Protocol):
    """The rows of files of one format."""

    ENDINGS: tuple[str, ...]  # endings of file names, before .gz
    # The kinds of files that belong together, in the recipe's order.
    FILES: tuple[str, ...] = ("rows",)
    INSIDE: str = ""  # the glob for the files in a folder; empty if a folder cannot be given
    # What the documents of such a file are: its rows, from the first to the last; "lines", so that
    # several processes each read a range of one file; "" of rows for tasks alone.
    DOCUMENTS: str = "rows"

    @abstractmethod
    def rows(self, file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
        """Yield the rows that are not blank.

        The task reads `columns`. Lines, blank lines and empty texts are added to `counts`.

        Raises:
            DataError: the file cannot be used.
        """


CONTRACTS = (Reader,)
