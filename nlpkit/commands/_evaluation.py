"""Groups of options that the verbs `eval`, `judge` and `shots` share."""

from dataclasses import dataclass
from typing import Annotated

import typer

from nlpkit import completion

Checkpoint = Annotated[
    str,
    typer.Argument(metavar="CKPT", help="a checkpoint, or a run such as runs/cpm_ant"),
]
TokensPerBatch = Annotated[
    int,
    typer.Option("--tokens-per-batch", metavar="N", min=1, help="changes only the speed"),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="how a text is scored; masked models: pll (default) or pll-word-l2r, CPM-Ant: "
        "infilling (default), infilling-word or generation",
    ),
]


@dataclass(frozen=True)
class RowOptions:
    """Which rows are evaluated, by which scores, and where predictions go."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="data, or - for stdin (rows of a task as jsonl); repeatable; default: the "
            "held-out data of the recipe",
        ),
    ] = None
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="NAMES",
            autocompletion=completion.list_scores,
            help="scores of nlpkit score, such as accuracy,f1:average=micro; repeatable; "
            "default: eval.metrics of the recipe, or the task's own",
        ),
    ] = None
    predictions: Annotated[
        str | None,
        typer.Option(
            "--predictions", metavar="FILE", help="write predictions to FILE, one row per line"
        ),
    ] = None

    def split_metrics(self) -> list[str] | None:
        """Return the names of the scores; raise `UsageError` for an unknown one."""
        from nlpkit.score.named import split

        return split(self.metrics) if self.metrics else None


@dataclass(frozen=True)
class AnswerOptions:
    """How answers are generated; None is what the recipe says."""

    beam: Annotated[
        int | None,
        typer.Option(
            "--beam",
            metavar="N",
            min=1,
            help="beams of each generated answer; default: eval.beam of the run's recipe, or 1",
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(
            "--length-penalty",
            metavar="X",
            help="rank beams by log-probability / length ** X; default: eval.length_penalty, or 1",
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", metavar="N", min=1, help="of each generated answer"),
    ] = None
