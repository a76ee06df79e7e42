"""Plans a run before it costs anything: its data, packing, model, time and memory."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nlpkit.attention.masks import dense_mask
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.contracts.batch import IGNORE, SOURCE_LENGTHS
from nlpkit.contracts.request import Layout
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.corpus import Corpus
from nlpkit.data.items import TaskDataset
from nlpkit.data.pack import packing_efficiency
from nlpkit.data.store import Callbacks
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.models.flops import count_projections, step_flops
from nlpkit.models.layers.embeddings import number_texts
from nlpkit.plan import phases
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.report.figures import mask_figure
from nlpkit.runs import baseline, build, checks, fit_memory, frozen, judged, milestones, planned
from nlpkit.runs.announce import announce_data
from nlpkit.runs.planned import Planned, PlannedModel
from nlpkit.runs.run import Data
from nlpkit.tokenizers.library.shown import show_token
from nlpkit.tokenizers.library.source_and_target import of_sources
from nlpkit.train import machine, recompute
from nlpkit.train.log import Log
from nlpkit.train.schedule import describe_long_warmup
from nlpkit.train.step_sizes import batches_per_epoch, mean_batches


def make(
    resolved: Resolved, run_path: Path, device: str, log: Log, measure: bool = True
) -> Planned:
    """Return the parts of the run; tokenises the text (into the cache), trains nothing.

    With `measure`, what `train.memory` chooses is measured. Raise `UsageError` for a setting that
    the model or the data show to be wrong.
    """
    try:
        return _make(resolved, run_path, device, log, measure)
    except UsageError as error:
        error.args = (resolved.document.locate(str(error)),)
        raise


def _make(resolved: Resolved, run_path: Path, device: str, log: Log, measure: bool) -> Planned:
    where = machine.find_device(device)
    part = build.model_part(resolved, run_path, info=log.info)
    log.warn_all(f"{part.source}: {line}" for line in part.warnings)
    if resolved.recipe.attention.backend != "auto":
        checks.check_backend(resolved, part, where)
    callbacks = Callbacks(log.detail, log.warn, log.tokenizing, log.reading)
    data = build.build_data(resolved, part, run_path, callbacks)
    if part.frozen:
        frozen.attach(part.frozen, data.objective, data.tokenizer, str(where), log)
    asked = resolved.recipe.train
    fitted = fit_memory.recorded(fit_memory.find_status(RunDirectory(run_path)), asked)
    if fitted is None and asked.memory is not None and not measure:
        log.warn("train.memory is ignored, because nothing is measured")
    elif fitted is None and asked.memory is not None:
        precision, _ = machine.choose_precision(asked.precision, where)
        fitted = fit_memory.choose(resolved, part, data, where, precision=precision, note=log.info)
    if fitted is not None:
        resolved = _with_fitted(resolved, fitted)
    settings = resolved.recipe.train.model_copy(update={"memory": None})
    plan = planned.plan(resolved, settings, part, data, where)
    plan.stream.plan(0)
    if resolved.recipe.eval.pairs:
        plan.judge = judged.attach(resolved, part, data, plan.settings, plan.stream, log)
    if plan.settings.warmup_steps > plan.settings.steps:
        log.warn(describe_long_warmup(plan.settings))
    if settings.gradient_checkpointing:
        recompute.check(plan.model)
    return plan


def _with_fitted(resolved: Resolved, found: fit_memory.Fitted) -> Resolved:
    """Return the recipe with what `train.memory` chooses, or chose when the run began."""
    settings, names = resolved.recipe.train, ["train.tokens_per_batch"]
    if found.gradient_checkpointing and not settings.gradient_checkpointing:
        names.append("train.gradient_checkpointing")
    chosen = found.settings(settings).model_copy(update={"memory": settings.memory})
    decided = dict.fromkeys(names, "train.memory")
    return replace(resolved.with_sections(train=chosen), decided=decided)


def describe(plan: Planned) -> JsonObject:
    """Return a deterministic description of the planned run."""
    data, settings, stream = plan.data, plan.settings, plan.stream
    steps = settings.known_steps  # None with a budget: `probe` estimates what it buys
    counted = data.examples.words is not None
    bins = stream.plan(0)
    filled = packing_efficiency(bins, data.examples.sizes, settings.batch_budget)
    of_epoch = np.concatenate([bins.items, bins.leftover]) % len(data.examples)
    epoch_tokens = int(data.examples.sizes[of_epoch].sum())
    steps_per_epoch = float(batches_per_epoch(stream)) / mean_batches(settings, stream)
    return {
        "data": {
            "train": _describe_corpus(data.train) | {"examples": len(data.examples)},
            "dropped": data.examples.spans.dropped,
            "cut": dict(data.train.cut),
            "held_out": _describe_held_out(data, plan.resolved.recipe.eval.baseline),
            **({"pairs": plan.judge.describe()} if plan.judge else {}),
            "directories": [n for of in data.inputs.values() for entry in of for n in entry.notes],
            "vocabulary": plan.vocab_size,
        },
        "packing": {
            "tokens_per_batch": settings.batch_budget,
            "batches_per_step": mean_batches(settings, stream),
            "tokens_per_epoch": epoch_tokens,
            "steps": steps,
            "warmup_steps": settings.warmup_steps if steps else None,
            "steps_per_epoch": round(steps_per_epoch, 2),
            "epochs": round(steps / steps_per_epoch, 2) if steps else None,
            "fill": round(filled, 4),
            "share_of_tokens_with_loss": round(_measure_target_share(plan), 4),
            **({"phases": changing} if (changing := phases.describe(plan)) else {}),
            **(milestones.describe(plan.resolved, settings, data.examples) if counted else {}),
            **({"save_at_bytes": plan.milestone_bytes} if settings.save_at else {}),
        },
        "model": describe_model(plan, _count_flops(plan)),
        "settings": plan.resolved.dump(),
    }


def describe_model(plan: PlannedModel, flops_per_step: float) -> JsonObject:
    """Return the sizes of the model, and the FLOPs of a step and of the run."""
    steps = plan.settings.known_steps
    return {
        "family": plan.part.family,
        "parameters": plan.parameters,
        "trained_parameters": plan.trained,
        "frozen_parameters": sum(each.parameters for each in plan.part.frozen),
        "optimizer": [group.figures() for group in plan.groups],
        "state_bytes": plan.state_bytes,
        "new_tokens": plan.part.new_tokens(plan.vocab_size),
        "flops_per_step": flops_per_step,
        "flops_per_run": steps * flops_per_step if steps else None,
    }


def _count_flops(plan: Planned) -> float:
    parts = [(each.share * each.batches, each.stream) for each in phases.list_phases(plan)]
    total = 0.0
    for batches, stream in parts or [(mean_batches(plan.settings, plan.stream), plan.stream)]:
        first = stream[0].batches[0]
        targets = count_projections(plan.data.objective, first)
        batch = first.lengths, targets, first.fields.get(SOURCE_LENGTHS, ())
        total += batches * step_flops(plan.part.family, plan.part.config, plan.vocab_size, *batch)
        for part in [each.part for each in plan.part.frozen if each.part]:  # forward alone
            total += batches * step_flops(part.family, part.config, part.rows or 0, *batch) / 3
    return total


def _describe_held_out(data: Data, order: int | None) -> JsonObject | None:
    if data.valid is None or data.held_out is None:
        return None
    entropy = data.held_out_entropy()  # rows of a task have none
    entropy = None if entropy is None else round(entropy, 4)
    return _describe_corpus(data.valid) | {
        "examples": len(data.held_out),
        "unigram_entropy": entropy,
        **({"ngram_loss": round(baseline.compute_loss(data, order), 4)} if order else {}),
    }


def _describe_corpus(corpus: Corpus | TaskDataset) -> JsonObject:
    counts = corpus.counts
    return {
        "documents": len(corpus),
        "tokens": corpus.tokens,
        "characters": counts.characters,
        "unknown_tokens": counts.unknown,
        "skipped_rows": counts.bad,
        "first_skipped": [str(bad) for bad in counts.first_bad],
        "empty": counts.empty,
        "left_out": counts.left_out,
    }


def _measure_target_share(plan: Planned, batches: int = 16) -> float:
    objective, tokens, targets = plan.data.objective, 0, 0
    for number in range(batches):
        epoch, index = plan.stream.locate(number)
        batch = plan.data.examples.batch(plan.stream.plan(epoch)[index], epoch)
        tokens += batch.tokens
        targets += count_projections(objective, batch) if objective.predicts_text else batch.targets
    return targets / tokens


def format_batch(plan: Planned) -> Iterator[str]:
    """Yield the first batch as tab-separated lines, one token per line.

    A blank line separates sequences. The tokens of a source stand before those of its target.
    The last column is the token to be predicted. Fields with one value for each sequence are on the
    line of its last token.
    """
    batch, tokenizer, fields = plan.first, _find_tokenizer(plan), plan.data.objective.fields
    names = [n for n, f in fields.items() if f.per == "token"]
    labels = batch.fields.get("labels")
    others = [n for n, f in fields.items() if f.per == "sequence"]
    sources = [n for n, f in fields.items() if f.per == "source"]
    last = [] if labels is None else ["target"]
    yield "\t".join(["sequence", "token", *names, *others, *sources, *last])
    start = 0
    ends_of_sources = np.cumsum(batch.fields.get(SOURCE_LENGTHS, ()))
    for number, length in enumerate(batch.lengths):
        if sources:
            stop = int(ends_of_sources[number])
            empty = [""] * (len(names) + len(others))
            for row in range(stop - batch.fields[SOURCE_LENGTHS][number], stop):
                values = [str(batch.fields[name][row].tolist()) for name in sources]
                token = show_token(of_sources(tokenizer), int(batch.fields[sources[0]][row]))
                yield "\t".join([str(number), token, *empty, *values, *[""] * len(last)])
        for row in range(start, start + length):
            values = [str(batch.fields[name][row].tolist()) for name in names]
            ends = row == start + length - 1
            values += [_show_field(plan, n, number) if ends else "" for n in others]
            values += [""] * len(sources)
            if labels is not None:
                label = int(labels[row])
                values.append("" if label == IGNORE else show_token(tokenizer, label))
            token = show_token(tokenizer, int(batch.fields["input_ids"][row]))
            yield "\t".join([str(number), token, *values])
        yield ""
        start += length


def _show_field(plan: Planned, name: str, number: int) -> str:
    value = plan.first.fields[name][number].item()
    meanings = plan.data.objective.fields[name].names
    return meanings[value] if meanings else f"{value:g}"


def _find_tokenizer(plan: Planned) -> Tokenizer:
    if plan.data.tokenizer is None:
        name = plan.resolved.recipe.objective[0].name
        raise UsageError(f"a batch is shown by its tokens, and objective {name} reads no text")
    return plan.data.tokenizer


def draw_mask(plan: Planned, path: Path) -> None:
    """Draw who sees whom in the first batch: the whole pack, and its shortest sequence.

    Each kind of a layer or of a share of the heads has a row of the picture.

    Raises:
        UsageError: there is no attention, or no text, to draw; matplotlib is not installed.
    """
    if not plan.part.config.kinds:
        raise UsageError(f"--mask: family {plan.part.family} has no attention to draw")
    tokenizer = _find_tokenizer(plan)
    batch = machine.to_device(plan.first, torch.device("cpu"))
    layout = Layout(batch.lengths, "cpu")
    kinds = [part for c in dict.fromkeys(plan.part.config.kinds) for part in c.head_groups or (c,)]
    zeros = torch.zeros_like(layout.positions)
    # What a model says of the tokens where the objective does not.
    own = {"context": zeros == 0, "first": zeros, "last": layout.token_lengths - 1}
    own |= {"token_type_ids": zeros, "text": zeros}
    if (types := batch.fields.get("token_type_ids")) is not None:
        own["text"] = number_texts(layout, types, batch.fields["input_ids"])
    needed = {name for kind in kinds for name in kind.module.required_fields(kind.config)}
    own = {name: own[name] for name in own if name in needed}
    layout = layout.with_fields({**own, **batch.fields})
    masks = {}
    for kind in [kind for kind in kinds if kind.module.mask is not None] or kinds[:1]:
        settings = [f"{name} {value}" for name, value in kind.config if value is not None]
        mask = dense_mask(kind, layout)
        masks[", ".join([kind.kind, *settings])] = mask.numpy()
    words = [show_token(tokenizer, token) for token in batch.fields["input_ids"].tolist()]
    mask_figure(masks, layout.spans, words, path)


def dry_run(resolved: Resolved, run_path: Path, device: str, log: Log) -> JsonObject:
    """Check everything and build the first batch; return the plan's description."""
    plan = make(resolved, run_path, device, log, measure=False)
    description = describe(plan)
    announce_data(plan.data, plan.part.config.can("reads_images"), log)
    batch, steps, section = plan.first, plan.settings.known_steps, resolved.recipe.train
    log.info(
        "recipe, data and objective are in order: the first batch has "
        f"{number_of(len(batch.lengths), 'sequences')}, {number_of(batch.tokens, 'tokens')}, "
        f"{number_of(batch.targets, 'targets')}; "
        f"{number_of(steps, 'steps') if steps else f'a budget of {section.budget}'} in all"
    )
    return description
