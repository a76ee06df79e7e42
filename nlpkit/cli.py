"""The command line: finds the verb, runs it, prints what went wrong, and exits with its code.

Each file in `commands/` is a verb. Results are on stdout, everything else on stderr, all UTF-8.
"""

import contextlib
import errno
import inspect
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from nlpkit import __version__, registry
from nlpkit.errors import FileError, NlpkitError, RecipeError, UsageError

_ABOUT = """Pretrain and fine-tune classic language models from one YAML recipe.

\b
Results are on stdout, all else on stderr. Exit codes:
    0  done
    1  a bug of nlpkit
    2  usage or recipe
    3  input data
    4  files and disk: missing, no permission, no space
    5  the training diverged
   75  try again: the run directory is in use, or the time is up
  129, 130, 143  stopped by a signal, after saving
  141  whoever read stdout has gone
"""
# What click raises for a wrong command line; its home depends on typer's version.
_WRONG_USAGE: Any = typer.BadParameter.__bases__[0]
_BROKEN_PIPE = 141
_INTERRUPTED = 130
_OUT_OF_MEMORY = (
    "out of memory: lower train.tokens_per_batch (a step stays the same, only in more parts), then "
    "the objective's max_length or the model's sizes"
)


def _version(asked: bool) -> None:
    if asked:
        print(f"nlpkit {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
]


def _all_verbs(version: Version = False) -> None:
    pass


def build() -> typer.Typer:
    """Return the command line with a command (or group of commands) for each verb."""
    app = typer.Typer(
        name="nlpkit",
        help=_ABOUT,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_ABOUT)(_all_verbs)
    for name in registry.names("commands"):
        verb = registry.load("commands", name)
        if isinstance(verb.command, typer.Typer):
            about = inspect.cleandoc(verb.__doc__ or "")
            app.add_typer(verb.command, name=name, help=about, short_help=_first_line(about))
        else:
            about = inspect.cleandoc(verb.command.__doc__ or "")
            app.command(name, help=about, short_help=_first_line(about))(verb.command)
    return app


def _first_line(about: str) -> str:
    return about.partition("\n")[0].removesuffix(".")


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return the exit code, every error printed on stderr."""
    shown = "--traceback" in arguments
    try:
        # Not `app()`: click's own `main` would swallow KeyboardInterrupt and a broken pipe.
        verbs = typer.main.get_command(build())
        with verbs.make_context("nlpkit", list(arguments)) as context:
            verbs.invoke(context)
        return 0
    except typer.Exit as done:
        return done.exit_code
    except _WRONG_USAGE as error:
        error.show()
        return UsageError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", _INTERRUPTED, shown)
    except NlpkitError as error:
        return _user_error(error, shown)
    except MemoryError:
        return _say(_OUT_OF_MEMORY, UsageError.exit_code, shown)
    except OSError as error:
        return _system_error(error, shown)
    except Exception as error:
        return _other_error(error, shown)


def _say(message: str, code: int, shown: bool) -> int:
    """Print `nlpkit: message` on stderr, with the traceback if asked for; return `code`."""
    rank = os.environ.get("RANK", "0")
    # Where it cannot be written, the code still says it.
    with contextlib.suppress(OSError):
        if shown:
            traceback.print_exc()
        print(f"nlpkit: {'' if rank == '0' else f'process {rank}: '}{message}", file=sys.stderr)
    return code


def _user_error(error: NlpkitError, shown: bool) -> int:
    # Every process of a run finds the same mistake in the recipe; one says so.
    if isinstance(error, UsageError) and os.environ.get("RANK", "0") != "0":
        return error.exit_code
    if not isinstance(error, RecipeError):
        return _say(str(error), error.exit_code, shown)
    with contextlib.suppress(OSError):
        if shown:
            traceback.print_exc()
        print(*error.problems, sep="\n", file=sys.stderr)
    return error.exit_code


def _system_error(error: OSError, shown: bool) -> int:
    if isinstance(error, BrokenPipeError):
        return _BROKEN_PIPE
    what = (error.strerror or str(error)).lower()
    where = f"{error.filename}: " if error.filename is not None else ""
    return _say(f"{where}{what}", FileError.exit_code, shown)


def _other_error(error: Exception, shown: bool) -> int:
    text = str(error)
    # torch and safetensors have their own classes, which are not worth importing torch for.
    if "OutOfMemoryError" in type(error).__name__ or "can't allocate memory" in text:
        return _say(_OUT_OF_MEMORY, UsageError.exit_code, shown)
    if os.strerror(errno.ENOSPC) in text:
        return _say(text, FileError.exit_code, shown)
    traceback.print_exc()
    return _say("this is a bug of nlpkit; please report it with the lines above", 1, False)


def _utf8(stream: Any) -> None:
    """Make a standard stream UTF-8 whatever the locale; what cannot be written is escaped."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _open_closed_streams() -> None:
    """Give closed standard streams their numbers, or the next file opened would get them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # For reading: what is written there fails, as it would on a closed one.
            os.open(os.devnull, os.O_RDONLY)
    # Python has none for a closed one, and prints on stdout what is for stderr.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def main() -> None:
    """Run the command line of this process and exit."""
    _open_closed_streams()
    _utf8(sys.stdout)
    _utf8(sys.stderr)
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        error.filename = "stdout"
        code = code or _system_error(error, False)
        # Python tries once more at exit; what is left must find somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
