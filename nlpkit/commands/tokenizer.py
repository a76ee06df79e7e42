"""Train the tokenizer of a recipe, or show the tokens of a text."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlpkit.commands._options import Common, RecipeName, argument, shared
from nlpkit.disk import user_path, whole_directory
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.plural import number_of
from nlpkit.verbs import Verb

if TYPE_CHECKING:
    from nlpkit.config import FrozenConfig
    from nlpkit.contracts.reader import Counts
    from nlpkit.contracts.tokenizer import Tokenizer
    from nlpkit.data.settings import Part
    from nlpkit.recipe import Resolved

_FIRST = 20
_IDS = ("bos_id", "eos_id", "unk_id", "pad_id")

command = typer.Typer(no_args_is_help=True)

Directory = Annotated[str, argument("DIR", "a saved tokenizer, a checkpoint, or a run")]
Text = Annotated[str | None, argument("TEXT|-", "a text; - reads stdin")]


@command.command("train", cls=Verb)
@shared("overrides", "out")
def train(recipe: RecipeName, common: Common) -> None:
    """Train the tokenizer of RECIPE on its data.train and print the directory it is in.

    Without --out it is tokenizer/ of the run. A run whose directory holds a tokenizer/ uses that
    one. With init_from, the result is the tokenizer of that checkpoint, with more tokens.
    """
    from nlpkit.checkpoints import tokenizer_files
    from nlpkit.contracts.reader import Counts

    resolved = common.load(recipe)
    section = resolved.recipe.tokenizer
    if section is not None and section.sides is not None:
        raise UsageError(
            "tokenizer: the recipe has two, source and target, which a run trains; to train one "
            "alone, give a recipe with tokenizer.kind, and name its result by path"
        )
    if section is None or section.kind is None:
        raise UsageError("tokenizer: it must have a kind to be trained, and this recipe sets none")
    directory = user_path(common.out or Path(resolved.recipe.out) / "tokenizer")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileError(f"{directory}: exists already; remove it, or give --out another name")
    counts = Counts()
    with common.catch_signals() as stop, stop.abortable():
        texts = _read_texts(resolved, counts, stop.check)
        tokenizer = _train(resolved, section.kind, section.config, texts)
    full = directory.absolute()  # `.` has no name
    # With a number: what is there under the name alone is a user's, and a draft replaces it.
    with whole_directory(directory, full.with_name(f".{full.name}.{os.getpid()}")) as draft:
        tokenizer_files.save(tokenizer, draft)
    if not common.quiet:
        size = number_of(tokenizer.vocab_size, "tokens")
        skipped = f", {number_of(counts.bad, 'malformed rows')} skipped" if counts.bad else ""
        read = f"{number_of(counts.documents, 'documents')}{skipped}"
        read += tokenizer.training_note and f", {tokenizer.training_note}"
        print(f"tokenizer: {section.kind}, {size}, from {read}", file=sys.stderr)
    common.print_result(
        str(directory),
        path=str(directory),
        kind=section.kind,
        vocab_size=tokenizer.vocab_size,
        documents=counts.documents,
        bad=counts.bad,
    )


def _train(
    resolved: "Resolved", kind: str, config: "FrozenConfig", texts: Iterable[str]
) -> "Tokenizer":
    """Train a tokenizer, or grow that of the checkpoint on which the recipe starts."""
    from nlpkit import registry
    from nlpkit.checkpoints import files, tokenizer_files

    if resolved.recipe.init_from is None:
        trained: Tokenizer = registry.load("tokenizers", kind).Tokenizer.train(texts, config)
        return trained
    from nlpkit.runs import grow_vocabulary  # imports torch

    home = resolved.path(resolved.recipe.init_from)
    home = files.find_named(home) or home
    old_kind, old = tokenizer_files.load((files.choose_checkpoint(home) or [home])[0])
    return grow_vocabulary.grow(old, old_kind, kind, texts, config.model_dump())


def _read_texts(
    resolved: "Resolved", counts: "Counts", should_stop: Callable[[], None]
) -> Iterator[str]:
    """Yield the texts that a run would train its tokenizer on."""
    from nlpkit.data.cache import Callbacks
    from nlpkit.data.files import find_inputs
    from nlpkit.runs.vocabulary import TrainingText

    config = resolved.recipe.data
    part: Part = "train" if config.valid_fraction else "all"
    with tempfile.TemporaryDirectory() as spool:
        inputs, _ = find_inputs(config, resolved.base, Path(spool), should_stop)
        callbacks = Callbacks(should_stop=should_stop)
        yield from TrainingText(resolved, inputs, part, Path(spool), callbacks).texts(counts)


@command.command("show", cls=Verb)
@shared()
def show(directory: Directory, common: Common, text: Text = None) -> None:
    """Print the tokens of TEXT, one per line: id, tab, token.

    Tokens of bytes are shown as text; --json has them as the vocabulary does.

    Without TEXT, print kind, size, special tokens and the first tokens of the vocabulary.
    """
    from nlpkit.checkpoints import files, tokenizer_files
    from nlpkit.tokenizers.library import source_and_target
    from nlpkit.tokenizers.library.shown import show_token

    home = files.find_named(Path(directory)) or Path(directory)
    if (home / "tokenizer").is_dir() and not tokenizer_files.is_there(home):  # a run
        home = home / "tokenizer"
    kind, tokenizer = tokenizer_files.load(home)
    if kind == source_and_target.KIND:
        names = " or ".join(str(home / folder) for folder in source_and_target.FOLDERS)
        raise UsageError(f"{home}: has a tokenizer for sources and one for targets; name {names}")
    if text == "-":
        text = _read_stdin()
    if text is None:
        _show_tokenizer(kind, tokenizer, common)
        return
    ids = tokenizer.encode(text)
    tokens = [tokenizer.token(token_id) for token_id in ids]
    lines = [f"{token_id}\t{show_token(tokenizer, token_id)}" for token_id in ids]
    if lines or common.json:
        common.print_result("\n".join(lines), text=text, ids=ids, tokens=tokens)


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("TEXT: '-' is stdin, but stdin is closed")
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"stdin: byte {error.start + 1} is not UTF-8") from error


def _show_tokenizer(kind: str, tokenizer: "Tokenizer", common: Common) -> None:
    from nlpkit.tokenizers.library.shown import show_token

    ids = {name: getattr(tokenizer, name) for name in _IDS}
    first = [tokenizer.token(token_id) for token_id in range(min(_FIRST, tokenizer.vocab_size))]
    special = [
        f"{name}\t{'none' if token_id is None else f'{token_id} {show_token(tokenizer, token_id)}'}"
        for name, token_id in ids.items()
    ]
    lines = [f"kind\t{kind}", f"vocab_size\t{tokenizer.vocab_size}", *special]
    lines += [f"{token_id}\t{show_token(tokenizer, token_id)}" for token_id in range(len(first))]
    common.print_result(
        "\n".join(lines), kind=kind, vocab_size=tokenizer.vocab_size, **ids, first_tokens=first
    )
