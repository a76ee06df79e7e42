"""The command line: finds the verb, runs it, prints what went wrong, and exits with its code.

Each file in `commands/` is a verb. One with `main(arguments)` reads its own options, and starts in
milliseconds: nothing here imports typer, which `nlpkit.verbs` needs for those with a `command`.
Results are on stdout, everything else on stderr, all UTF-8.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from nlpkit import registry
from nlpkit.errors import (
    NO_MEMORY,
    FileError,
    NlpkitError,
    OutOfMemory,
    RecipeError,
    TryAgain,
    UsageError,
)

_BROKEN_PIPE = 141
_INTERRUPTED = 130
# Errors of writing; those of files have a name.
_OF_STREAMS = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT)
_SHOWN_PROBLEMS = 50  # of a recipe
_OUT_OF_MEMORY = (
    "out of memory: lower train.tokens_per_batch (a step stays the same, only in more parts), then "
    "the objective's max_length or the model's sizes"
)
# Variables in which torchrun and accelerate give each process its number.
_OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
# What gloo and NCCL say when a process that they wait for is gone.
_LOST = ("Connection closed by peer", "Connection reset by peer", "ncclRemoteError")
_ANOTHER_ENDED = "another process of this run has ended, so this one ends, too; see what it said"


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return the exit code, every error printed on stderr."""
    shown = "--traceback" in arguments
    try:
        return _run_verb(list(arguments))
    except KeyboardInterrupt:
        return _say("interrupted", _INTERRUPTED, shown)
    except NlpkitError as error:
        return _user_error(error, shown)
    except MemoryError:
        return _say(_OUT_OF_MEMORY, OutOfMemory.exit_code, shown)
    except OSError as error:
        return _system_error(error, shown)
    except Exception as error:
        return _other_error(error, shown)


def _run_verb(arguments: list[str]) -> int:
    for name in _OF_LAUNCHERS:
        if not (value := os.environ.get(name, "0")).isdecimal():
            raise UsageError(f"{name}={value} in the environment: must be a number, or not set")
    try:
        return _dispatch(arguments)
    except ImportError as error:
        if "failed to map segment" in str(error):  # a library is larger than `ulimit -v` allows
            raise MemoryError from error
        raise


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["--"]:  # ends options, of which there were none
        arguments = arguments[1:]
    name = arguments[0] if arguments else ""
    if name in registry.names("commands"):
        verb = registry.load("commands", name)
        if "main" in vars(verb):
            verb.main(arguments[1:])
            return 0
    elif name and not name.startswith("-"):
        near = registry.suggest(name, registry.names("commands"))
        raise UsageError(f"no command {name}{near} (see nlpkit --help)")
    from nlpkit import verbs

    os.getcwd()  # an error where it has been removed, as in git; there oneMKL ends the process
    return verbs.run(arguments)


def _complete() -> int:
    """Print what the shell that asks can offer; whatever goes wrong, it can offer nothing."""
    # Anything on stderr would stand in the middle of the line that is being typed.
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        from nlpkit.commands import _completion

        print(_completion.complete(os.environ), end="")
    return 0


def exit_now(error: NlpkitError) -> NoReturn:
    """Print what went wrong and end the process, from any thread; nothing is cleaned up."""
    os._exit(_user_error(error, False))


def _say(message: str, code: int, shown: bool) -> int:
    """Print `nlpkit: message` on stderr, with the traceback if asked for; return `code`."""
    rank = _rank()
    # If the message cannot be written, the exit code still tells the kind of error.
    with contextlib.suppress(OSError):
        if shown:
            sys.excepthook(*sys.exc_info())
        print(f"nlpkit: {'' if rank == '0' else f'process {rank}: '}{message}", file=sys.stderr)
    return code


def _rank() -> str:
    rank = os.environ.get("RANK", "0")
    return rank if rank.isdecimal() else "0"


def _user_error(error: NlpkitError, shown: bool) -> int:
    # Every process of a run finds the same mistake in the recipe; one says so.
    if isinstance(error, UsageError) and _rank() != "0":
        return error.exit_code
    if not isinstance(error, RecipeError):
        return _say(str(error), error.exit_code, shown)
    with contextlib.suppress(OSError):
        if shown:
            sys.excepthook(*sys.exc_info())
        print(*error.problems[:_SHOWN_PROBLEMS], sep="\n", file=sys.stderr)
        if more := len(error.problems[_SHOWN_PROBLEMS:]):
            print(f"nlpkit: and {more:,} more mistakes", file=sys.stderr)
    return error.exit_code


def _system_error(error: OSError, shown: bool) -> int:
    if isinstance(error, BrokenPipeError):
        return _BROKEN_PIPE
    if error.errno == errno.ENOMEM:
        return _say(_OUT_OF_MEMORY, OutOfMemory.exit_code, False)
    what = (error.strerror or str(error)).lower()
    name = error.filename or ("stdout" if error.errno in _OF_STREAMS else None)
    where = f"{name}: " if name is not None else ""
    if isinstance(error, FileNotFoundError) and not registry.working_directory():
        where, what = "", "the working directory has been removed; change to another one"
    return _say(f"{where}{what}", FileError.exit_code, shown)


def _other_error(error: Exception, shown: bool) -> int:
    text = str(error)
    # torch and safetensors have their own classes, which are not worth importing torch for.
    if "OutOfMemoryError" in type(error).__name__ or any(each in text for each in NO_MEMORY):
        return _say(_OUT_OF_MEMORY, OutOfMemory.exit_code, shown)
    if os.strerror(errno.ENOSPC) in text or text.startswith("Symlink loop"):
        return _say(text, FileError.exit_code, shown)
    if os.environ.get("WORLD_SIZE", "1") != "1" and any(each in text for each in _LOST):
        return _say(_ANOTHER_ENDED, TryAgain.exit_code, shown)
    from nlpkit.outside_parts import error_of_part

    if failed := error_of_part(error):
        return _say(f"{failed}; --traceback shows the calls", failed.exit_code, shown)
    sys.excepthook(*sys.exc_info())
    return _say("this is a bug of nlpkit; please report it with the lines above", 1, False)


def _open_closed_streams() -> None:
    """Give closed standard streams their numbers, or the next file opened would get them."""
    # For reading: what is written there fails, as it would on a closed one.
    while (number := os.open(os.devnull, os.O_RDONLY)) < 3:
        pass
    os.close(number)
    # Python has none for a closed one, and prints on stdout what is for stderr.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def main() -> None:
    """Run the command line of this process and exit."""
    # Paths are UTF-8, too, whatever the locale.
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # whatever the locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    code = _complete() if "_NLPKIT_COMPLETE" in os.environ else run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or _system_error(error, False)
        _discard(sys.stdout)
    try:
        sys.stderr.flush()
    except OSError:  # the reader of the log is gone, which is no failure of the command
        _discard(sys.stderr)
    sys.exit(code)


def _discard(stream: TextIO) -> None:
    """Send what is left in a stream nowhere, or Python tries again at exit and exits with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
