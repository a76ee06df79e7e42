"""The bytes of recipe files, and what messages call them."""

from pathlib import Path

from nlpkit.errors import FileError
from nlpkit.recipe import yaml


def read(path: Path, name: str) -> bytes:
    """Return the content of a recipe that messages call `name`; raise `FileError`."""
    try:
        with open(path, "rb") as file:
            return file.read(yaml.MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"{name}: {(error.strerror or str(error)).lower()}") from error


def shown(path: Path) -> str:
    """Return `path` for messages: relative if it is below the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
