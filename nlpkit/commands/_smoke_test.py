"""Runs all steps of a recipe in seconds, on a few rows, in a temporary directory (`--smoke-test`).

Lightning calls this `fast_dev_run`."""

import dataclasses
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlpkit.commands._options import Common
from nlpkit.contracts.reader import Counts, TextFile
from nlpkit.data import formats
from nlpkit.data.files import Input, find_inputs
from nlpkit.data.lines import open_bytes
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.train.log import Log

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved
    from nlpkit.runs.open_checkpoint import Opened
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

Copies = dict[str, str]  # paths of copies -> the names of the user's files


def _rename(text: str, copies: Copies, remark: str = "") -> str:
    """Return a message with the names of the user's files."""
    for copy, name in copies.items():
        text = text.replace(copy, name + remark)
    return text


class _Log(Log):
    """Names the user's files, and nothing that is going to be removed."""

    copies: Copies

    def _print(self, text: str, style: str | None = None) -> None:
        text = _rename(text, self.copies, " (first rows)")
        if _PREFIX not in text:
            super()._print(text, style)


def smoke_test(resolved: "Resolved", common: Common) -> None:
    """Train, save, open, evaluate and generate; print a summary. The run directory is not used.

    Raises:
        UsageError, DataError, FileError: the same errors as in the real run.
    """
    from nlpkit.cli import exit_now
    from nlpkit.train.signals import catch_signals

    if common.dry_run:
        raise UsageError("--smoke-test and --dry-run exclude each other")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("--smoke-test runs in one process; start it without a launcher")
    begin = time.perf_counter()
    log = _Log(common.verbosity)
    copies: Copies = {}
    log.copies = copies
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, catch_signals(exit_now) as stop:
        try:
            small = _shrink(resolved, Path(name), copies, stop.check)
            done, values = _run(small, common.device, log, stop)
        except (DataError, FileError) as error:
            raise type(error)(_rename(str(error), copies)) from error
    seconds = time.perf_counter() - begin
    text = f"smoke test passed in {seconds:.0f} s: trained {_STEPS} steps, saved, {done}"
    common.print_result(text, passed=True, seconds=seconds, **values)


def _shrink(
    resolved: "Resolved", workdir: Path, copies: Copies, check: Callable[[], None]
) -> "Resolved":
    """Return the recipe with few steps and small batches, on a few rows of its files.

    The held-out rows are also training rows, because a label may occur only in them.
    """
    recipe = resolved.recipe
    lengths = [each.config.setting("max_length") or 0 for each in recipe.objective]
    budget = min(recipe.train.batch_budget, max(_TOKENS, *lengths))
    sizes = {"steps": _STEPS, "warmup_steps": 1, "eval_every": 1, "save_every": 1}
    sizes |= {"tokens_per_step": budget, "tokens_per_batch": budget}
    unset: JsonObject = dict.fromkeys(("epochs", "budget", "memory", "warmup_ratio"))
    train, valid = find_inputs(recipe.data, resolved.base, workdir / "stdin", check)
    valid = train if recipe.data.valid_fraction else valid  # a fraction of few rows may be no row
    known = _copy_rows(valid, workdir / "known", _VALID_ROWS, copies)
    data = {
        "train": _copy_rows(train, workdir / "train", _TRAIN_ROWS, copies) + known,
        "valid": _copy_rows(valid, workdir / "valid", _VALID_ROWS, copies),
        "valid_fraction": 0.0,
        "cache": str(workdir / "cache"),
        "workers": 1,
    }
    update = {"out": str(workdir / "run")}
    for section, values in (("train", sizes | unset | {"trackers": []}), ("data", data)):
        config = getattr(recipe, section)
        update[section] = type(config).model_validate(config.model_dump() | values)
    return dataclasses.replace(resolved, recipe=recipe.model_copy(update=update))


