"""Reads a vocabulary and its merges, the two files of byte pair encodings before tokenizer.json."""

import json
from collections.abc import Mapping
from pathlib import Path

from nlpkit.errors import FileError
from nlpkit.tokenizers.library import text_files


def find(folder: Path, pairs: Mapping[str, str]) -> tuple[Path, Path] | None:
    """Return the files of vocabulary and merges, or None if a directory has no such vocabulary.

    `pairs` are the names of vocabularies, with those of their merges.
    """
    found = ((folder / vocab, folder / merges) for vocab, merges in pairs.items())
    return next((files for files in found if files[0].is_file()), None)


def read_vocabulary(file: Path) -> dict[str, int]:
    """Return token → id; raise `FileError`."""
    text, _ = text_files.read(file, file.name)
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{file}: not JSON: {error}") from error
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise FileError(f"{file}: expected an object of token: id")
    if sorted(ids.values()) != list(range(len(ids))):
        raise FileError(f"{file}: the ids are not 0 to {len(ids) - 1}, each once")
    return ids


def read_merges(file: Path, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merges in their order; raise `FileError` if a token is not among `ids`."""
    pairs = []
    for line, row in enumerate(text_files.read(file, file.name)[0].split("\n"), 1):
        if not row or (line == 1 and row.startswith("#version")):
            continue
        left, space, right = row.partition(" ")
        if not space or not {left, right, left + right} <= ids.keys():
            raise FileError(f"{file}:{line}: {row!r} is not a merge of two tokens into a third")
        pairs.append((left, right))
    return pairs
