"""Evaluate a checkpoint on held-out data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nlpkit.commands._options import Common, Family, shared
from nlpkit.disk import user_path
from nlpkit.errors import UsageError

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CKPT", help="a checkpoint, a run such as runs/cpm_ant, or the runs of --seeds"
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="data, or - for stdin (rows of a task as jsonl); repeatable; default: the held-out "
        "data of its run",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics",
        metavar="NAMES",
        help="scores of nlpkit score, such as accuracy,f1:average=micro; repeatable; "
        "default: eval.metrics of the run's recipe, or the task's own",
    ),
]
Predictions = Annotated[
    str | None,
    typer.Option(
        "--predictions", metavar="FILE", help="write predictions to FILE, one row per line"
    ),
]
TextKey = Annotated[
    str | None, typer.Option("--text-key", metavar="KEY", help="as data.text_key in a recipe")
]
Tokens = Annotated[
    int,
    typer.Option("--tokens-per-batch", metavar="N", min=1, help="changes only the speed"),
]
MaxNew = Annotated[
    int | None,
    typer.Option("--max-new-tokens", metavar="N", min=1, help="of each generated answer"),
]
Beam = Annotated[
    int, typer.Option("--beam", metavar="N", min=1, help="beams of each generated answer")
]


@shared("device", "json", "quiet", "verbose")
def command(
    checkpoint: Checkpoint,
    common: Common,
    data: Data = None,
    metrics: Metrics = None,
    predictions: Predictions = None,
    text_key: TextKey = None,
    tokens_per_batch: Tokens = 4096,
    max_new_tokens: MaxNew = None,
    beam: Beam = 1,
    family: Family = None,
) -> None:
    """Evaluate a checkpoint on held-out data.

    Prints the loss (in nats per target), perplexity and bits per character if text is predicted,
    and the scores of the task, computed by the code of `nlpkit score`. If the task is to write
    text, the scores are those of what the checkpoint generates. For the runs that `nlpkit finetune
    --seeds` made in a directory, it prints mean, median and deviation.
    """
    from nlpkit.score.named import split

    names = None if not metrics else split(metrics)
    from nlpkit import evaluate
    from nlpkit.checkpoints.run_directory import seed_runs
    from nlpkit.cli import exit_now
    from nlpkit.data.store import Callbacks
    from nlpkit.generate.settings import Settings
    from nlpkit.runs.opened import open_checkpoint
    from nlpkit.train.log import Log
    from nlpkit.train.signals import catch_signals

    log = Log(common.verbosity)
    generation = Settings(max_new_tokens=max_new_tokens, beam=beam)
    runs = seed_runs(user_path(checkpoint))
    if runs and predictions is not None:
        raise UsageError(f"--predictions: {checkpoint} holds {len(runs)} runs; name one of them")
    results = []
    with catch_signals(exit_now) as stop:
        callbacks = Callbacks(note=log.detail, warn=log.warn, should_stop=stop.check)
        for path in [path for _, path in runs] or [Path(checkpoint)]:
            opened = open_checkpoint(
                path, device=common.device, family=family, info=log.info, warn=log.warn
            )
            source = evaluate.find_data(opened, data or (), text_key, log, callbacks)
            run = evaluate.Evaluation(opened, source, tokens_per_batch, callbacks)
            figures, rows = run.figures(names, generation, log, stop, batch=32)
            results.append(figures)
    if predictions is not None:
        _write(Path(predictions), rows)
    if runs:
        _print_summary([seed for seed, _ in runs], results, common)
    else:
        common.result(evaluate.table(figures), **figures)


def _print_summary(seeds: list[int], results: list[dict[str, Any]], common: Common) -> None:
    """Print mean, median and deviation of the figures of several seeds."""
    from nlpkit.evaluate import values
    from nlpkit.runs.seeds import summary, table

    result = summary(seeds, [values(figures) for figures in results])
    result["checkpoints"] = [figures["checkpoint"] for figures in results]
    common.result(table(result), **result)


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    import json

    from nlpkit.disk import name_path_in_errors

    with name_path_in_errors(path), open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
