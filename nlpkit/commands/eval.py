"""Evaluate a checkpoint on held-out data."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nlpkit.commands._checkpoint import (
    check_folder,
    check_picture,
    check_unread,
    make_settings,
    open_as_asked,
)
from nlpkit.commands._options import Checkpoint, Common, option, shared
from nlpkit.disk import user_path
from nlpkit.errors import DataError, UsageError
from nlpkit.json_types import JsonObject

if TYPE_CHECKING:
    from nlpkit.evaluate.held_out import Evaluation
    from nlpkit.generate.settings import Settings
    from nlpkit.train.log import Log


@dataclass(frozen=True)
class Answers:
    """How answers are generated; None is what the recipe says."""

    beam: int | None = option(
        "--beam N",
        "beams of each generated answer; default: eval.beam of the run's recipe, or 1",
        min=1,
    )
    length_penalty: float | None = option(
        "--length-penalty X",
        "rank beams by log-probability / length ** X; default: eval.length_penalty, or 1",
    )
    length_penalty_form: Literal["power", "gnmt"] | None = option(
        "--length-penalty-form FORM",
        "power, or gnmt: / ((5 + length) / 6) ** X; default: eval.length_penalty_form, or power",
    )
    max_new_tokens: int | None = option("--max-new-tokens N", "of each generated answer", min=1)


@dataclass(frozen=True)
class Pictures:
    """What is drawn."""

    confusion: str | None = option(
        "--confusion FILE.png",
        "draw how many rows of each class are predicted as which class",
        callback=check_folder,
    )
    attention: str | None = option(
        "--attention FILE",
        "draw attention, as FILE.png or FILE.html: that of each layer and head in the first "
        "example of at most 48 tokens; of a model with a source, as PNG: to the source while it "
        "writes the first rows",
        callback=lambda file: check_picture(file, ".html", ".htm"),
    )
    attention_layer: int | None = option(
        "--attention-layer N",
        "with --attention: one layer, from 1; default: all, or of a decoder with a source the last "
        "but one",
    )

    sentence: str | None = option(
        "--sentence TEXT", "with --attention: the text, in place of a held-out example"
    )

    def __post_init__(self) -> None:
        if self.attention is None and self.sentence is not None:
            raise UsageError("--sentence: needs --attention FILE")
        if self.attention is None and self.attention_layer is not None:
            raise UsageError("--attention-layer: needs --attention FILE.png")
        if self.confusion is not None and not self.confusion.lower().endswith(".png"):
            raise UsageError(
                f"--confusion {self.confusion}: the table is drawn as PNG; name it FILE.png"
            )


@shared(
    "data",
    "metrics",
    "predictions",
    "text_key",
    "tokens_per_batch",
    "precision",
    "family",
    "device",
)
def command(checkpoint: Checkpoint, common: Common, answers: Answers, pictures: Pictures) -> None:
    """Evaluate a checkpoint on held-out data.

    Prints the loss (in nats per target), perplexity and bits per character if text is predicted,
    and the scores of the task, computed by the code of `nlpkit score`. If the task has classes, a
    table shows which of them are confused (--json: confusion, a row for each right class). If the
    task is to write text, the scores are those of what the checkpoint generates. --precision bf16
    computes as a training in bf16 does (train.precision). For the runs that `nlpkit finetune
    --seeds` made in a directory, it prints mean, median and deviation.

    Rows without labels have no scores: --predictions FILE writes their answers.

    Without tuning: `nlpkit shots` scores a task's rows with examples in the prompt, `nlpkit judge`
    minimal pairs, and the surprisal of each word.
    """
    from nlpkit.data.template import check_option
    from nlpkit.score.named import split

    check_option("--text-key", common.text_key)
    common = replace(common, predictions=check_folder(common.predictions))
    metrics = split(common.metrics) if common.metrics else None
    from nlpkit.checkpoints.run_directory import seed_runs
    from nlpkit.evaluate import write_rows

    log = common.open_log()
    runs = seed_runs(user_path(checkpoint))
    given = {"predictions": common.predictions} | asdict(pictures)
    for name in [name for name, file in given.items() if runs and file is not None]:
        raise UsageError(f"--{name}: {checkpoint} holds runs of --seeds; name one of them")
    once = [n for n in common.data or () if n == "-" or user_path(n).is_fifo()]
    if len(runs) > 1 and once:
        raise UsageError(f"--data {once[0]}: {checkpoint} holds several runs; name files for all")
    results: list[JsonObject] = []
    with common.catch_signals() as stop:
        for path in [path for _, path in runs] or [Path(checkpoint)]:
            run = _open(path, common, log, stop.check)
            _check(run, path, common, pictures)
            generation = _choose_generation(run, answers, pictures.attention is not None, log)
            if pictures.attention is not None:
                from nlpkit.evaluate import attention_maps

                file, layer = user_path(pictures.attention), pictures.attention_layer
                attention_maps.draw(run, generation, file, layer, pictures.sentence)
            figures, rows = run.evaluate(metrics, generation, log, stop)
            results.append(figures)
    _print(results, [seed for seed, _ in runs], common)
    if common.predictions is not None:
        write_rows(Path(common.predictions), rows)
    if pictures.confusion is not None:
        from nlpkit.report.figures import confusion_figure

        confusion_figure(**figures["confusion"], path=Path(pictures.confusion))
        log.info(f"drawn: {pictures.confusion}")


def _check(run: "Evaluation", checkpoint: Path, common: Common, pictures: Pictures) -> None:
    scored = {"--metrics": common.metrics, "--confusion": pictures.confusion}
    if run.unlabelled and (option := next((name for name, asked in scored.items() if asked), None)):
        raise UsageError(f"{option}: needs labels; {run.unlabelled.problem}")
    if run.unlabelled and common.predictions is None:
        data = "".join(f"--data {file} " for file in common.data or ())
        raise DataError(
            f"{run.unlabelled.problem}; to answer rows without labels: nlpkit eval {checkpoint} "
            f"{data}--predictions OUT.jsonl"
        )
    if pictures.confusion is not None and not run.classes:
        raise UsageError(f"--confusion: {checkpoint} was not trained to name classes")
    if common.predictions is not None and not run.has_answers:
        raise UsageError(
            f"--predictions: {checkpoint} was trained on running text or conversations; it has no "
            "answers to write"
        )
    files = [file for entry in run.source.inputs for file in entry.files]
    check_unread(common.predictions, [each.path for file in files for each in file.parts])


def _open(path: Path, common: Common, log: "Log", check: Callable[[], None]) -> "Evaluation":
    from nlpkit.data.store import Callbacks
    from nlpkit.evaluate import source
    from nlpkit.evaluate.held_out import Evaluation

    # In bf16 the weights are fp32, as in training.
    opened = open_as_asked(path, common, log, "auto" if common.precision == "auto" else "fp32")
    callbacks = Callbacks(log.detail, log.warn, log.tokenizing, should_stop=check)
    found = source.find_data(opened, common.data or (), common.text_key, log, callbacks)
    autocast = common.precision == "bf16"
    return Evaluation(opened, found, common.tokens_per_batch, callbacks, autocast=autocast)


def _choose_generation(run: "Evaluation", answers: Answers, draws: bool, log: "Log") -> "Settings":
    from nlpkit.contracts.abilities import Continues, ReadsSource
    from nlpkit.contracts.task import Task

    asked = asdict(answers)
    chosen = {name: value for name, value in asked.items() if value is not None}
    usual = run.source.scored.model_dump(include={"beam", "length_penalty", "length_penalty_form"})
    generation = make_settings(**usual | chosen)
    reasons = generation.without_effect()
    objective = run.opened.objective
    writes = isinstance(objective, Task) and isinstance(objective, Continues)
    if not writes and not (draws and isinstance(objective, ReadsSource)):
        reasons = dict.fromkeys(asked, "here: this checkpoint writes no answers")
    for name in [name for name in chosen if name in reasons]:
        log.warn(f"--{name.replace('_', '-')}: has no effect {reasons[name]}")
    return generation


def _print(results: list[JsonObject], seeds: list[int], common: Common) -> None:
    from nlpkit.evaluate.held_out import format_table, select_values

    if not seeds:
        common.print_result(format_table(results[0]), **results[0])
        return
    from nlpkit.report import seeds as runs

    result = runs.summary(seeds, [select_values(figures) for figures in results])
    result["checkpoints"] = [figures["checkpoint"] for figures in results]
    result["precision"] = results[0]["precision"]
    common.print_result(f"{runs.table(result)}\nprecision\t{result['precision']}", **result)
