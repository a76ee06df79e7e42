"""Parts from outside the package: whether a file may name one, and what is said when one raises."""

import os
import sys

from nlpkit.errors import FileError, NlpkitError, PartError
from nlpkit.registry import OUTSIDE, working_directory


def error_of_part(error: BaseException) -> PartError | None:
    """Return what to say of an error that left code of a part from outside; None if none did."""
    if isinstance(error, PartError):  # of a worker process
        return error
    # These say themselves what is wrong.
    if isinstance(error, NlpkitError | OSError | MemoryError):
        return None
    step, place = error.__traceback__, ""
    while step is not None:
        module = step.tb_frame.f_globals.get("__name__", "")
        if any(f"{module}.".startswith(f"{package}.") for package in OUTSIDE):
            place = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return PartError(f"{place}: this part raised {what}") if place else None


def check_named_by(file: str | os.PathLike[str], name: str, remedy: str) -> None:
    """Raise `FileError` unless a part that a file, not the user, names by `name` may be imported.

    A checkpoint may come from a stranger, and importing runs code. So a dotted name in it counts
    only where the user has had it imported already (a recipe or an option named it), or where its
    source lies in the working directory, but not in the directory of the file or of its run.

    Args:
        file: the file that names it.
        remedy: what the user can do, for the message.
    """
    if "." not in name or name in sys.modules:
        return
    here, home = working_directory(), os.path.dirname(os.path.realpath(file))
    run = os.path.dirname(home)  # of RUN/tokenizer; of a checkpoint, the directory above
    if os.path.basename(run) == "checkpoints":
        home = os.path.dirname(run)
    elif os.path.basename(home) == "tokenizer" and os.path.isfile(os.path.join(run, "run.json")):
        home = run
    stem = os.path.join(here, *name.split("."))
    sources = [f"{stem}.py", os.path.join(stem, "__init__.py")]
    source = next((path for path in sources if here and os.path.isfile(path)), None)
    if source is None:
        raise FileError(f"{file}: names {name!r}, which is not in the working directory; {remedy}")
    if os.path.realpath(source).startswith(os.path.join(home, "")):
        raise FileError(
            f"{file}: names {name!r}, which lies in its own directory: code that comes with a "
            f"checkpoint is not run; {remedy}"
        )