def _copy_rows(
    inputs: Sequence[Input], folder: Path, rows: int, copies: Copies
) -> list[JsonObject]:
    """Return the sources with some of their files: copies of the first rows, or links."""
    sources = []
    for number, source in enumerate(inputs):
        by_lines = source.files[0].format in (*_LINES, *_VALUES)
        # Spread over all files, because images of a class are neighbors.
        count = min(len(source.files), _FILES if by_lines else rows)
        few = [source.files[i * len(source.files) // count] for i in range(count)]
        paths = []
        for index, file in enumerate(few):
            for each in filter(None, (file, file.second)):
                paths.append(_copy(each, folder / f"{number}.{index}", -(-rows // count)))
                copies[paths[-1]] = each.name
        forms = {"jsonl" if file.format in _VALUES else file.format for file in few}
        # Of several formats, the endings tell them.
        form = forms.pop() if len(forms) == 1 else None
        sources.append({"files": paths, "format": form, "text_key": source.files[0].text_key})
    return sources


def _copy(file: TextFile, folder: Path, rows: int) -> str:
    """Copy the first rows of a file; return the path of the copy, or of a link to all of it."""
    path = Path(file.path)
    folder /= path.parent.name  # the class of an image
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / Path(file.name).name.removesuffix(".gz")
    if file.format in _VALUES:
        copy = copy.with_name(f"{copy.name}.jsonl")
        found = formats.reader(file.format).rows(file, (), Counts())
        values = [row for _, row in itertools.islice(found, rows) if isinstance(row, dict)]
        lines = (json.dumps(each, ensure_ascii=False, default=str) + "\n" for each in values)
        copy.write_text("".join(lines), encoding="utf-8")
    elif file.format in _LINES:
        copy.write_bytes(b"".join(_first_lines(file, rows)))
    else:
        copy = folder / path.name
        copy.symlink_to(path.absolute())
    return str(copy)


def _first_lines(file: TextFile, rows: int) -> Iterator[bytes]:
    size = quotes = 0
    with open_bytes(file) as source:
        for number, line in enumerate(source):
            # A cell of csv may hold line breaks, between quotes.
            is_inside = file.format == "csv" and quotes % 2
            if number and not is_inside and (number >= rows or size >= _BYTES):
                return
            yield line
            size, quotes = size + len(line), quotes + line.count(b'"')


def _run(small: "Resolved", device: str, log: Log, stop: "StopFlag") -> tuple[str, JsonObject]:
    from nlpkit.checkpoints.run_directory import RunDirectory
    from nlpkit.data.store import Callbacks
    from nlpkit.evaluate import held_out
    from nlpkit.evaluate.source import find_data
    from nlpkit.generate.settings import Settings
    from nlpkit.runs.open_checkpoint import open_checkpoint
    from nlpkit.runs.pretrain import pretrain

    directory = RunDirectory(Path(small.recipe.out))
    with directory.locked():
        made = pretrain(small, directory, device=device, resume="never", log=log, stop=stop)
    opened = open_checkpoint(made, device=device, info=log.detail, warn=log.warn)
    callbacks = Callbacks(note=log.detail, should_stop=stop.check)
    settings = Settings(max_new_tokens=_NEW_TOKENS)
    done, values, run = ["opened"], JsonObject(), None
    try:
        source = find_data(opened, (), None, log, callbacks)
    except UsageError as error:  # no held-out data
        log.info(f"not evaluated: {error}")
    else:
        run = held_out.Evaluation(opened, source, _TOKENS, callbacks)
        values = held_out.select_values(run.evaluate(None, settings, log, stop, batch=8)[0])
        done.append(f"evaluated (loss {values['loss']:.4f})")
    if (tokens := _generate(opened, run, settings)) is not None:
        done.append(f"generated {number_of(tokens, 'tokens')}")
        values["generated_tokens"] = tokens
    return ", ".join(done), values


def _generate(opened: "Opened", run: Any, settings: Any) -> int | None:
    """Return the number of tokens that the model writes; None if its objective writes none."""
    from nlpkit.contracts.abilities import Generative
    from nlpkit.data.items import TaskDataset
    from nlpkit.generate.texts import Writer

    if not isinstance(opened.objective, Generative):
        return None
    text = ""
    if run is not None and isinstance(run.corpus, TaskDataset):
        text = run.corpus.items[0].text
    elif run is not None:
        text = opened.tokenizer.decode(run.corpus.document(0)[:_NEW_TOKENS].tolist())
    writer = Writer(opened.model, opened.tokenizer, opened.objective, settings)
    (written,) = writer.write([text])
    return written.outputs[0].tokens if written.outputs else 0
