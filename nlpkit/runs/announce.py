"""Logs the model and the data at the start of a run, and the result at its end."""

from collections.abc import Iterator

import numpy as np
import torch

from nlpkit.checkpoints import files
from nlpkit.contracts.optimizer import describe
from nlpkit.data.corpus import Corpus
from nlpkit.data.items import TaskDataset
from nlpkit.plural import number_of
from nlpkit.runs.run import Data, Run
from nlpkit.train.log import Log
from nlpkit.train.optim import groups
from nlpkit.train.schedule import describe_long_warmup, stable_end
from nlpkit.train.state import LOSS, Pace, State
from nlpkit.units import format_duration, format_number


def announce(run: Run, state: State) -> None:
    """Log the model, the data and the training of the run."""
    _announce_model(run)
    announce_data(run.data, run.part.config.can("reads_images"), run.log)
    _announce_training(run, state)
    _announce_optimizers(run)
    if run.settings.warmup_steps > run.settings.steps:
        run.log.warn(describe_long_warmup(run.settings))
    if run.accelerator.num_processes > 1:
        _announce_processes(run)


def _announce_model(run: Run) -> None:
    vocab_size, sources = run.data.vocab_size, run.part.config.source_vocab_size
    parameters = list(run.unwrapped.model.parameters())
    number, trained = (sum(p.numel() for p in ps) for ps in (parameters, _trained(run)))
    run.log.info(
        f"model: {run.part.family}, {number:,} parameters"
        + (f", vocabulary {vocab_size:,}" if vocab_size else "")
        + (f", of sources {sources:,}" if sources else "")
        + (f"; {trained:,} of the parameters are trained" if trained != number else "")
    )


def announce_data(data: Data, reads_images: bool, log: Log) -> None:
    """Log what is read, and how much of it is left out, skipped or cut."""
    left_out = ", ".join(number_of(n, name) for name, n in _left_out(data).items() if n)
    examples = number_of(len(data.examples), "examples")
    what = "text" if data.objective.reads_text else "images" if reads_images else "data"
    log.info(f"{what}: {_size(data.train)}, {examples}; left out: {left_out or 'nothing'}")
    log.warn_all(f"skipped {bad}" for bad in data.train.counts.first_bad)
    if data.valid is not None:
        entropy = data.held_out_entropy()
        known = "" if entropy is None else f", unigram entropy {entropy:.4f} nats"
        log.info(f"held out: {_size(data.valid)}{known}{data.valid.remark}")
    for name, corpus in (("training", data.train), ("held-out", data.valid)):
        if corpus is not None and corpus.cut:
            cut = ", ".join(number_of(n, kind) for kind, n in corpus.cut.items())
            log.warn(f"too long in the {name} data: {cut}")


def _announce_training(run: Run, state: State) -> None:
    section, settings = run.resolved.recipe.train, run.settings
    if section.budget:
        ratio, used = section.warmup_ratio or 0, format_duration(state.times.elapsed)
        run.log.info(
            f"training: {format_duration(settings.budget_seconds or 0)}"
            + (f", warm-up {ratio:.3g} of it" if ratio else "")
            + (f"; {used} of it are used" if state.step else "")
        )
    elif section.epochs or section.words or section.warmup_ratio:
        passes = f" for {section.epochs or 0:g} epoch{'s' if section.epochs != 1 else ''}"
        run.log.info(
            f"training: {number_of(settings.steps, 'steps')}"
            + (passes if section.epochs else "")
            + f", warm-up {settings.warmup_steps:,}"
        )


def _announce_optimizers(run: Run) -> None:
    found, chosen = groups(run.unwrapped.model, run.settings), run.settings.optimizer
    for group in found:
        run.log.info(f"optimizer: {describe(group.figures())}")
    if all(group.optimizer != chosen.module.NAME for group in found):
        others = ", ".join(dict.fromkeys(group.optimizer for group in found))
        run.log.warn(
            f"train.optimizer: nothing is trained that {chosen.name} is for; {others} does all"
        )


def _announce_processes(run: Run) -> None:
    """Log their number, and warn if the batches of a step cannot be shared out equally to them."""
    processes, batches = run.accelerator.num_processes, run.settings.batches_per_step
    run.log.info(f"processes: {processes}")
    if idle := -batches % processes:
        run.log.warn(
            f"a step has {number_of(batches, 'batches')}, and {processes} processes could compute "
            f"{batches + idle} in the same time; computations of a step that count for nothing: "
            f"{idle}. For a new run, train.tokens_per_batch decides how many batches a step has"
        )


def _trained(run: Run) -> Iterator[torch.Tensor]:
    """Yield the trained parameters; of the soft prompts, only the rows of the task."""
    prompt = run.part.prompt
    for parameter in run.unwrapped.model.parameters():
        if parameter.requires_grad:
            yield parameter if prompt is None else prompt.trained(parameter)


def _size(corpus: Corpus | TaskDataset) -> str:
    return f"{number_of(len(corpus), corpus.NOUN)}, {number_of(corpus.tokens, 'tokens')}"


def _left_out(data: Data) -> dict[str, int]:
    """Return the numbers of rows, texts and tokens that are not used for training, by reason."""
    counts, spans = data.train.counts, data.examples.spans
    unlearned = data.objective.unlearned_id
    return {
        "malformed rows": counts.bad,
        "empty texts": counts.empty,
        "rows that choices leave out": counts.left_out,
        f"{data.train.NOUN} held out": counts.held_out,
        "unknown tokens": counts.unknown if data.objective.drop_unknown else 0,
        "unknown tokens of targets": counts.unlearned if unlearned is None else counts.unknown,
        "documents without known tokens": counts.tokenless,
    } | {name.replace("_", " "): number for name, number in spans.dropped.items()}


def conclude(run: Run, state: State, pace: Pace) -> None:
    """Log the number of steps, the time of a budget, and the best evaluation."""
    size = f"{number_of(state.step, 'steps')}, {number_of(state.tokens, 'tokens')}"
    size += f", {number_of(state.words, 'words')}" if state.words else ""
    run.log.info(f"finished {size}{pace.summary()}")
    if missed := [format_number(n) for n in run.settings.save_at if n > state.words]:
        run.log.warn(f"train.save_at: not reached: {', '.join(missed)} words")
    timed = run.settings.budget_seconds is not None
    if state.times.stable_step if timed else stable_end(run.settings):
        run.log.info(
            "to train for longer, go on from the end of the stable part: "
            f"{'train.budget' if timed else 'train.steps'}=MORE, --resume "
            f"{files.directory(run.directory.path) / files.STABLE} --out ANOTHER_DIRECTORY"
        )
    if run.data.valid is None:
        return
    best_by = run.resolved.recipe.train.best_by
    if state.best_value is None:
        run.log.info(f"no best held-out {best_by}: the score is undefined in every evaluation")
        return
    where = f"at step {state.best_step}, in {run.settings.precision}"
    if best_by != LOSS:
        run.log.info(f"best held-out {best_by} {state.best_value:.4f} {where}")
        return
    terms = [*run.data.examples.batch(np.arange(1), 0).num_targets]
    if len(terms) > 1:  # no unit, and not to be compared with an entropy
        what = f"(weighted sum of {', '.join(terms)})"
        run.log.info(f"best held-out loss {state.best_value:.4f} {what} {where}")
        return
    entropy = run.data.held_out_entropy()
    unit = "nats/token" if run.data.objective.predicts_text else "nats/target"
    known = "" if entropy is None else f" (unigram entropy of the held-out text: {entropy:.4f})"
    run.log.info(f"best held-out loss {state.best_value:.4f} {unit} {where}{known}")
