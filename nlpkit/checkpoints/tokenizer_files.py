"""Opens a saved tokenizer of whatever kind it is; free of torch."""

from pathlib import Path
from typing import Any

from nlpkit import registry
from nlpkit.errors import FileError


def _files() -> list[str]:
    """Return the files by any one of which a directory is known as a tokenizer's."""
    kinds = (registry.load("tokenizers", kind) for kind in registry.names("tokenizers"))
    return sorted({name for module in kinds for name in module.Tokenizer.files})


def is_there(directory: Path) -> bool:
    """Return whether a directory holds a tokenizer's file, good or not."""
    return any((directory / name).is_file() for name in _files())


def load(directory: str | Path) -> tuple[str, Any]:
    """Return kind and `Tokenizer` of a directory (or of its file); raise `FileError`.

    The first kind whose `Tokenizer.load` takes the files: each refuses those of another.
    """
    path = Path(directory)
    if not path.exists():
        raise FileError(f"{path}: no such directory; expected a tokenizer's")
    if path.is_dir() and not is_there(path):
        raise FileError(f"{path}: no tokenizer here, neither {' nor '.join(_files())}")
    refused = []
    for kind in registry.names("tokenizers"):
        try:
            return kind, registry.load("tokenizers", kind).Tokenizer.load(path)
        except FileError as error:
            refused.append(f"{kind}: {error}")
    raise FileError(f"{path}: no known kind of tokenizer: {'; '.join(refused)}")
