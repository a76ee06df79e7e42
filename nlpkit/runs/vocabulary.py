"""The tokenizer of a run: loaded, or trained on its text."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit import registry
from nlpkit.checkpoints import tokenizer_files
from nlpkit.contracts.reader import Counts
from nlpkit.contracts.task import Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.cache import content_hash, publish, scratch
from nlpkit.data.documents import read_documents
from nlpkit.data.files import Input
from nlpkit.data.settings import Part
from nlpkit.data.store import Callbacks
from nlpkit.disk import file_sha256, read_json, write_json
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models.config import ModelConfig
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved, sections
from nlpkit.recipe.fit import list_special_tokens, reads_text
from nlpkit.tokenizers.library.source_and_target import SourceAndTarget

if TYPE_CHECKING:
    from nlpkit.runs.run import ModelPart

TOKENIZER = "tokenizer"  # a directory in the run directory
HASHES = "sha256.json"  # of the files of a tokenizer in the cache


@dataclass(frozen=True)
class TrainingText:
    """The text that trains a tokenizer: that of `data.train`."""

    resolved: Resolved
    inputs: list[Input]
    part: Part
    cache: Path
    callbacks: Callbacks

    @property
    def objective(self) -> sections.Objective:
        """The recipe's objective, the first one of a list."""
        return self.resolved.recipe.objective[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a task reads; none for an objective on running text."""
        objective = self.objective.objective
        return objective.named_columns(self.objective.config) if issubclass(objective, Task) else ()

    def key(self) -> JsonObject:
        """Return what the text depends on."""
        data, stop = self.resolved.recipe.data, self.callbacks.should_stop
        files = [file for entry in self.inputs for file in entry.files]
        decide = {"text_key", "line_break", "on_error", "rows", "history"}
        return {
            "files": [
                [content_hash(file, stop), file.format, file.text_key, file.max_rows]
                for file in files
            ],
            "data": data.model_dump(mode="json", include=decide),
            "part": [self.part, data.valid_fraction, *filter(None, [data.valid_group])],
        } | ({"task": [self.objective.name, "rows", *self.columns]} if self.columns else {})

    def texts(self, counts: Counts) -> Iterator[str]:
        """Yield the documents; of a task whose rows are none, or held out, its rows' texts."""
        if self.columns:
            from nlpkit.runs import row_texts

            if self.part != "all" or row_texts.are_rows(self):
                yield from row_texts.read(self, counts)
                return
        data, stop = self.resolved.recipe.data, self.callbacks.should_stop
        for document in read_documents(self.inputs, data, counts, part=self.part, should_stop=stop):
            yield from document.texts


def build_tokenizer(text: TrainingText, part: "ModelPart", run_path: Path) -> Tokenizer | None:
    """Return the tokenizer saved in the run or, if there is none, the tokenizer of the recipe.

    The recipe's tokenizer is loaded or trained. With `init_from`, the tokenizer of the checkpoint
    is extended instead. The result is None if no objective reads text.

    Raises:
        UsageError: the tokenizer does not start with the tokens of `init_from`.
    """
    resolved, own = text.resolved, run_path / TOKENIZER
    section = resolved.recipe.tokenizer
    if not reads_text(resolved.recipe.objective):
        return None
    tokenizer = tokenizer_files.load(own)[1] if own.is_dir() else None
    if part.source is not None:
        from nlpkit.runs import grow_vocabulary

        tokenizer = grow_vocabulary.starting_tokenizer(text, part, tokenizer)
    elif tokenizer is None:
        assert section is not None  # checked by the recipe
        if section.sides is not None:
            from nlpkit.runs import two_tokenizers

            tokenizer = two_tokenizers.build(text, section.sides)
        else:
            tokenizer = load_or_train(text, section)
    if part.source is None and part.config.mask_token == "<mask>":
        from nlpkit.checkpoints import bert_vocabulary

        bert_vocabulary.name_tokens(tokenizer, part.config, None)
    tokenizer = with_special_tokens(resolved, tokenizer, part.config)
    two = isinstance(tokenizer, SourceAndTarget) or part.config.source_vocab_size
    if two or part.source is not None:
        from nlpkit.runs import two_tokenizers

        two_tokenizers.set_source_vocabulary(resolved, part, tokenizer)
    return tokenizer


def load_or_train(text: TrainingText, section: sections.Tokenizer | sections.Side) -> Tokenizer:
    """Return the tokenizer of the section `tokenizer`."""
    if section.path is not None:
        return tokenizer_files.load(text.resolved.path(section.path))[1]
    return train(text, section, text.texts)


def train(
    text: TrainingText,
    section: sections.Tokenizer | sections.Side,
    texts: Callable[[Counts], Iterator[str]],
    more_key: JsonMapping | None = None,
    old: tuple[str, Tokenizer] | None = None,
    what: str = "tokenizer",
) -> Tokenizer:
    """Return a tokenizer trained on `texts`, or `old` extended from them; from the cache if it can.

    `more_key` is what the texts depend on beside `text`. `old` is the kind and the tokenizer.
    """
    kind = section.kind
    assert kind is not None
    key = {"kind": kind, "config": section.config.model_dump(), **text.key(), **(more_key or {})}
    if old is not None:
        key["grown from"] = old[1].fingerprint()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    path, callbacks = text.cache / "tokenizers" / digest, text.callbacks
    if path.is_dir():
        try:
            return _kept(path, kind)
        except FileError as error:
            callbacks.note(f"tokenizer: {error}; training it again")
            shutil.rmtree(path, ignore_errors=True)
    counts = Counts()
    counted = _counted(texts(counts), callbacks)
    if old is None:
        tokenizer = registry.load("tokenizers", kind).Tokenizer.train(counted, section.config)
    else:
        from nlpkit.runs import grow_vocabulary

        tokenizer = grow_vocabulary.grow(old[1], old[0], kind, counted, key["config"])
    with scratch(path.parent) as workdir:
        built = workdir / "tokenizer"
        tokenizer_files.save(tokenizer, built)
        write_json(built / HASHES, {file.name: file_sha256(file) for file in built.iterdir()})
        publish(built, path)
    new = tokenizer.vocab_size - (old[1].vocab_size if old else 0)
    how = f", {new:,} of them new, grown" if old else " trained"
    read = filter(None, [number_of(counts.documents, "documents"), tokenizer.training_note])
    callbacks.note(f"{what}: {kind}, {tokenizer.vocab_size:,} tokens{how} on {', '.join(read)}")
    return tokenizer


def _counted(texts: Iterator[str], callbacks: Callbacks) -> Iterator[str]:
    """Yield the texts, and report how many there were."""
    for number, text in enumerate(texts, 1):
        yield text
        callbacks.texts(number)


def with_special_tokens(resolved: Resolved, tokenizer: Tokenizer, config: ModelConfig) -> Tokenizer:
    """Return the tokenizer with the special tokens that the objectives need.

    Raises:
        UsageError: tokens cannot be added to a tokenizer of this kind.
    """
    needed = list_special_tokens(resolved.recipe.objective, config)
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


def _kept(path: Path, kind: str) -> Tokenizer:
    """Return the tokenizer of this kind in a directory of the cache."""
    for name, expected in read_json(path / HASHES).items():
        try:
            found = file_sha256(path / name)
        except OSError as error:
            raise FileError(f"{path / name}: cannot be read: {error.strerror}") from error
        if found != expected:
            raise FileError(f"{path / name}: damaged, its hash differs from the one in {HASHES}")
    tokenizer: Tokenizer = registry.load("tokenizers", kind).Tokenizer.load(path)
    return tokenizer
