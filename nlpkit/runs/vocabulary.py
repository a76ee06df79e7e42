"""The tokenizer of a run: loaded, trained on its text, or extended with tokens from its text."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nlpkit import registry
from nlpkit.checkpoints import any_layout, tokenizer_files
from nlpkit.contracts.reader import RowError
from nlpkit.contracts.task import Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data import corpus, formats
from nlpkit.data.cache import content_hash, publish, scratch
from nlpkit.data.items import read_rows
from nlpkit.data.store import Callbacks
from nlpkit.disk import file_sha256, read_json, write_json
from nlpkit.errors import FileError, UsageError
from nlpkit.models.config import ModelConfig
from nlpkit.models.rows import without_padding
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved, fit, sections
from nlpkit.recipe.fit import classes, reads_text
from nlpkit.runs import grow
from nlpkit.runs.run import ModelPart
from nlpkit.tokenizers._source_and_target import SourceAndTarget, joined, of_sources

TOKENIZER = "tokenizer"  # a directory in the run directory
HASHES = "sha256.json"  # of the files of a tokenizer in the cache


def build_tokenizer(
    resolved: Resolved,
    part: ModelPart,
    inputs: list[corpus.Input],
    which: corpus.Part,
    run_path: Path,
    cache: Path,
    callbacks: Callbacks,
) -> Tokenizer | None:
    """Return the tokenizer saved in the run or, if there is none, the tokenizer of the recipe.

    The recipe's tokenizer is loaded or trained. With `init_from`, the tokenizer of the checkpoint
    is extended instead. The result is None if no objective reads text.

    Raises:
        UsageError: the tokenizer does not start with the tokens of `init_from`.
    """
    if not reads_text(resolved.recipe.objective):
        return None
    own = run_path / TOKENIZER
    section = resolved.recipe.tokenizer
    home = part.source and any_layout.tokenizer_home(part.source)
    old = tokenizer_files.load(home) if home and tokenizer_files.is_there(home) else None
    if own.is_dir():
        tokenizer = tokenizer_files.load(own)[1]
    elif section is None:
        assert home is not None  # checked by the recipe
        tokenizer = tokenizer_files.load(home)[1]
    elif section.path is not None:
        tokenizer = tokenizer_files.load(resolved.path(section.path))[1]
    elif section.sides is not None and part.source is not None:
        raise UsageError(
            "tokenizer.source: with init_from the tokenizers are those of the checkpoint; remove "
            "the section tokenizer"
        )
    elif section.sides is not None:
        sides = [
            tokenizer_files.load(resolved.path(side.path))[1]
            if side.path is not None
            else _trained(resolved, side, None, inputs, which, cache, callbacks, number)
            for number, side in enumerate(section.sides)
        ]
        tokenizer = joined(*sides)
    elif part.source is not None and old is None:
        raise UsageError(f"tokenizer.kind: {part.source} has no tokenizer to grow; give a path")
    else:
        tokenizer = _trained(resolved, section, old, inputs, which, cache, callbacks)
    if part.source is not None:
        _check_rows(part, old, tokenizer)
    tokenizer = _with_special_tokens(resolved, tokenizer, part.config)
    _take_source_vocabulary(resolved, part, tokenizer)
    return tokenizer


def _take_source_vocabulary(resolved: Resolved, part: ModelPart, tokenizer: Tokenizer) -> None:
    """Set the size of the sources' vocabulary in the model's settings, if they have their own.

    Raises:
        UsageError: the model, or an objective, has one vocabulary for both; or the model of
            `init_from` another one.
    """
    two = isinstance(tokenizer, SourceAndTarget)
    size = of_sources(tokenizer).vocab_size if two else None
    old = getattr(part.config, "source_vocab_size", None)
    if part.source is not None and old != size:
        raise UsageError(
            f"init_from: the model in {part.source} has {_own(old)} of sources alone, and the "
            f"tokenizer {_own(size)}; use the tokenizer that belongs to the model"
        )
    if size is None and old is None:
        return
    for _, what in fit.of_tokenizers(resolved.recipe.objective, part.family, part.config):
        raise UsageError(f"tokenizer: {what}")
    part.config = part.config.model_copy(update={"source_vocab_size": size})


def _own(size: int | None) -> str:
    return "no vocabulary" if size is None else f"a vocabulary of {size:,} tokens"


def _with_special_tokens(
    resolved: Resolved, tokenizer: Tokenizer, model_config: ModelConfig
) -> Tokenizer:
    """Return the tokenizer with the special tokens that the objectives need.

    Raises:
        UsageError: tokens cannot be added to a tokenizer of this kind.
    """
    needed = dict.fromkeys(
        token
        for objective in classes(resolved.recipe.objective)
        for token in objective.special_tokens(model_config)
    )
    if not needed:
        return tokenizer
    if not tokenizer_files.is_extendable(tokenizer):
        names = ", ".join(section.name for section in resolved.recipe.objective)
        raise UsageError(
            f"tokenizer: objective {names} needs the tokens {', '.join(needed)}, which cannot be "
            "added to a tokenizer of this kind; use bpe, unigram or wordpiece"
        )
    lacking = [token for token in needed if tokenizer.special_id(token) is None]
    return tokenizer.extended(lacking) if lacking else tokenizer


def _check_rows(part: ModelPart, old: tuple[str, Tokenizer] | None, tokenizer: Tokenizer) -> None:
    """Raise `UsageError` unless row r of the checkpoint's embedding is token r of the tokenizer.

    Rows after the last token are cut where released models have them.
    """
    if old is not None:
        grow.check(old[1], tokenizer, str(part.source))
    size = old[1].vocab_size if old else tokenizer.vocab_size
    if part.is_padded(size):
        part.rows = size
        if part.start is not None:
            part.start = without_padding(part.start, part.vocabulary, size)
    if part.rows not in (None, size):
        owner = "its" if old else "the recipe's"
        raise UsageError(
            f"init_from: the model in {part.source} has {part.rows} tokens and {owner} "
            f"tokenizer has {size}; use the tokenizer that belongs to the model"
        )


def _trained(
    resolved: Resolved,
    section: sections.Tokenizer | sections.Side,
    old: tuple[str, Tokenizer] | None,
    inputs: list[corpus.Input],
    which: corpus.Part,
    cache: Path,
    callbacks: Callbacks,
    side: int | None = None,
) -> Tokenizer:
    """Return a tokenizer trained on the text, or `old` (kind, tokenizer) extended from it.

    `side` is 0 for the sources alone, 1 for the targets alone.
    """
    assert section.kind is not None
    key = (
        {
            "kind": section.kind,
            "config": section.config.model_dump(),
            "files": [
                [content_hash(file, cache / "hashes", callbacks.should_stop), file.format]
                for entry in inputs
                for file in entry.files
            ],
            "data": resolved.recipe.data.model_dump(include={"text_key", "line_break", "on_error"}),
            "part": [which, resolved.recipe.data.valid_fraction],
        }
        | _own_keys(resolved, inputs)
        | ({"grown from": old[1].fingerprint()} if old else {})
    )
    if side is not None:
        first = resolved.recipe.objective[0]
        key["side"] = [side, first.name, first.config.model_dump(mode="json")]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    path = cache / "tokenizers" / digest
    if path.is_dir():
        try:
            return _kept(path)
        except FileError as error:
            callbacks.note(f"tokenizer: {error}; training it again")
    counts = corpus.Counts()
    if side is None:
        texts = _texts(resolved, inputs, which, counts, callbacks)
    else:
        texts = _texts_of_side(resolved, inputs, which, counts, callbacks, side)
    texts = _told(texts, callbacks)
    if old is None:
        module = registry.load("tokenizers", section.kind)
        tokenizer = module.Tokenizer.train(texts, section.config)
    else:
        tokenizer = grow.grown(old[1], old[0], section.kind, texts, section.config.model_dump())
    with scratch(path.parent) as workdir:
        built = workdir / "tokenizer"
        tokenizer_files.save(tokenizer, built)
        write_json(built / HASHES, {file.name: file_sha256(file) for file in built.iterdir()})
        publish(built, path, lambda: _is_sound(path))
    how = (
        f", {tokenizer.vocab_size - old[1].vocab_size:,} of them new, grown" if old else " trained"
    )
    what = "tokenizer" if side is None else f"tokenizer of the {('sources', 'targets')[side]}"
    callbacks.note(
        f"{what}: {section.kind}, {tokenizer.vocab_size:,} tokens{how} on "
        f"{number_of(counts.documents, 'documents')}"
    )
    return tokenizer


def _own_keys(resolved: Resolved, inputs: list[corpus.Input]) -> dict[str, object]:
    """Return what else decides the texts, by names that keys of earlier versions do not have."""
    data = resolved.recipe.data
    keys = [file.text_key for entry in inputs for file in entry.files]
    found: dict[str, object] = {"text_keys": keys} if any(keys) else {}
    return found | ({"rows": [data.rows, data.history]} if data.rows is not None else {})


def _texts(
    resolved: Resolved,
    inputs: list[corpus.Input],
    which: corpus.Part,
    counts: corpus.Counts,
    callbacks: Callbacks,
) -> Iterator[str]:
    """Yield the documents; or the texts of a task's rows, where these are no documents."""
    config, (first, *_) = resolved.recipe.data, resolved.recipe.objective
    objective = registry.load("objectives", first.name).Objective
    found = {file.format for entry in inputs for file in entry.files}
    are_rows = config.rows is not None or not found & {*formats.DOCUMENT_FORMATS}
    columns = objective.named_columns(first.config) if issubclass(objective, Task) else ()
    if columns and "parallel" not in found:  # rows that have their texts in other columns
        are_rows |= config.text_key == "text" and "text" not in columns
    if columns and are_rows:
        for row in read_rows(inputs, config, columns, counts, which, callbacks):
            counts.documents += 1
            yield from objective.vocabulary_texts(first.config, row)
        return
    documents = corpus.documents(
        inputs, config, counts, part=which, should_stop=callbacks.should_stop
    )
    for document in documents:
        yield from document.texts


