"""Evaluates a checkpoint on held-out data: loss, perplexity, bits per character, task scores.

The code of `nlpkit score` computes the scores of answers and generated texts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import torch

from nlpkit import recipe, registry
from nlpkit.checkpoints.run_directory import RECIPE
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.task import Task
from nlpkit.data import corpus, formats, store
from nlpkit.data.cache import cache_directory
from nlpkit.data.items import Items, build_items
from nlpkit.data.lines import shown
from nlpkit.data.loader import HELD_OUT, Examples
from nlpkit.data.store import Callbacks
from nlpkit.errors import DataError, DivergedError, UsageError
from nlpkit.evaluate import confusion
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.objectives.several import members
from nlpkit.plural import number_of
from nlpkit.recipe import sections, yaml
from nlpkit.runs import data_files
from nlpkit.runs.opened import Opened
from nlpkit.runs.run import Training, token_characters
from nlpkit.score.named import WrongScore
from nlpkit.train.held_out import HeldOut, signed_scores
from nlpkit.train.log import Log
from nlpkit.train.settings import Optimizer
from nlpkit.train.signals import StopFlag

LOSS_FIGURES = ("loss", "perplexity", "bits_per_character")


@dataclass(frozen=True)
class Alone:
    """The accelerator attributes that `HeldOut` reads, for a single process."""

    device: torch.device
    num_processes: int = 1
    process_index: int = 0


@dataclass(frozen=True)
class Source:
    """The held-out text, and the settings for reading it."""

    inputs: list[corpus.Input]
    config: corpus.Config
    part: corpus.Part
    cache: Path
    seed: int  # of the held-out examples in the run
    metrics: Sequence[str] | None = None  # `eval.metrics` of the run's recipe
    generation: Mapping[str, Any] = field(default_factory=dict)  # its `eval.beam` and the like


def is_task(objective: Objective) -> TypeGuard[Task]:
    """Return whether the examples of an objective are rows, which have answers."""
    return isinstance(objective, Task)


def find_data(
    opened: Opened, files: Sequence[str], text_key: str | None, log: Log, callbacks: Callbacks
) -> Source:
    """Return the held-out data: `files`, or else those of the checkpoint's run.

    The result also has the settings of `eval` in the run's recipe.

    Raises:
        UsageError: the checkpoint belongs to no run, or its recipe names no held-out data.
    """
    recipe_path = opened.path.parent.parent / RECIPE
    resolved = _recipe_of_run(recipe_path) if recipe_path.is_file() else None
    base = resolved.base if resolved else Path.cwd()
    settings: dict[str, Any] = {}
    if resolved is not None:
        settings = resolved.recipe.data.model_dump(exclude={"train", "valid", "valid_fraction"})
    settings["train"] = _sources(files, settings.get("format", "auto"))
    if "-" in files and is_task(opened.objective) and settings.get("format", "auto") == "auto":
        # stdin has no file name ending; the default format of rows is jsonl.
        rows = [{"files": [name], "format": "jsonl"} if name == "-" else name for name in files]
        settings["train"] = rows
    if text_key is not None:
        settings["text_key"] = text_key
    part: corpus.Part = "all"
    if not files:
        if resolved is None:
            raise UsageError(f"{opened.path} belongs to no run; name the data: --data FILE")
        data = resolved.recipe.data
        if not data.valid and not data.valid_fraction:
            raise UsageError(f"{recipe_path} names no held-out data; name them: --data FILE")
        part = "all" if data.valid else "valid"
        entries = [entry.model_dump() for entry in data.valid or data.train]
        settings["train"] = _files_of_run(recipe_path.parent, base, entries, data, log, callbacks)
        settings["valid_fraction"] = 0.0 if data.valid else data.valid_fraction
    config = corpus.Config.model_validate(settings)
    cache = cache_directory(config.cache, None, callbacks.note)
    inputs, _ = corpus.resolve(config, base, cache, callbacks.should_stop)
    # A copy of stdin in the cache is called by its name.
    read = [
        f"{each.name}, read as {each.format}" if Path(each.path).parent == cache else each.path
        for entry in inputs
        for file in entry.files
        for each in file.parts
    ]
    log.info(f"held-out data: {shown(read)}")
    if resolved is None:
        return Source(inputs, config, part, cache, 0)
    scored = resolved.recipe.eval
    generation = scored.model_dump(include={"beam", "length_penalty"})
    return Source(inputs, config, part, cache, resolved.recipe.seed, scored.metrics, generation)


def _files_of_run(
    run: Path,
    base: Path,
    entries: list[dict[str, Any]],
    data: corpus.Config,
    log: Log,
    callbacks: Callbacks,
) -> list[dict[str, Any]]:
    """Return the sources with the current paths of the files that the run read."""
    cache = cache_directory(data.cache, None, callbacks.note)
    part = "valid" if data.valid else "train"
    sources = data_files.find(run, base, part, cache, callbacks.should_stop)
    if sources is None or len(sources) != len(entries):  # an older version, or another recipe
        log.warn(
            f"{run} has no record of the files that its {RECIPE} names; they are looked up by "
            "name, and may have changed"
        )
        return entries
    # The record has the files of a data set, too.
    by_file = {"hf": None, "split": None}
    return [entry | by_file | files for entry, files in zip(entries, sources, strict=True)]


def _sources(files: Sequence[str], form: str) -> list[Any]:
    """Return a source for each file, or for each pair of source and target files.

    With `auto` the ending of the file name determines the format.
    """
    remaining, sources = list(files), list[Any]()
    while remaining:
        known = formats.by_ending(remaining[0]) if form == "auto" else form
        count = len(formats.parts(known)) if known else 1
        sources.append({"files": remaining[:count]} if count > 1 else remaining[0])
        del remaining[:count]
    return sources


def _recipe_of_run(path: Path) -> recipe.Resolved:
    """Return the recipe of a run; the names of its parts are checked before their import."""
    data = yaml.read(path.read_bytes(), str(path)).data
    for name in _part_names(data):
        registry.check_named_by(path, name, "run nlpkit where it lies")
    return recipe.load(str(path))


def _part_names(data: Any) -> Iterator[str]:
    """Yield the names of all parts in a recipe, which may be malformed."""
    data = data if isinstance(data, dict) else {}
    for part in (sections.Model, sections.Objective, sections.Tokenizer, sections.Attention):
        section = data.get(part.__name__.lower())
        entries = section if isinstance(section, list) else [section]
        if isinstance(section, dict):
            layers = section.get("layers")
            entries += [section.get("source"), section.get("target")]
            entries += layers if isinstance(layers, list) else []
        for entry in entries:
            name = entry.get(part.KEY) if isinstance(entry, dict) else None
            names = members.names(entry) if part is sections.Objective else [name]
            yield from (each for each in names if isinstance(each, str))
    train = data.get("train")
    optimizer = train.get("optimizer") if isinstance(train, dict) else None
    name = optimizer.get(Optimizer.KEY) if isinstance(optimizer, dict) else optimizer
    if isinstance(name, str):
        yield name


class Evaluation:
    """Evaluates a checkpoint on the held-out examples of its objective.

    With `autocast`, products are in bfloat16 as in a training in bf16, else in the model's type.
    """

    def __init__(
        self,
        opened: Opened,
        source: Source,
        budget: int,
        callbacks: Callbacks,
        *,
        autocast: bool = False,
    ):
        self.opened, self.source = opened, source
        parameter = next(opened.model.parameters())
        self.precision = "fp32" if parameter.dtype == torch.float32 and not autocast else "bf16"
        self._autocast = partial(torch.autocast, parameter.device.type, torch.bfloat16, autocast)
        objective, tokenizer = opened.objective, opened.tokenizer
        self.is_task = is_task(objective)
        data: Any
        if is_task(objective):
            data = build_items(
                source.inputs,
                source.config,
                objective,
                cache_dir=source.cache,
                part=source.part,
                callbacks=callbacks,
            )
        else:
            data = store.build_corpus(
                source.inputs,
                source.config,
                tokenizer,
                drop_unknown=objective.drop_unknown,
                cache_dir=source.cache,
                part=source.part,
                marks=objective.marks,
                callbacks=callbacks,
            )
        self.corpus = data
        self.examples = Examples(data, objective, source.seed, HELD_OUT)
        if not len(self.examples):
            names = shown([file.name for entry in source.inputs for file in entry.files])
            what = "text" if objective.reads_text else "data"
            raise DataError(
                f"{names}: too little {what}: {data.NOUN}: {len(data):,}, tokens: {data.tokens:,}, "
                "examples: 0"
            )
        # A sequence longer than the budget is a batch of its own.
        budget = max(budget, int(self.examples.sizes.max()))
        self.held_out = HeldOut(self.examples, budget, token_characters(tokenizer))

    def figures(
        self,
        metrics: Sequence[str] | None,
        generation: Settings,
        log: Log,
        stop: StopFlag,
        batch: int,
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the figures, and the prediction and the target of each row of a task.

        `metrics` are names of `nlpkit score`; the default is the recipe's, then the task's.

        Raises:
            UsageError: this checkpoint has no answers for a metric.
            DivergedError: the loss is not finite.
            Stopped: a signal requested the stop.
        """
        opened, objective = self.opened, self.opened.objective
        if self.corpus.cut:
            cut = ", ".join(number_of(n, what) for what, n in self.corpus.cut.items())
            log.warn(f"too long in the held-out data: {cut}")
        training = Training(opened.model, objective)
        device = next(opened.model.parameters()).device
        # Without notes the checkpoint is treated as the end of its run.
        progress = float(opened.notes.get("progress", 1.0))
        with self._autocast():
            held_out = self.held_out.evaluate(
                training, Alone(device), stop, log.evaluating, progress
            )
        if held_out is None:
            raise stop.ending("nothing was evaluated")
        if not math.isfinite(held_out["loss"]):
            raise DivergedError(
                f"{opened.path}: the held-out loss is {held_out['loss']}: the weights are finite, "
                "but too large for this model; use an earlier checkpoint"
            )
        names = tuple(metrics or self.source.metrics or getattr(objective, "metrics", []))
        with self._autocast():
            answers, labels = self._answers(names, generation, log, stop, batch)
        held_out.pop("metrics", None)
        unknown = self.corpus.counts.unknown
        result = {
            "checkpoint": str(opened.path),
            self.corpus.NOUN: len(self.corpus),
            "targets": held_out["targets"],
            **({"unknown_tokens": unknown} if unknown else {}),
            "precision": self.precision,
            **{name: held_out[name] for name in LOSS_FIGURES if held_out[name] is not None},
        }
        if len(held_out["losses"]) > 1:
            result["losses"] = held_out["losses"]
        if names:
            pairs = list(zip(answers, labels, strict=True))
            try:
                scored = signed_scores(names, pairs, log.warn)
            except WrongScore as error:
                raise error if metrics else UsageError(f"eval.metrics: {error.message}") from error
            result["metrics"] = {name: value for name, (value, _) in scored.items()}
            if not self.held_out.predictions:
                result["signatures"] = _signatures(scored, generation)
        classes = confusion.classes(objective)
        if classes and answers:
            pairs = list(zip(answers, labels, strict=True))
            result["confusion"] = confusion.confusion(classes, pairs)
        rows = [{"prediction": a, "target": b} for a, b in zip(answers, labels, strict=True)]
        return result, rows

    def _answers(
        self, metrics: Sequence[str], generation: Settings, log: Log, stop: StopFlag, batch: int
    ) -> tuple[list[str], list[str | tuple[str, ...]]]:
        """Return the model's answers and the labels, in the order of the rows."""
        predictions = self.held_out.predictions
        if predictions:
            order = self.held_out.bins.items.tolist()
            in_order = [
                pair
                for _, pair in sorted(
                    zip(order, predictions, strict=True), key=lambda each: each[0]
                )
            ]
            return [a for a, _ in in_order], [b for _, b in in_order]
        if not self.is_task or not isinstance(self.corpus, Items):
            if metrics:
                raise UsageError(
                    f"--metrics {', '.join(metrics)}: this checkpoint was trained on running text; "
                    "it has no answers to score"
                )
            return [], []
        opened = self.opened
        writer = Writer(opened.model, opened.tokenizer, opened.objective, generation)
        texts = [item.text for item in self.corpus.items]
        labels = [item.label for item in self.corpus.items]
        answers: list[str] = []
        problems: list[str] = []
        for written in writer.write(texts, batch=batch, scores=False):
            stop.check()
            log.evaluating(len(answers), len(texts))
            answers.append(written.outputs[0].text if written.outputs else "")
            problems += [written.problem] if written.problem else []
        if problems:
            log.warn(
                f"{len(problems):,} of {len(texts):,} rows have no answer ({problems[0]}), which "
                "counts as an empty one"
            )
        if cut := writer.counts["cut inputs"]:
            log.warn(
                f"{number_of(cut, 'inputs were')} cut by "
                f"{number_of(writer.counts['cut tokens'], 'tokens')} in all"
            )
        return answers, labels


