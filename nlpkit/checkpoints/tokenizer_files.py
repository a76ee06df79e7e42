"""Opens a saved tokenizer of any kind. Imports no torch."""

from pathlib import Path
from typing import Any

from nlpkit import registry
from nlpkit.errors import FileError


def _files() -> list[str]:
    """Return file names; a directory with one of them is a tokenizer's."""
    kinds = (registry.load("tokenizers", kind) for kind in registry.names("tokenizers"))
    return sorted({name for module in kinds for name in module.Tokenizer.files})


def is_there(directory: Path) -> bool:
    """Return whether a directory has a file of a tokenizer, readable or not."""
    return any((directory / name).is_file() for name in _files())


def load(directory: str | Path) -> tuple[str, Any]:
    """Return kind and `Tokenizer` of a directory, or of its file; raise `FileError`.

    It is the first kind whose `Tokenizer.load` accepts the files: each refuses those of others.
    """
    path = Path(directory)
    if not path.exists():
        raise FileError(f"{path}: no such directory; expected a tokenizer")
    if path.is_dir() and not is_there(path):
        raise FileError(f"{path}: no tokenizer here, neither {' nor '.join(_files())}")
    refused = []
    for kind in registry.names("tokenizers"):
        try:
            return kind, registry.load("tokenizers", kind).Tokenizer.load(path)
        except FileError as error:
            refused.append(f"{kind}: {error}")
    raise FileError(f"{path}: no known kind of tokenizer: {'; '.join(refused)}")
