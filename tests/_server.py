"""The command line for shells and pipes, without the seconds of its imports.

`nlpkit()` is a command to put in the place of `python -m nlpkit`. Its process has the streams,
directory, environment and umask of the caller, and gets the caller's signals; but limits of
resources, a terminal that controls it, a stream that is closed and the interpreter's own settings
(such as its locale) are not passed on: what depends on them needs an interpreter of its own.
"""

import shlex
import sys
from pathlib import Path

from tests import _forks

_CLIENT = Path(__file__).with_name("_client.py")


def nlpkit() -> tuple[str, ...]:
    """Return the words of the command."""
    return sys.executable, "-I", "-S", str(_CLIENT), _forks.address()


def function() -> str:
    """Return the definition of `nlpkit` for a shell."""
    return f'nlpkit() {{ {shlex.join(nlpkit())} "$@"; }}; '
