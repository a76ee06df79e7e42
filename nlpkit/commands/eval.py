"""Evaluate a checkpoint on held-out data."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlpkit.commands._decoding import decoding_settings
from nlpkit.commands._evaluation import AnswerOptions, Checkpoint, RowOptions, TokensPerBatch
from nlpkit.commands._options import Common, Family, Precision, shared
from nlpkit.disk import user_path
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.evaluate.held_out import Evaluation
    from nlpkit.generate.settings import Settings
    from nlpkit.train.log import Log

# Options that are not of this verb -> what takes their place.
MOVED = {
    "--pairs": "nlpkit judge CKPT --pairs FILE…",
    "--surprisal": "nlpkit judge CKPT FILE… --surprisal OUT.tsv",
    "--method": "nlpkit judge and nlpkit shots have it",
    "--task": "nlpkit shots CKPT RECIPE",
    "--shots": "nlpkit shots CKPT RECIPE --shots K",
    "--seeds": "nlpkit shots CKPT RECIPE --shots K --seeds N",
    "--show-prompt": "nlpkit shots CKPT RECIPE --show-prompt",
    "--set": "nlpkit shots CKPT RECIPE --set KEY=VALUE",
    "--option-score": "nlpkit shots CKPT RECIPE --set eval.prompt.option_score=NAME",
    "--template": "nlpkit shots CKPT RECIPE --set eval.prompt.template=TEXT",
}


@dataclass(frozen=True)
class DataOptions(RowOptions):
    """As `RowOptions`, and how data without a recipe are read."""

    text_key: Annotated[
        str | None, typer.Option("--text-key", metavar="KEY", help="as data.text_key in a recipe")
    ] = None


@dataclass(frozen=True)
class Pictures:
    """What is drawn."""

    confusion: Annotated[
        str | None,
        typer.Option(
            "--confusion",
            metavar="FILE.png",
            help="draw how many rows of each class are predicted as which class",
        ),
    ] = None
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="FILE.png",
            help="draw which tokens of the source the model attends to while it writes the first "
            "rows",
        ),
    ] = None
    attention_layer: Annotated[
        int | None,
        typer.Option(
            "--attention-layer",
            metavar="N",
            help="with --attention: layer of the decoder, from 1; default: the last but one",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.attention is None and self.attention_layer is not None:
            raise UsageError("--attention-layer: needs --attention FILE.png")
        if self.confusion is not None and not self.confusion.lower().endswith(".png"):
            raise UsageError(
                f"--confusion {self.confusion}: the table is drawn as PNG; name it FILE.png"
            )


@dataclass(frozen=True)
class Computation:
    """How the checkpoint is opened and computed."""

    tokens_per_batch: TokensPerBatch = 4096
    precision: Precision = "auto"
    family: Family = None


@shared("device", "json", "quiet", "verbose")
def command(
    checkpoint: Checkpoint,
    common: Common,
    data: DataOptions,
    answers: AnswerOptions,
    pictures: Pictures,
    computation: Computation,
) -> None:
    """Evaluate a checkpoint on held-out data.

    Prints the loss (in nats per target), perplexity and bits per character if text is predicted,
    and the scores of the task, computed by the code of `nlpkit score`. If the task has classes, a
    table shows which of them are confused (--json: confusion, a row for each right class). If the
    task is to write text, the scores are those of what the checkpoint generates. --precision bf16
    computes as a training in bf16 does (train.precision). For the runs that `nlpkit finetune
    --seeds` made in a directory, it prints mean, median and deviation.

    Without tuning: `nlpkit shots` scores a task's rows with examples in the prompt, `nlpkit judge`
    minimal pairs, and the surprisal of each word.
    """
    from nlpkit.data.template import check_option

    check_option("--text-key", data.text_key)
    metrics = data.split_metrics()
    from nlpkit.checkpoints.run_directory import seed_runs
    from nlpkit.cli import exit_now
    from nlpkit.evaluate import write_rows
    from nlpkit.train.log import Log
    from nlpkit.train.signals import catch_signals

    log = Log(common.verbosity)
    runs = seed_runs(user_path(checkpoint))
    given = {"predictions": data.predictions} | asdict(pictures)
    for option in [name for name, file in given.items() if runs and file is not None]:
        raise UsageError(f"--{option}: {checkpoint} holds runs of --seeds; name one of them")
    results: list[dict[str, Any]] = []
    with catch_signals(exit_now) as stop:
        for path in [path for _, path in runs] or [Path(checkpoint)]:
            run = _open(path, common.device, data, computation, log, stop.check)
            _check(run, checkpoint, data, pictures)
            generation = _choose_generation(run, answers, pictures.attention is not None, log)
            if pictures.attention is not None:
                _draw_attention(run, generation, pictures)
            figures, rows = run.evaluate(metrics, generation, log, stop)
            results.append(figures)
    _print(results, [seed for seed, _ in runs], common)
    if data.predictions is not None:
        write_rows(Path(data.predictions), rows)
    if pictures.confusion is not None:
        _draw_confusion(figures["confusion"], pictures.confusion, log)


def _check(run: "Evaluation", checkpoint: str, data: DataOptions, pictures: Pictures) -> None:
    """Raise `UsageError` for what this checkpoint cannot give."""
    if pictures.confusion is not None and not run.classes:
        raise UsageError(f"--confusion: {checkpoint} was not trained to name classes")
    if data.predictions is not None and not run.is_task:
        raise UsageError(
            f"--predictions: {checkpoint} was trained on running text; it has no answers to write"
        )


def _open(
    path: Path, device: str, data: DataOptions, computation: Computation, log: "Log", check: Any
) -> "Evaluation":
    """Open a checkpoint and its held-out data."""
    from nlpkit.data.store import Callbacks
    from nlpkit.evaluate import source
    from nlpkit.evaluate.held_out import Evaluation
    from nlpkit.runs.open_checkpoint import open_checkpoint

    # In bf16 the weights are fp32, as in training.
    opened = open_checkpoint(
        path, device=device, family=computation.family, info=log.info, warn=log.warn,
        precision="auto" if computation.precision == "auto" else "fp32",
    )  # fmt: skip
    callbacks = Callbacks(log.detail, log.warn, log.tokenizing, should_stop=check)
    found = source.find_data(opened, data.data or (), data.text_key, log, callbacks)
    autocast = computation.precision == "bf16"
    return Evaluation(opened, found, computation.tokens_per_batch, callbacks, autocast=autocast)


def _choose_generation(
    run: "Evaluation", answers: AnswerOptions, draws: bool, log: "Log"
) -> "Settings":
    """Return how answers are generated; warn of options without effect."""
    from nlpkit.contracts.task import writes_answers

    asked = asdict(answers)
    chosen = {name: value for name, value in asked.items() if value is not None}
    generation = decoding_settings(**{**run.source.generation, **chosen})
    reasons = generation.without_effect()
    if not draws and not writes_answers(type(run.opened.objective)):
        reasons = dict.fromkeys(asked, "here: this checkpoint writes no answers")
    for name in [name for name in chosen if name in reasons]:
        log.warn(f"--{name.replace('_', '-')}: has no effect {reasons[name]}")
    return generation


def _draw_confusion(table: dict[str, Any], file: str, log: "Log") -> None:
    from nlpkit.report.figures import confusion_figure

    confusion_figure(**table, path=Path(file))
    log.info(f"drawn: {file}")


def _draw_attention(run: "Evaluation", generation: "Settings", pictures: Pictures) -> None:
    from nlpkit.evaluate.alignments import draw_alignments

    draw_alignments(run, generation, user_path(str(pictures.attention)), pictures.attention_layer)


def _print(results: list[dict[str, Any]], seeds: list[int], common: Common) -> None:
    """Print the figures; of several seeds, their mean, median and deviation."""
    from nlpkit.evaluate.held_out import format_table, select_values

    if not seeds:
        common.print_result(format_table(results[0]), **results[0])
        return
    from nlpkit.report import seeds as runs

    result = runs.summary(seeds, [select_values(figures) for figures in results])
    result["checkpoints"] = [figures["checkpoint"] for figures in results]
    result["precision"] = results[0]["precision"]
    common.print_result(f"{runs.table(result)}\nprecision\t{result['precision']}", **result)
