"""Saves and loads tokenizers of all kinds. Imports no torch."""

import json
from pathlib import Path
from typing import TypeGuard

from nlpkit import registry
from nlpkit.errors import FileError
from nlpkit.tokenizers import _source_and_target
from nlpkit.tokenizers._source_and_target import SourceAndTarget
from nlpkit.tokenizers.contract import Extendable, Tokenizer

KIND = "nlpkit_tokenizer.json"  # has the dotted name of a kind that the user wrote


def _files() -> list[str]:
    """Return the file names of all kinds; a directory with one of them has a tokenizer."""
    kinds = (registry.load("tokenizers", kind) for kind in registry.names("tokenizers"))
    return sorted({KIND, *(name for module in kinds for name in module.Tokenizer.files)})


def is_there(directory: Path) -> bool:
    """Return whether a directory has a file of a tokenizer, valid or not."""
    two = any((directory / name).is_dir() for name in _source_and_target.FOLDERS)
    return two or any((directory / name).is_file() for name in _files())


def save(tokenizer: Tokenizer, directory: Path, *, token_types: bool = False) -> None:
    """Write the tokenizer's files, and the name of its kind if it is not a kind of nlpkit.

    With `token_types` transformers gives the model the types of tokens, too.
    """
    if isinstance(tokenizer, SourceAndTarget):
        sides = zip(_source_and_target.FOLDERS, (tokenizer.source, tokenizer.target), strict=True)
        for folder, side in sides:
            save(side, directory / folder, token_types=token_types)
        return
    tokenizer.save(directory)
    settings = directory / "tokenizer_config.json"
    if token_types and settings.is_file():
        content = json.loads(settings.read_text(encoding="utf-8"))
        content["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        settings.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    module = type(tokenizer).__module__
    if not module.startswith("nlpkit.tokenizers."):
        (directory / KIND).write_text(json.dumps({"kind": module}) + "\n", encoding="utf-8")


def target_ids(
    tokenizer: Tokenizer | None, tokens: tuple[str, str]
) -> tuple[int | None, int | None]:
    """Return the ids of what begins and what ends a target; None where there is no such token."""
    if tokenizer is None or not is_extendable(tokenizer):
        return None, None
    begin, end = (tokenizer.special_id(token) for token in tokens)
    return begin, end


def is_extendable(tokenizer: Tokenizer) -> TypeGuard[Extendable]:
    """Return whether special tokens can be added to a tokenizer, to each of two."""
    if isinstance(tokenizer, SourceAndTarget):
        return is_extendable(tokenizer.source) and is_extendable(tokenizer.target)
    return isinstance(tokenizer, Extendable)


def load(directory: str | Path) -> tuple[str, Tokenizer]:
    """Return the kind and the `Tokenizer` in a directory or file; raise `FileError`.

    The kind is the one in the file `nlpkit_tokenizer.json` or, without this file, the first kind
    whose `Tokenizer.load` accepts the files. `load` refuses the files of other kinds. Two folders,
    for sources and for targets, have a tokenizer each.
    """
    path = Path(directory)
    if not path.exists():
        raise FileError(f"{path}: no such directory; expected a tokenizer")
    if path.is_dir() and not is_there(path):
        raise FileError(f"{path}: no tokenizer here, neither {' nor '.join(_files())}")
    if any((path / folder).is_dir() for folder in _source_and_target.FOLDERS):
        sides = [load(path / folder)[1] for folder in _source_and_target.FOLDERS]
        return _source_and_target.KIND, _source_and_target.joined(*sides)
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
    """Return the dotted kind in a file; raise `FileError` if it must not be imported."""
    try:
        kind = json.loads(file.read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileError(f"{file}: names no kind of tokenizer: {error}") from error
    if not isinstance(kind, str) or "." not in kind:
        raise FileError(f"{file}: names no kind of tokenizer: {kind!r} is not a dotted name")
    registry.check_named_by(file, kind, "run nlpkit where it lies")
    return kind
