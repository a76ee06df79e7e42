"""Runs all steps of a recipe in seconds, on a few rows, in a temporary directory (`--smoke-test`).

Lightning calls this `fast_dev_run`."""

import dataclasses
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlpkit.commands._options import Common
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from nlpkit.contracts.reader import TextFile
    from nlpkit.data.files import Input
    from nlpkit.data.settings import Config
    from nlpkit.recipe import Resolved
    from nlpkit.train.log import Log
    from nlpkit.train.signals import StopFlag

_PREFIX = "nlpkit-smoke-test-"  # of the folder of its run
_STEPS = 2
_TRAIN_ROWS, _VALID_ROWS = 64, 16
_FILES = 4  # of a source
_BYTES = 1 << 20  # of a file
_TOKENS = 1024  # of a batch, if the recipe has more and if its examples fit
_NEW_TOKENS = 8
_VALUES = ("json", "parquet", "arrow")  # formats whose rows are copied as jsonl
_LINES = ("text", "paragraphs", "sentences", "jsonl", "tsv", "csv", "parallel")


def smoke_test(resolved: "Resolved", common: Common) -> None:
    """Train, save, open, evaluate and generate; print a summary. The run directory is not used.

    Raises:
        UsageError, DataError, FileError: the same errors as in the real run.
    """
    from nlpkit.cli import exit_now
    from nlpkit.train.log import Log
    from nlpkit.train.signals import catch_signals

    if common.dry_run:
        raise UsageError("--smoke-test and --dry-run exclude each other")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("--smoke-test runs in one process; start it without a launcher")
    begin = time.perf_counter()
    originals: dict[str, str] = {}  # path of a copy -> name of the user's file

    class RenamingLog(Log):
        def _print(self, text: str, style: str | None = None) -> None:
            for copy, name in originals.items():
                text = text.replace(copy, f"{name} (first rows)")
            if _PREFIX in text:  # of the checkpoint, which is going to be removed
                return
            super()._print(text, style)

    log = RenamingLog(common.verbosity)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        workdir = Path(name)
        with catch_signals(exit_now) as stop, _name_originals(originals):
            small = _small(resolved, workdir, originals, stop)
            checkpoint = _train(small, workdir, common.device, log, stop)
            done, values = _use(checkpoint, common.device, log, stop)
    seconds = time.perf_counter() - begin
    text = f"smoke test passed in {seconds:.0f} s: trained {_STEPS} steps, saved, {done}"
    common.result(text, passed=True, seconds=seconds, **values)


@contextmanager
def _name_originals(originals: dict[str, str]) -> Iterator[None]:
    """Replace paths of copies in errors by the names of the user's files (path -> name)."""
    try:
        yield
    except (DataError, FileError) as error:
        message = str(error)
        for copy, name in originals.items():
            message = message.replace(copy, name)
        raise type(error)(message) from error


def _small(
    resolved: "Resolved", workdir: Path, originals: dict[str, str], stop: "StopFlag"
) -> "Resolved":
    """Return the recipe with few steps and small batches, on a few rows of its files."""
    recipe = resolved.recipe
    lengths = [getattr(each.config, "max_length", None) or 0 for each in recipe.objective]
    budget = min(recipe.train.batch_budget, max(_TOKENS, *lengths))
    values: dict[str, Any] = {
        "steps": _STEPS,
        "epochs": None,
        "budget": None,
        "memory": None,
        "warmup_steps": 1,
        "warmup_ratio": None,
        "tokens_per_step": budget,
        "tokens_per_batch": budget,
        "eval_every": 1,
        "save_every": 1,
        "trackers": [],
    }
    train = type(recipe.train).model_validate(recipe.train.model_dump() | values)
    update = {
        "out": str(workdir / "run"),
        "train": train,
        "data": _few_rows(recipe.data, resolved.base, workdir, originals, stop),
    }
    return dataclasses.replace(resolved, recipe=recipe.model_copy(update=update))


def _few_rows(
    config: "Config", base: Path, workdir: Path, originals: dict[str, str], stop: "StopFlag"
) -> "Config":
    """Return `data` with copies of the first rows of each source.

    The held-out rows are also training rows, because a label may occur only in them.
    """
    from nlpkit.data.files import find_inputs

    spool = workdir / "stdin"
    train, valid = find_inputs(config, base, spool, stop.check)
    if config.valid_fraction:  # a fraction of a few rows may be no row
        valid = train
    known = _copies(valid, workdir / "known", _VALID_ROWS, originals)
    values = {
        "train": _copies(train, workdir / "train", _TRAIN_ROWS, originals) + known,
        "valid": _copies(valid, workdir / "valid", _VALID_ROWS, originals),
        "valid_fraction": 0.0,
        "cache": str(workdir / "cache"),
        "workers": 1,
    }
    return type(config).model_validate(config.model_dump() | values)