def _told(texts: Iterator[str], callbacks: Callbacks) -> Iterator[str]:
    """Yield the texts, and tell how many there were."""
    for number, text in enumerate(texts, 1):
        yield text
        callbacks.texts(number)


def _texts_of_side(
    resolved: Resolved,
    inputs: list[corpus.Input],
    which: corpus.Part,
    counts: corpus.Counts,
    callbacks: Callbacks,
    side: int,
) -> Iterator[str]:
    """Yield the sources (0) or the targets (1) of the rows; malformed rows are left out."""
    first = resolved.recipe.objective[0]
    objective = registry.load("objectives", first.name).Objective
    columns = objective.named_columns(first.config)
    for row in read_rows(inputs, resolved.recipe.data, columns, counts, which, callbacks):
        counts.documents += 1
        with suppress(RowError):  # counted or refused where the rows become examples
            yield objective.sides(first.config, row)[side]


def _kept(path: Path) -> Tokenizer:
    """Return the tokenizer in a directory of the cache.

    Raises:
        FileError: a file differs from the one that was written, or is missing.
    """
    for name, expected in read_json(path / HASHES).items():
        try:
            found = file_sha256(path / name)
        except OSError as error:
            raise FileError(f"{path / name}: cannot be read: {error.strerror}") from error
        if found != expected:
            raise FileError(f"{path / name}: damaged, its hash differs from the one in {HASHES}")
    return tokenizer_files.load(path)[1]


def _is_sound(path: Path) -> bool:
    try:
        _kept(path)
    except FileError:
        return False
    return True
