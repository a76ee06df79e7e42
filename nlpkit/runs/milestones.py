"""Saves the model after numbers of words: `train.save_at`, `RUN/chck_1M`, as BabyLM asks.

A folder is written beside, synced and renamed, after its step and before the next checkpoint. So a
run that is killed meanwhile takes the step again, and writes the folder again.
"""

import shutil
from pathlib import Path

from nlpkit.data import words
from nlpkit.data.loader import Examples
from nlpkit.disk import whole_directory
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.runs import save
from nlpkit.runs.run import Run
from nlpkit.train import shards
from nlpkit.train.schedule import ResolvedTraining, make_stream
from nlpkit.train.state import State
from nlpkit.units import format_number


def describe(resolved: Resolved, settings: ResolvedTraining, examples: Examples) -> JsonObject:
    """Return the words of an epoch and, without a budget of time, what the run reads and saves.

    Raises:
        UsageError: a number of `save_at` is beyond the run.
    """
    assert examples.words is not None
    found: JsonObject = {"words_per_epoch": round(float(examples.words @ examples.weights))}
    if settings.known_steps is None:
        return found
    stream = make_stream(settings)(examples)
    bins = [stream.bins_of(step).stop for step in range(settings.known_steps)]
    ends = words.count_bins(stream, bins[-1])[[number - 1 for number in bins]]
    if settings.save_at and settings.save_at[-1] > ends[-1]:
        what = f"{format_number(settings.save_at[-1])} is beyond the words of the run: {ends[-1]:,}"
        raise UsageError(resolved.document.locate(f"train.save_at: {what}"))
    steps = {_name(n): int(ends.searchsorted(n)) + 1 for n in settings.save_at}
    return found | {"words": int(ends[-1]), "save_at": steps}


def begin(run: Run, state: State) -> None:
    """Let the run save its model where it is due; it may have counted no words so far."""
    describe(run.resolved, run.settings, run.data.examples)
    if state.step and not state.words:
        stream = make_stream(run.settings)(run.data.examples)
        state.words = int(words.count_bins(stream, stream.bins_of(state.step - 1).stop)[-1])
    left = [number for number in run.settings.save_at if number > state.words]
    for number in run.settings.save_at[: len(run.settings.save_at) - len(left)]:
        if not (folder := run.directory.path / _name(number)).is_dir():
            run.log.warn(f"train.save_at: no {folder}: the run has read more words already")

    def save_due(state: State) -> None:
        while left and state.words >= left[0]:
            _save(run, state, run.directory.path / _name(left.pop(0)))

    run.after_update.append(save_due)


def _name(number: int) -> str:
    return f"chck_{format_number(number)}"


def _save(run: Run, state: State, folder: Path) -> None:
    """Write the model as checkpoints have it, without what only training needs."""
    with run.averaged():
        weights = shards.weights(run.training)
        save.check_finite(state.step, weights)
        if run.accelerator.is_main_process:
            # Of a run that was killed before its next checkpoint.
            shutil.rmtree(folder, ignore_errors=True)
            with whole_directory(folder, folder.with_name(f".{folder.name}")) as draft:
                save.write_model(run, draft, weights, state.progress(run.settings))
            run.log.info(f"saved {folder} ({number_of(state.words, 'words')}, step {state.step})")
    run.accelerator.wait_for_everyone()