def _copies(
    inputs: list["Input"], folder: Path, rows: int, originals: dict[str, str]
) -> list[dict[str, Any]]:
    """Return the sources with some of their files: copies of the first rows, or links."""
    sources = []
    for number, source in enumerate(inputs):
        by_lines = source.files[0].format in (*_LINES, *_VALUES)
        # Spread over all files, because images of a class are neighbors.
        count = min(len(source.files), _FILES if by_lines else rows)
        few = [source.files[i * len(source.files) // count] for i in range(count)]
        paths, forms = [], set()
        for index, file in enumerate(few):
            forms.add("jsonl" if file.format in _VALUES else file.format)
            for each in (file, file.second):
                target = folder / f"{number}.{index}"
                if each is not None:
                    paths.append(_small_copy(each, target, -(-rows // count)))
                    originals[paths[-1]] = each.name
        # Of several formats, the endings tell them.
        form = forms.pop() if len(forms) == 1 else None
        sources.append({"files": paths, "format": form, "text_key": source.files[0].text_key})
    return sources


def _small_copy(file: "TextFile", folder: Path, rows: int) -> str:
    """Return the path of a file's first rows, or of a link where rows are no lines."""
    if file.format in _VALUES:
        return _listed(file, folder, rows)
    return _copy(file, folder, rows) if file.format in _LINES else _link(file, folder)


def _listed(file: "TextFile", folder: Path, rows: int) -> str:
    """Write the first rows of a file as jsonl; return the path."""
    from nlpkit.contracts.reader import Counts
    from nlpkit.data import formats

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(file.name).name}.jsonl"
    found = formats.reader(file.format).rows(file, (), Counts())
    with open(path, "w", encoding="utf-8") as copy:
        for _, values in itertools.islice(found, rows):
            if isinstance(values, dict):  # not what is wrong with a row
                copy.write(json.dumps(values, ensure_ascii=False, default=str) + "\n")
    return str(path)


def _copy(file: "TextFile", folder: Path, rows: int) -> str:
    """Copy the first rows of a file, at least one; return the path of the copy."""
    from nlpkit.data.lines import open_bytes

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / Path(file.name).name.removesuffix(".gz")
    size = quotes = 0
    with open_bytes(file) as source, open(path, "wb") as copy:
        for number, line in enumerate(source):
            # A cell of csv may hold line breaks, between quotes.
            is_between_rows = file.format != "csv" or quotes % 2 == 0
            if number and is_between_rows and (number >= rows or size >= _BYTES):
                break
            copy.write(line)
            size, quotes = size + len(line), quotes + line.count(b'"')
    return str(path)


def _link(file: "TextFile", folder: Path) -> str:
    """Make a link to a file, in a directory named like its class; return the path of the link."""
    path = Path(file.path)
    link = folder / path.parent.name / path.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(path)
    return str(link)


def _train(small: "Resolved", workdir: Path, device: str, log: "Log", stop: "StopFlag") -> Path:
    from nlpkit.checkpoints.run_directory import RunDirectory
    from nlpkit.runs.pretrain import pretrain

    directory = RunDirectory(workdir / "run")
    with directory.locked():
        return pretrain(small, directory, device=device, resume="never", log=log, stop=stop)


def _use(checkpoint: Path, device: str, log: "Log", stop: "StopFlag") -> tuple[str, dict[str, Any]]:
    """Open a checkpoint, evaluate it and generate with it; return a summary and the figures.

    Without held-out data nothing is evaluated, and not every objective generates.
    """
    from nlpkit.contracts.abilities import Generative
    from nlpkit.data.items import Items
    from nlpkit.data.store import Callbacks
    from nlpkit.evaluate import held_out
    from nlpkit.evaluate.source import find_data
    from nlpkit.generate.settings import Settings
    from nlpkit.generate.texts import Writer
    from nlpkit.runs.open_checkpoint import open_checkpoint

    opened = open_checkpoint(checkpoint, device=device, info=log.detail, warn=log.warn)
    callbacks = Callbacks(note=log.detail, should_stop=stop.check)
    settings = Settings(max_new_tokens=_NEW_TOKENS)
    done, values = ["opened"], {}
    run = None
    try:
        source = find_data(opened, (), None, log, callbacks)
    except UsageError as error:
        log.info(f"not evaluated: {error}")
    else:
        run = held_out.Evaluation(opened, source, _TOKENS, callbacks)
        values = held_out.values(run.figures(None, settings, log, stop, batch=8)[0])
        done.append(f"evaluated (loss {values['loss']:.4f})")
    if isinstance(opened.objective, Generative):
        text = ""
        if run is not None and isinstance(run.corpus, Items):
            text = run.corpus.items[0].text
        elif run is not None:
            text = opened.tokenizer.decode(run.corpus.document(0)[:_NEW_TOKENS].tolist())
        writer = Writer(opened.model, opened.tokenizer, opened.objective, settings)
        (written,) = itertools.islice(writer.write([text]), 1)
        tokens = written.outputs[0].tokens if written.outputs else 0
        done.append(f"generated {number_of(tokens, 'tokens')}")
        values["generated_tokens"] = tokens
    return ", ".join(done), values
