"""Saves a tokenizer, and opens a saved one of any kind. Imports no torch."""

import json
from pathlib import Path

from nlpkit import registry
from nlpkit.errors import FileError
from nlpkit.tokenizers.contract import Tokenizer

KIND = "nlpkit_tokenizer.json"  # names a kind of the user's own, a dotted one


def _files() -> list[str]:
    """Return file names; a directory with one of them is a tokenizer's."""
    kinds = (registry.load("tokenizers", kind) for kind in registry.names("tokenizers"))
    return sorted({KIND, *(name for module in kinds for name in module.Tokenizer.files)})


def is_there(directory: Path) -> bool:
    """Return whether a directory has a file of a tokenizer, readable or not."""
    return any((directory / name).is_file() for name in _files())


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the tokenizer's files, and the name of its kind where nlpkit has no such kind."""
    tokenizer.save(directory)
    module = type(tokenizer).__module__
    if not module.startswith("nlpkit.tokenizers."):
        (directory / KIND).write_text(json.dumps({"kind": module}) + "\n", encoding="utf-8")


def load(directory: str | Path) -> tuple[str, Tokenizer]:
    """Return kind and `Tokenizer` of a directory, or of its file; raise `FileError`.

    It is the kind that the directory names, else the first one whose `Tokenizer.load` accepts the
    files: each refuses those of others.
    """
    path = Path(directory)
    if not path.exists():
        raise FileError(f"{path}: no such directory; expected a tokenizer")
    if path.is_dir() and not is_there(path):
        raise FileError(f"{path}: no tokenizer here, neither {' nor '.join(_files())}")
    if (path / KIND).is_file():
        kind = _named_kind(path / KIND)
        return kind, registry.load("tokenizers", kind).Tokenizer.load(path)
    refused = []
    for kind in registry.names("tokenizers"):
        try:
            return kind, registry.load("tokenizers", kind).Tokenizer.load(path)
        except FileError as error:
            refused.append(f"{kind}: {error}")
    raise FileError(f"{path}: no known kind of tokenizer: {'; '.join(refused)}")


def _named_kind(file: Path) -> str:
    """Return the kind that a file names, which may be imported; raise `FileError`."""
    try:
        kind = json.loads(file.read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileError(f"{file}: names no kind of tokenizer: {error}") from error
    if not isinstance(kind, str) or "." not in kind:
        raise FileError(f"{file}: names no kind of tokenizer: {kind!r} is not a dotted name")
    registry.check_named_by(file, kind, "run nlpkit where it lies")
    return kind
