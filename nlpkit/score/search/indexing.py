"""Builds the index of the documents or opens a saved one; and the signature of its scores."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nlpkit import __version__
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.plural import number_of
from nlpkit.score.files import name_of
from nlpkit.score.search import inverted_index, kept_index
from nlpkit.score.search.documents import Records
from nlpkit.score.search.inverted_index import Index
from nlpkit.score.search.ranking import Weighting
from nlpkit.score.search.words import TOKENIZERS, tokenizer


class Settings(NamedTuple):
    """The settings on which an index depends."""

    tokenize: str
    lowercase: bool
    format: str
    title: bool


def index_of(options: argparse.Namespace, info: Callable[[str], None]) -> tuple[Index, Settings]:
    """Return the new or saved index of the documents, and its settings."""
    if options.docs != "-" and Path(options.docs).is_dir():
        return _opened(options, info)
    records = Records(options.docs, options.input_format, title=options.title is not False)
    lowercase = options.lowercase is not False
    settings = Settings(options.tokenize or "word", lowercase, records.format, records.title)
    if not options.index:
        return _built(records, settings, info), settings
    directory = Path(options.index)
    kept = kept_index.read_settings(directory)
    made_from = settings._asdict() | kept_index.versions(settings.tokenize)
    if options.docs != "-":
        made_from["documents"] = kept_index.fingerprint(options.docs)
        if kept == made_from:
            index = kept_index.load(directory)[0]
            info(f"index: {directory}, kept")
            return index, settings
    index = _built(records, settings, info)
    kept_index.save(index, made_from, directory)
    changed = [key for key in made_from if kept is not None and kept.get(key) != made_from[key]]
    reason = f" again, because these changed: {', '.join(changed)}" if changed else ""
    info(f"index: {directory}, written{reason}")
    return index, settings


def _opened(options: argparse.Namespace, info: Callable[[str], None]) -> tuple[Index, Settings]:
    """Return the index in DOCS; raise `UsageError` if options differ from its settings."""
    if options.index:
        raise UsageError(f"--index: {options.docs} is already an index")
    index, kept = kept_index.load(Path(options.docs))
    try:
        settings = Settings(**{name: kept[name] for name in Settings._fields})
        if settings.tokenize not in TOKENIZERS:
            raise ValueError(f"no {settings.tokenize!r} among the tokenizers")
    except (KeyError, ValueError) as error:
        raise FileError(f"{options.docs}: a damaged index ({error}); remove it") from error
    for name, version in kept_index.versions(settings.tokenize).items():
        if kept.get(name) != version:
            other = f"made with {name} {kept.get(name)}, here is {version}"
            info(f"{options.docs}: {other}; words may be split differently")
    given = (options.tokenize, options.lowercase, options.input_format, options.title)
    for name, value, made in zip(Settings._fields, given, settings, strict=True):
        if value is not None and value != made:
            raise UsageError(f"{options.docs}: made with {name} {made}, not {value}")
    return index, settings


def _built(records: Records, settings: Settings, info: Callable[[str], None]) -> Index:
    index = inverted_index.build(records, tokenizer(settings.tokenize, settings.lowercase))
    if not index.ids:
        raise DataError(f"{name_of(records.path)}: holds no document")
    if records.blank:
        info(f"{name_of(records.path)}: {number_of(records.blank, 'blank lines')} left out")
    return index


def signature(name: str, weighting: Weighting, index: Index, settings: Settings) -> str:
    """Return `NAME|key:value|…` with all settings that change the scores."""
    values = {key: "none" if v is None else v for key, v in weighting.parameters.items()}
    values |= {"tok": settings.tokenize, "case": "lower" if settings.lowercase else "mixed"}
    if settings.format == "jsonl":
        values["title"] = "yes" if settings.title else "no"
    values |= {"docs": len(index.ids), "version": __version__}
    return "|".join([name, *(f"{key}:{value}" for key, value in values.items())])