def values(figures: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the losses and the scores among the figures, by name."""
    losses = {name: figures[name] for name in LOSS_FIGURES if name in figures}
    return losses | figures.get("losses", {}) | figures.get("metrics", {})


def _signatures(
    scored: Mapping[str, tuple[float | None, str]], generation: Settings
) -> dict[str, str]:
    """Return what decides the scores of generated answers: their settings, and the decoding."""
    found = {name: signature for name, (_, signature) in scored.items() if signature}
    decoding = [f"beam:{generation.beam}"]
    if generation.beam > 1:
        decoding.append(f"length_penalty:{generation.length_penalty:g}")
    if generation.max_new_tokens:
        decoding.append(f"max_new_tokens:{generation.max_new_tokens}")
    return found | {"generation": "|".join(decoding)}


def table(figures: dict[str, Any]) -> str:
    """Return the figures as text, one line of name and value for each, and the confusion table."""
    rows: list[tuple[str, str]] = []
    for name, value in figures.items():
        if name == "confusion":
            continue
        if name == "signatures":
            rows += [(f"{key}.signature", text) for key, text in value.items()]
        elif isinstance(value, dict):
            rows += [(key, _shown(figure)) for key, figure in value.items()]
        else:
            rows.append((name, _shown(value)))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    if "confusion" in figures:
        lines += ["", confusion.table(figures["confusion"])]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None:
        return "undefined"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
