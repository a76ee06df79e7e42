"""What may be imported and stays (docs/python.md): open, generate, score, write a store.

Importing this module imports no torch; only opening a checkpoint does. What the command line says
on stderr is a warning here (`warnings`), and errors are those of `nlpkit.errors`.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.contracts.metric import Score
    from nlpkit.data.corpus import TokenStore
    from nlpkit.generate.settings import Settings
    from nlpkit.generate.texts import Written
    from nlpkit.runs.open_checkpoint import Opened


def open_checkpoint(
    path: str | Path,
    *,
    device: str = "auto",
    precision: Literal["auto", "bf16", "fp32"] = "auto",
) -> "Opened":
    """Return `model` (in evaluation mode), `tokenizer` and `objective` of a checkpoint or a run.

    `path` may also be a directory in the layout of `transformers`. Raise `FileError` if it cannot
    be opened, `DivergedError` if a weight is not finite, `UsageError` for a device or
    precision that there is not.
    """
    if precision not in ("auto", "bf16", "fp32"):
        raise UsageError(f"precision: needs auto, bf16 or fp32, got {precision}")
    from nlpkit.runs import open_checkpoint as opening

    return opening.open_checkpoint(path, device=device, precision=precision, warn=_warn)


def generate(
    opened: "Opened", texts: Iterable[str], settings: "Settings | None" = None, *, batch: int = 32
) -> "Iterator[Written]":
    """Return an iterator of the outputs of each text, in order; greedy without `settings`.

    Raise `UsageError` if the model does not generate text, or a setting is too large for it.
    """
    from nlpkit.generate.settings import Settings
    from nlpkit.generate.texts import Writer

    if isinstance(texts, str):
        raise UsageError("texts: is one text; give a list of texts: [text]")
    if batch < 1:
        raise UsageError(f"batch: needs 1 or more, got {batch}")
    writer = Writer(opened.model, opened.tokenizer, opened.objective, settings or Settings())
    return writer.write(map(_check_text, texts), batch=batch, warn=_warn)


def score(name: str, answers: Sequence[str], references: Sequence[str | Sequence[str]]) -> "Score":
    """Return a score, such as `bleu` or `rouge:variant=rouge1`, of answers by their references.

    An answer has one reference or several. Raise `UsageError` for a wrong name, option or number of
    lines, `DataError` if the score is undefined.
    """
    from nlpkit.score import named

    if isinstance(answers, str) or isinstance(references, str):
        raise UsageError("answers, references: each is a list of texts, a text for each line")
    if len(answers) != len(references):
        raise UsageError(f"{len(answers)} answers and {len(references)} references; give as many")
    for number, (answer, each) in enumerate(zip(answers, references, strict=True), 1):
        given = each if isinstance(each, Iterable) and not isinstance(each, str) else [each]
        if not [_check_text(text) for text in (answer, *given)][1:]:
            raise UsageError(f"references: those of answer {number} are an empty list")
    try:
        return named.score(name, answers, references, _warn)
    except named.WrongScore as error:
        raise UsageError(error.message) from error


def write_store(
    files: Sequence[str | PathLike[str]], tokenizer: str | Path, cache: str | Path
) -> "TokenStore":
    """Return the documents of text files as token ids, written below `cache` or found there.

    `files` are paths, globs or directories, read as `data.train` of a recipe; `tokenizer` is a
    directory or file, such as RUN/tokenizer. Raise `FileError` or `DataError` (`file:line: what`).
    """
    from nlpkit.checkpoints import tokenizer_files
    from nlpkit.data import store
    from nlpkit.data.cache import Callbacks
    from nlpkit.data.files import find_inputs
    from nlpkit.data.settings import Config, Source

    if isinstance(files, str) or not files:
        raise UsageError("files: needs a list of paths, such as ['text.txt']")
    config = Config(train=[Source(files=[fspath(file) for file in files])])
    inputs = find_inputs(config, None, None)[0]
    if not inputs:
        raise UsageError("files: a pipe or stdin can be read only once; give files")
    encoding = store.Encoding(tokenizer_files.load(tokenizer)[1])
    callbacks = Callbacks(warn=_warn)
    return store.build(
        inputs[0].files, config, encoding, cache_dir=Path(cache), callbacks=callbacks
    )


def _check_text(text: object) -> str:
    if isinstance(text, str):
        return text
    raise UsageError(f"{text!r} is no text; give a str, such as {str(text)!r}")


def _warn(line: str) -> None:
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals["__name__"].startswith("nlpkit."):
        level, frame = level + 1, frame.f_back
    warnings.warn(line, stacklevel=level)
