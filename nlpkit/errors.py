"""Errors that a user can mend: one clear line each, and the exit code that goes with it.

Anything else that leaves the program is a bug of ours (exit code 1, the only one with a traceback).
"""

import errno
import os
from collections.abc import Iterable

# What torch, C++ and the system say of an allocation that failed: torch has no class for it.
NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    os.strerror(errno.ENOMEM),
)


class NlpkitError(Exception):
    """What went wrong, where, and what would be right; printed without a traceback."""

    exit_code = 1


class UsageError(NlpkitError):
    """A wrong command line or recipe; `SETTING: what` gets its place from the recipe."""

    exit_code = 2


class RecipeError(UsageError):
    """Every mistake found in a recipe, one line each: `file:line:column: path: what`."""

    def __init__(self, problems: list[str]):
        super().__init__("\n".join(problems))
        self.problems = problems


class PartError(NlpkitError):
    """A part from outside raised an error of its own: `file:line: this part raised …`."""

    exit_code = 2


class Unsupported(UsageError):
    """A combination asked for by name that this machine or this part cannot do."""


def not_installed(library: str) -> str:
    """Return the words about an optional library, as pip calls it, that is missing."""
    return f"{library} is not installed (pip install {library})"


class DataError(NlpkitError):
    """Malformed input data: `file:line: what is wrong`."""

    exit_code = 3


class FileError(NlpkitError):
    """A file missing, unreadable or unwritable, a full disk, a damaged checkpoint."""

    exit_code = 4


class DivergedError(NlpkitError):
    """The loss or the gradient is no longer finite."""

    exit_code = 5


class CheckFailed(NlpkitError):
    """A score is beyond its limit or undefined, or a run is not reproduced."""

    exit_code = 6


class OutOfMemory(NlpkitError):
    """There is not enough memory, on this machine or its GPU."""

    exit_code = 7


class TryAgain(NlpkitError):
    """Nothing is wrong, but not now: the run directory is in use, or the time limit is reached."""

    exit_code = 75


class Stopped(NlpkitError):
    """A signal ended the run, after it was saved."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


class RunsFailed(NlpkitError):
    """Some runs of a grid have failed; the exit code is that of the first one.

    75 says that nothing is wrong, so any other code comes before it.
    """

    def __init__(self, message: str, codes: Iterable[int]):
        super().__init__(message)
        self.exit_code = min(codes, key=lambda code: code == TryAgain.exit_code)
