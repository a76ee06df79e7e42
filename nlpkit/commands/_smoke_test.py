"""Runs all steps of a recipe in seconds, on a few rows, in a temporary directory (`--smoke-test`).

Lightning calls this `fast_dev_run`. The recipe is changed as by `--set`.
"""

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands._options import Common
from nlpkit.commands.pretrain import train_in_directory
from nlpkit.data import formats
from nlpkit.data.files import Input, find_inputs
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.train.log import Log

if TYPE_CHECKING:
    from nlpkit.evaluate.held_out import Evaluation
    from nlpkit.recipe import Resolved
    from nlpkit.train.signals import StopFlag

_PREFIX = "nlpkit-smoke-test-"  # of the folder of its run
_CHANGES = (
    "train.steps=2", "train.epochs=null", "train.words=null", "train.budget=null",
    "train.save_at=[]", "train.memory=null", "train.warmup_steps=1", "train.warmup_ratio=null",
    "train.eval_every=1", "train.save_every=1", "train.trackers=[]", "data.valid_fraction=0",
    "data.workers=1",
)  # fmt: skip
_TRAIN_ROWS, _VALID_ROWS = 64, 16
_FILES = 4  # of a source
_TOKENS = 1024  # of a batch, if the recipe has more and if its examples fit
_NEW_TOKENS = 8


class _Log(Log):
    """Prints no line about the directory, which is going to be removed."""

    def _print(self, text: str, style: str | None = None) -> None:
        if _PREFIX not in text:
            super()._print(text, style)


def smoke_test(load: Callable[[Sequence[str]], "Resolved"], common: Common) -> None:
    """Train, save, open, evaluate and generate; print a summary. The run directory is not used.

    `load` returns the recipe with further settings. Raises the same errors as the real run.
    """
    if common.dry_run:
        raise UsageError("--smoke-test and --dry-run exclude each other")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("--smoke-test runs in one process; start it without a launcher")
    begin = time.perf_counter()
    log = _Log(common.verbosity)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, common.catch_signals() as stop:
        changes = _choose_changes(load(()), Path(name), stop.check)
        small, common = load(changes), dataclasses.replace(common, resume="never")
        train_in_directory(small, common, False, log, stop)
        done, values = _use(small.recipe.out, bool(small.recipe.data.valid), common, log, stop)
    seconds = time.perf_counter() - begin
    text = f"smoke test passed in {seconds:.0f} s: trained 2 steps, saved, {done}"
    common.print_result(text, passed=True, seconds=seconds, **values)


def _choose_changes(resolved: "Resolved", workdir: Path, check: Callable[[], None]) -> list[str]:
    """Return the changes to a recipe, as `--set` takes them.

    The held-out rows are also training rows, because a label may occur only in them.
    """
    recipe, data = resolved.recipe, resolved.recipe.data
    lengths = [each.config.setting("max_length") or 0 for each in recipe.objective]
    budget = min(recipe.train.batch_budget, max(_TOKENS, *lengths))
    inputs, held_out = find_inputs(data, resolved.base, workdir / "stdin", check)
    # A fraction of few rows may be no row.
    held_out = inputs if data.valid_fraction else held_out
    train, valid = _choose_rows(inputs, _TRAIN_ROWS), _choose_rows(held_out, _VALID_ROWS)
    trained = [source["files"] for source in train]
    train += [source for source in valid if source["files"] not in trained]
    values: JsonObject = {"out": str(workdir / "run"), "data.cache": str(workdir / "cache")}
    values |= {"data.train": train, "data.valid": valid}
    values |= {"train.tokens_per_step": budget, "train.tokens_per_batch": budget}
    written = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    return [*_CHANGES, *(f"{key}={value}" for key, value in written.items())]


def _choose_rows(inputs: Sequence[Input], rows: int) -> list[JsonObject]:
    """Return some files of each source, each as a source of its own: its first rows."""
    sources = []
    for files in (source.files for source in inputs):
        # Images are files; their choice is spread, because those of a class are neighbors.
        count = min(len(files), rows if formats.inside(files[0].format) else _FILES)
        for file in (files[i * len(files) // count] for i in range(count)):
            # A copy of stdin or of a pipe has a path alone.
            names = [part.name if Path(part.name).is_file() else part.path for part in file.parts]
            own = {"format": file.format, "text_key": file.text_key}
            most = min(-(-rows // count), file.max_rows or rows)
            sources.append({"files": names, "max_rows": most, **own})
    return sources


def _use(
    run: str, has_held_out: bool, common: Common, log: Log, stop: "StopFlag"
) -> tuple[str, JsonObject]:
    """Open, evaluate and generate; return what was done, and the figures."""
    from nlpkit.contracts.abilities import Generative
    from nlpkit.data.store import Callbacks
    from nlpkit.evaluate.held_out import Evaluation, select_values
    from nlpkit.evaluate.source import find_data
    from nlpkit.generate.settings import Settings
    from nlpkit.generate.texts import Writer
    from nlpkit.runs.open_checkpoint import open_checkpoint

    opened = open_checkpoint(run, device=common.device, info=log.detail, warn=log.warn)
    settings = Settings(max_new_tokens=_NEW_TOKENS)
    done, values, text = "opened", JsonObject(), ""
    if has_held_out:
        callbacks = Callbacks(note=log.detail, should_stop=stop.check)
        source = find_data(opened, (), None, log, callbacks)
        evaluation = Evaluation(opened, source, _TOKENS, callbacks)
        values = select_values(evaluation.evaluate(None, settings, log, stop)[0])
        done += f", evaluated (loss {values['loss']:.4f})"
        text = _find_text(evaluation)
    if isinstance(opened.objective, Generative):
        writer = Writer(opened.model, opened.tokenizer, opened.objective, settings)
        tokens = [each.tokens for written in writer.write([text]) for each in written.outputs]
        values["generated_tokens"] = sum(tokens)
        done += f", generated {number_of(sum(tokens), 'tokens')}"
    return done, values


def _find_text(evaluation: "Evaluation") -> str:
    """Return the beginning of the held-out data, for the model to continue."""
    from nlpkit.data.items import TaskDataset

    if isinstance(evaluation.corpus, TaskDataset):
        return evaluation.corpus.items[0].text
    ids = evaluation.corpus.document(0)[:_NEW_TOKENS]
    return str(evaluation.opened.tokenizer.decode(ids.tolist()))
