"""What the verbs share that use a checkpoint: how it is opened, decoding, files to write."""

import errno
import os
import tempfile
from collections.abc import Iterable
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlpkit.commands._options import Common
from nlpkit.disk import name_path_in_errors, user_path
from nlpkit.errors import FileError, UsageError

if TYPE_CHECKING:
    from nlpkit.generate.settings import Settings
    from nlpkit.runs.open_checkpoint import Opened
    from nlpkit.train.log import Log


def check_folder(file: str | None) -> str | None:
    """Return the path of a file to write; `FileError` at once if it cannot be written there."""
    if file == "-":
        raise UsageError("-: stdout has the result; name a file")
    path = None if file is None else user_path(file)
    if path is not None and not path.parent.is_dir():
        raise FileError(f"{path}: cannot be written: no directory {path.parent}")
    if path is not None and (path.is_dir() or path.is_file() or not path.exists()):  # no device
        with name_path_in_errors(path):
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
    return None if path is None else str(path)


def check_unread(file: str | None, names: Iterable[str]) -> None:
    """Raise `UsageError` if a file to write is one that is read; `names` may be globs, folders."""
    if file is None or not os.path.isfile(file):
        return
    written = Path(file).resolve()
    found = (path for name in map(os.path.expanduser, names) for path in (name, *glob(name)))
    read = {Path(path).resolve() for path in found}
    if written in read or (".jsonl" in written.name and read & {*written.parents}):
        raise UsageError(f"{file}: is read here, and would be replaced; name another file to write")


def check_picture(file: str | None, *others: str) -> str | None:
    """Return the path of a picture, as `check_folder` does; `others` are endings of no pictures."""
    endings = (".png", ".svg", ".pdf", ".jpg", *others)
    if file is not None and Path(file).suffix.lower() not in endings:
        raise UsageError(f"{file}: give the file one of the endings {', '.join(endings)}")
    return check_folder(file)


def open_as_asked(
    checkpoint: str | Path, common: Common, log: "Log", precision: str = "fp32"
) -> "Opened":
    """Return the model of a checkpoint, on the device and of the family that the options name."""
    from nlpkit.runs.open_checkpoint import open_checkpoint

    return open_checkpoint(
        checkpoint, device=common.device, precision=precision, family=common.family,
        info=log.info, warn=log.warn,
    )  # fmt: skip


def make_settings(**values: Any) -> "Settings":
    """Return the decoding settings; raise `UsageError` with the names of wrong options."""
    from pydantic import ValidationError

    from nlpkit.generate.settings import Settings
    from nlpkit.recipe.problems import describe_error

    try:
        return Settings(**values)
    except ValidationError as error:
        problems = []
        for each in error.errors():
            what = describe_error(each)
            option = str(each["loc"][0]) if each["loc"] else what.partition(":")[0]
            given = f" {each['input']}" if each["loc"] else ""
            what = what.removeprefix(f"{option}: ")
            problems.append(f"--{option.replace('_', '-')}{given}: {what}")
        raise UsageError("; ".join(problems)) from error
