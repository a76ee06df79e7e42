"""Records the paths and hashes of the files that a run was trained and evaluated on.

With this record, `data_files.json` in the run's directory, `nlpkit eval` reads the same held-out
text from any directory.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nlpkit.contracts.reader import TextFile
from nlpkit.data.cache import content_hash
from nlpkit.data.files import Input
from nlpkit.disk import read_json, write_json
from nlpkit.errors import DataError, FileError

DATA_FILES = "data_files.json"


def write(
    run: Path, train: Sequence[Input], valid: Sequence[Input], cache: Path, stop: Callable[[], None]
) -> None:
    """Write `data_files.json`: the path, format and hash of each file of each source."""
    content = {
        "directory": str(run.absolute()),
        "train": [[_entry(file, cache, stop) for file in _single_files(each)] for each in train],
        "valid": [[_entry(file, cache, stop) for file in _single_files(each)] for each in valid],
    }
    write_json(run / DATA_FILES, content)


def find(
    run: Path, base: Path, part: str, cache: Path, stop: Callable[[], None]
) -> list[dict[str, Any]] | None:
    """Return the `files` and the `format` of each source of `part` (train or valid) of a run.

    A file that was moved is searched by its path relative to the run's directory, and by its name
    in the working directory and in `base`; its content must be the same. Returns None for a run of
    an older version, which recorded no files.

    Raises:
        DataError: the content of a file has changed.
        FileError: a file does not exist any more.
    """
    if not (run / DATA_FILES).is_file():
        return None
    recorded = read_json(run / DATA_FILES)
    sources = []
    try:
        for files in recorded[part]:
            paths = []
            for file in files:
                moved = run.absolute() / os.path.relpath(file["path"], recorded["directory"])
                named = [Path.cwd() / file["name"], base / file["name"]]
                candidates = [Path(file["path"]), moved, *named]
                paths.append(_unchanged(file, candidates, run, cache, stop))
            forms = {file["format"] for file in files}
            # Those of a directory may have several formats, which their endings tell.
            sources.append({"files": paths, "format": forms.pop() if len(forms) == 1 else None})
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{run / DATA_FILES}: not a record of files: {error!r}") from error
    return sources


def in_both(train: Sequence[Input], valid: Sequence[Input]) -> list[str]:
    """Return the names of the held-out files that are also training files."""
    trained, names = (
        {os.path.realpath(file.path): file.name for entry in inputs for file in entry.files}
        for inputs in (train, valid)
    )
    return [name for path, name in names.items() if path in trained]


def _unchanged(
    file: dict[str, str],
    candidates: Sequence[Path],
    run: Path,
    cache: Path,
    stop: Callable[[], None],
) -> str:
    """Return the first of the candidates whose content has the recorded hash."""
    paths = dict.fromkeys(os.path.normpath(path) for path in candidates)
    existing = [path for path in paths if os.path.isfile(path)]
    for path in existing:
        if _hash(TextFile(path, path, file["format"]), cache, stop) == file["sha256"]:
            return path
    if existing:
        raise DataError(
            f"{existing[0]}: not the text that {run} was evaluated on (its hash is not that in "
            f"{DATA_FILES}); restore the file, or choose this one: --data {existing[0]}"
        )
    raise FileError(
        f"{file['path']}: no such file, and {run} was evaluated on it; restore it, or choose "
        "another: --data FILE"
    )


def _single_files(source: Input) -> list[TextFile]:
    """Return the files of a source; a pair of parallel files gives two."""
    return [each for file in source.files for each in file.parts]


def _entry(file: TextFile, cache: Path, stop: Callable[[], None]) -> dict[str, str]:
    path = os.path.abspath(file.path)
    sha256 = _hash(file, cache, stop)
    return {"name": file.name, "path": path, "format": file.format, "sha256": sha256}


def _hash(file: TextFile, cache: Path, stop: Callable[[], None]) -> str:
    single = TextFile(file.path, file.name, file.format)
    return content_hash(single, cache / "hashes", stop)
