"""Evaluates a checkpoint on held-out data: loss, perplexity, bits per character, task scores.

The code of `nlpkit score` computes the scores of answers and generated texts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from nlpkit.contracts.task import Answer, Item, Task
from nlpkit.data import store
from nlpkit.data.items import TaskDataset, build_items
from nlpkit.data.lines import name_first
from nlpkit.data.loader import HELD_OUT, Examples
from nlpkit.errors import DataError, DivergedError, UsageError
from nlpkit.evaluate import list_left_out
from nlpkit.evaluate.source import Source, Unlabelled, find_unlabelled
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.plural import number_of
from nlpkit.report.history import FIGURES
from nlpkit.runs import frozen
from nlpkit.runs.open_checkpoint import Opened
from nlpkit.runs.run import Training
from nlpkit.score.named import WrongScore, explain_unreadable
from nlpkit.text_table import aligned
from nlpkit.train.held_out import HeldOut
from nlpkit.train.log import Log
from nlpkit.train.progress import Show, follow
from nlpkit.train.scores import signed_scores
from nlpkit.train.signals import StopFlag

_WIDEST = 20  # classes of a table; of more, only the most frequent errors are printed
_MOST = 10  # of these errors


@dataclass(frozen=True)
class Alone:
    """The accelerator attributes that `HeldOut` reads, for a single process."""

    device: torch.device
    num_processes: int = 1
    process_index: int = 0


class Evaluation:
    """Evaluates a checkpoint on the held-out examples of its objective.

    With `autocast`, products are in bfloat16 as in a training in bf16, else in the model's type.
    """

    def __init__(
        self,
        opened: Opened,
        source: Source,
        budget: int,
        callbacks: store.Callbacks,
        *,
        autocast: bool = False,
    ):
        self.opened, self.source = opened, source
        parameter = next(opened.model.parameters())
        self.precision = "fp32" if parameter.dtype == torch.float32 and not autocast else "bf16"
        self._autocast = partial(torch.autocast, parameter.device.type, torch.bfloat16, autocast)
        objective, tokenizer = opened.objective, opened.tokenizer
        self.has_answers = objective.has_answers
        self._written: list[Item] = []  # the rows to which answers are generated
        self.unlabelled: Unlabelled | None = None
        read, part = (source.inputs, source.config), source.part
        data: TaskDataset | store.Corpus
        if isinstance(objective, Task):
            self.unlabelled = found = find_unlabelled(source, objective)
            change = found.add_label if found else None
            data = build_items(*read, objective, part=part, callbacks=callbacks, change=change)
            if self.has_answers and type(objective).predict is Task.predict:
                self._written = data.items
        else:
            encoding = store.Encoding(tokenizer, objective.drop_unknown, objective.token_flags)
            data = store.build_corpus(
                *read, encoding, cache_dir=source.cache, part=part, callbacks=callbacks
            )
        self.corpus = data
        self.examples = Examples(data, objective, source.seed, HELD_OUT)
        if not len(self.examples):
            names = name_first([file.name for entry in source.inputs for file in entry.files])
            what = "text" if objective.reads_text else "data"
            raise DataError(
                f"{names}: too little {what}: {data.NOUN}: {len(data):,}, tokens: {data.tokens:,}, "
                "examples: 0"
            )
        # A sequence longer than the budget is a batch of its own.
        budget = max(budget, int(self.examples.sizes.max()))
        self.held_out = HeldOut(self.examples, budget, tokenizer)

    @property
    def classes(self) -> list[str]:
        """The classes of a task that names one for each row; [] for others, such as tagging."""
        objective = self.opened.objective
        of_words = objective.head_kind == "token_classification"
        return [] if of_words else objective.config.setting("labels") or []

    def _explain_unreadable(self, name: str) -> str | None:
        """Return why no answers of this task can have a score, or None; see `score/named`."""
        if not self.has_answers:
            what = "this checkpoint was trained on running text or conversations"
            return f"{name}: {what}; it has no answers to score"
        if self.classes:  # one by one: the rows may have some of them alone
            wrong = [explain_unreadable(name, [each]) for each in self.classes]
            return wrong[0] if all(wrong) else None
        labels = [item.label for item in self._written]
        first = [each if isinstance(each, str) else each[0] for each in labels]
        return explain_unreadable(name, first) if first else None

    def evaluate(
        self, metrics: Sequence[str] | None, generation: Settings, log: Log, stop: StopFlag
    ) -> tuple[JsonObject, list[JsonObject]]:
        """Return the figures, and the prediction and the target of each row of a task.

        Rows without labels have neither scores nor targets.

        `metrics` are names of `nlpkit score`; the default is the recipe's, then the task's.

        Raises:
            UsageError: this checkpoint has no answers for a metric.
            DivergedError: the loss is not finite.
            Stopped: a signal requested the stop.
        """
        if self.corpus.cut:
            cut = ", ".join(number_of(n, what) for what, n in self.corpus.cut.items())
            log.warn(f"too long in the held-out data: {cut}")
        log.warn_all(list_left_out(self.corpus.counts))
        if self.corpus.remark:
            log.info(self.corpus.remark.removeprefix("; "))
        names = tuple(metrics or self.source.scored.metrics or self.opened.objective.metrics)
        names = () if self.unlabelled else names
        for name in names:  # before all rows are computed
            if wrong := self._explain_unreadable(name):
                raise UsageError(f"{'--metrics' if metrics else 'eval.metrics:'} {wrong}")
        parts = self.opened.model, self.opened.tokenizer, self.opened.objective
        writer = Writer(*parts, generation) if self._written else None
        with self._autocast(), follow(log) as show:
            result = self._compute_losses(log, stop, show)
            pairs = self._collect_answers(writer, log, stop, show)
        if self.unlabelled:  # the losses are those of labels that stand in
            shown = ("checkpoint", self.corpus.NOUN, "precision")
            return {n: result[n] for n in shown}, [{"prediction": answer} for answer, _ in pairs]
        if names:
            try:
                scored = signed_scores(names, pairs, log.warn)
            except WrongScore as error:
                raise error if metrics else UsageError(f"eval.metrics: {error.message}") from error
            values = {name: value for name, (value, _) in scored.items()}
            result["metrics"] = result.get("metrics", {}) | values
            if not self.held_out.predictions:
                result["signatures"] = _sign(scored, generation)
        if self.classes and pairs:
            result["confusion"] = count_confusion(self.classes, pairs)
        return result, [{"prediction": answer, "target": label} for answer, label in pairs]

    def _compute_losses(self, log: Log, stop: StopFlag, show: Show) -> JsonObject:
        opened = self.opened
        training = Training(opened.model, opened.objective)
        device = next(opened.model.parameters()).device
        if needed := frozen.find_bound(opened.objective):
            frozen.attach(needed, opened.objective, opened.tokenizer, str(device), log)
        # Without notes the checkpoint is treated as the end of its run.
        progress = float(opened.notes.get("progress", 1.0))
        shown = partial(show, "evaluated batches")
        found = self.held_out.evaluate(training, Alone(device), stop, shown, progress)
        if found is None:
            raise stop.ending("nothing was evaluated")
        if not math.isfinite(found["loss"]):
            raise DivergedError(
                f"{opened.path}: the held-out loss is {found['loss']}: the weights are finite, "
                "but too large for this model; use an earlier checkpoint"
            )
        if not found["targets"]:
            log.warn("the held-out data have no target: a loss of 0 says nothing; give more")
        unknown = self.corpus.counts.unknown
        scores = {name: found["metrics"][name] for name in opened.objective.scores}
        return {
            "checkpoint": str(opened.path),
            self.corpus.NOUN: len(self.corpus),
            "targets": found["targets"],
            **({"unknown_tokens": unknown} if unknown else {}),
            "precision": self.precision,
            **{name: found[name] for name in FIGURES if found[name] is not None},
            **({"losses": found["losses"]} if len(found["losses"]) > 1 else {}),
            **({"metrics": scores} if scores else {}),
        }

    def _collect_answers(
        self, writer: Writer | None, log: Log, stop: StopFlag, show: Show
    ) -> list[Answer]:
        if predictions := self.held_out.predictions:
            by_row = zip(self.held_out.bins.items.tolist(), predictions, strict=True)
            return [pair for _, pair in sorted(by_row, key=lambda each: each[0])]
        if writer is None:
            return []
        texts = [item.text for item in self._written]
        answers: list[str] = []
        problems: list[str] = []
        ended = 0
        for written in writer.write(texts, scores=False, warn=log.warn):
            stop.check()
            show("written answers", len(answers), len(texts))
            answers.append(written.outputs[0].text if written.outputs else "")
            problems += [written.problem] if written.problem else []
            ended += not written.outputs or written.outputs[0].ended
        if open_ones := len(texts) - ended:
            log.warn(
                f"{open_ones:,} of {len(texts):,} answers were not at their end after "
                f"{writer.max_new_tokens} tokens; more: --max-new-tokens"
            )
        if problems:
            log.warn(
                f"{len(problems):,} of {len(texts):,} rows have no answer ({problems[0]}), which "
                "counts as an empty one"
            )
        return [(a, item.label) for a, item in zip(answers, self._written, strict=True)]


def select_values(figures: JsonMapping) -> dict[str, float | None]:
    """Return the losses and the scores among the figures, by name."""
    losses = {name: figures[name] for name in FIGURES if name in figures}
    return losses | figures.get("losses", {}) | figures.get("metrics", {})


def _sign(scored: Mapping[str, tuple[float | None, str]], generation: Settings) -> dict[str, str]:
    """Return what decides the scores of generated answers: their settings, and the decoding."""
    found = {name: signature for name, (_, signature) in scored.items() if signature}
    decoding = [f"beam:{generation.beam}"]
    if generation.beam > 1:
        decoding.append(f"length_penalty:{generation.length_penalty:g}")
        if generation.length_penalty_form != "power":
            decoding.append(f"length_penalty_form:{generation.length_penalty_form}")
    if generation.max_new_tokens:
        decoding.append(f"max_new_tokens:{generation.max_new_tokens}")
    return found | {"generation": "|".join(decoding)}


def count_confusion(labels: Sequence[str], answers: Sequence[Answer]) -> JsonObject:
    """Return `labels` and `counts`, a row for each right class and a column for each predicted one.

    `answers` are pairs of the predicted and the right class.
    """
    place = {label: number for number, label in enumerate(labels)}
    counts = [[0] * len(labels) for _ in labels]
    for predicted, right in answers:
        counts[place[str(right)]][place[predicted]] += 1
    return {"labels": list(labels), "counts": counts}


def format_confusion(found: JsonObject) -> str:
    """Return the table as text; of many classes, a line for each of the most frequent errors."""
    labels, counts = found["labels"], found["counts"]
    if len(labels) > _WIDEST:
        errors = [
            (count, labels[right], labels[predicted])
            for right, row in enumerate(counts)
            for predicted, count in enumerate(row)
            if count and right != predicted
        ]
        most = sorted(errors, key=lambda error: -error[0])[:_MOST]
        rows = [["right", "predicted", "rows"], *([a, b, f"{n:,}"] for n, a, b in most)]
    else:
        rows = [["right \\ predicted", *labels]]
        rows += [[label, *map(str, row)] for label, row in zip(labels, counts, strict=True)]
    return "\n".join(aligned(rows))


def format_table(figures: JsonObject) -> str:
    """Return the figures as text, one line of name and value for each, and the confusion table."""
    rows: list[tuple[str, str]] = []
    for name, value in figures.items():
        if name == "confusion":
            continue
        if name == "signatures":
            rows += [(f"{key}.signature", text) for key, text in value.items()]
        elif isinstance(value, dict):
            rows += [(key, _format(figure)) for key, figure in value.items()]
        else:
            rows.append((name, _format(value)))
    lines = aligned(rows, numbers=False)
    if "confusion" in figures:
        lines += ["", format_confusion(figures["confusion"])]
    return "\n".join(lines)


def _format(value: object) -> str:
    if value is None:
        return "undefined"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
