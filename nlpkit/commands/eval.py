"""Evaluate a checkpoint on held-out data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nlpkit.commands._call import Call, write_rows
from nlpkit.commands._decoding import decoding_settings
from nlpkit.commands._options import Common, Family, Precision, shared
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
    int | None,
    typer.Option(
        "--beam",
        metavar="N",
        min=1,
        help="beams of each generated answer; default: eval.beam of the run's recipe, or 1",
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        metavar="X",
        help="rank beams by log-probability / length ** X; default: eval.length_penalty, or 1",
    ),
]

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE...", help="more files of --pairs, as in --pairs blimp/*.jsonl"),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "--pairs",
        metavar="FILE",
        help="minimal pairs as BLiMP's jsonl, or a directory of such files: how often the good "
        "sentence has the higher probability",
    ),
]
Surprisal = Annotated[
    str | None,
    typer.Option(
        "--surprisal",
        metavar="FILE.tsv",
        help="write -log p of each sentence, word, token and character of --data (a sentence a "
        "line) or --pairs to FILE.tsv",
    ),
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
Task = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="RECIPE", help="score the rows of a task's recipe without tuning"
    ),
]
Shots = Annotated[
    int,
    typer.Option(
        "--shots", metavar="K", min=0, help="with --task: training rows in front of each row"
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        "--seeds",
        metavar="N",
        min=1,
        help="with --shots: draw the examples with N seeds; print mean, median and deviation",
    ),
]
OptionScore = Annotated[
    str | None,
    typer.Option(
        "--option-score",
        metavar="NAME",
        help="with --task: log-probability of an answer as sum (default), by token, or neutral "
        "(less that behind a neutral context)",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="TEXT",
        help="with --task: text of a row, such as '{text} It was'; {COLUMN} is a value; the other "
        "settings are eval.prompt in the recipe or in --set",
    ),
]
ShowPrompt = Annotated[
    bool,
    typer.Option("--show-prompt", help="with --task: print the first row's prompt and answers"),
]
Attention = Annotated[
    str | None,
    typer.Option(
        "--attention",
        metavar="FILE.png",
        help="draw which tokens of the source the model attends to while it writes the first rows",
    ),
]
AttentionLayer = Annotated[
    int | None,
    typer.Option(
        "--attention-layer",
        metavar="N",
        help="with --attention: layer of the decoder, from 1; default: the last but one",
    ),
]
Confusion = Annotated[
    str | None,
    typer.Option(
        "--confusion",
        metavar="FILE.png",
        help="draw how many rows of each class are predicted as which class",
    ),
]


@shared("overrides", "device", "json", "quiet", "verbose")
def command(
    checkpoint: Checkpoint,
    common: Common,
    files: Files = None,
    data: Data = None,
    metrics: Metrics = None,
    predictions: Predictions = None,
    text_key: TextKey = None,
    tokens_per_batch: Tokens = 4096,
    max_new_tokens: MaxNew = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    family: Family = None,
    pairs: Pairs = None,
    surprisal: Surprisal = None,
    method: Method = None,
    task: Task = None,
    shots: Shots = 0,
    seeds: Seeds = 1,
    option_score: OptionScore = None,
    template: Template = None,
    show_prompt: ShowPrompt = False,
    confusion: Confusion = None,
    attention: Attention = None,
    attention_layer: AttentionLayer = None,
    precision: Precision = "auto",
) -> None:
    """Evaluate a checkpoint on held-out data.

    Prints the loss (in nats per target), perplexity and bits per character if text is predicted,
    and the scores of the task, computed by the code of `nlpkit score`. If the task has classes, a
    table shows which of them are confused (--json: confusion, a row for each right class). If the
    task is to write text, the scores are those of what the checkpoint generates. --precision bf16
    computes as a training in bf16 does (train.precision). For the runs that `nlpkit finetune
    --seeds` made in a directory, it prints mean, median and deviation.

    Without tuning: --task RECIPE --shots K scores a task's rows with K examples in the prompt, as
    the papers of GPT-2 and GPT-3 do; --pairs scores minimal pairs; --surprisal writes -log p of
    each token, word and character. These compute in float32.
    """
    call = Call(
        checkpoint=checkpoint, common=common, data=tuple(data or ()), metrics=metrics,
        predictions=predictions, text_key=text_key, tokens_per_batch=tokens_per_batch,
        max_new_tokens=max_new_tokens, beam=beam, length_penalty=length_penalty, family=family,
        files=tuple(files or ()), pairs=tuple(pairs or ()), surprisal=surprisal, method=method,
        task=task, shots=shots, seeds=seeds, option_score=option_score, template=template,
        show_prompt=show_prompt, confusion=confusion, attention=attention,
        attention_layer=attention_layer, precision=precision,
    )  # fmt: skip
    call.check()
    from nlpkit.data.template import check_option

    check_option("--text-key", text_key)
    if task is not None:
        from nlpkit.commands._shots import run_task

        run_task(call)
    elif call.is_of_texts:
        from nlpkit.commands._texts import run_texts

        run_texts(call)
    else:
        _held_out(call)


def _held_out(call: Call) -> None:
    """Evaluate on held-out data as the training does."""
    from nlpkit.score.named import split

    names = None if not call.metrics else split(call.metrics)
    from nlpkit.checkpoints.run_directory import seed_runs
    from nlpkit.cli import exit_now
    from nlpkit.contracts.task import writes_answers
    from nlpkit.data.store import Callbacks
    from nlpkit.evaluate import confusion, held_out
    from nlpkit.runs.opened import open_checkpoint
    from nlpkit.train.log import Log
    from nlpkit.train.signals import catch_signals

    common = call.common
    log = Log(common.verbosity)
    runs = seed_runs(user_path(call.checkpoint))
    files = {
        "--predictions": call.predictions,
        "--confusion": call.confusion,
        "--attention": call.attention,
    }
    for option in [name for name, file in files.items() if runs and file is not None]:
        raise UsageError(f"{option}: {call.checkpoint} holds runs of --seeds; name one of them")
    results = []
    with catch_signals(exit_now) as stop:
        callbacks = Callbacks(log.detail, log.warn, log.tokenizing, should_stop=stop.check)
        for path in [path for _, path in runs] or [Path(call.checkpoint)]:
            # In bf16 the weights are fp32, as in training.
            opened = open_checkpoint(
                path, device=common.device, family=call.family, info=log.info, warn=log.warn,
                precision="auto" if call.precision == "auto" else "fp32",
            )  # fmt: skip
            if call.confusion is not None and not confusion.classes(opened.objective):
                raise UsageError(f"--confusion: {call.checkpoint} was not trained to name classes")
            if call.predictions is not None and not held_out.is_task(opened.objective):
                raise UsageError(
                    f"--predictions: {call.checkpoint} was trained on running text; it has no "
                    "answers to write"
                )
            source = held_out.find_data(opened, call.data, call.text_key, log, callbacks)
            asked = {
                "beam": call.beam,
                "length_penalty": call.length_penalty,
                "max_new_tokens": call.max_new_tokens,
            }
            chosen = {name: value for name, value in asked.items() if value is not None}
            generation = decoding_settings(**{**source.generation, **chosen})
            reasons = generation.without_effect()
            if call.attention is None and not writes_answers(type(opened.objective)):
                reasons = dict.fromkeys(asked, "here: this checkpoint writes no answers")
            for name in [name for name in chosen if name in reasons]:
                log.warn(f"--{name.replace('_', '-')}: has no effect {reasons[name]}")
            run = held_out.Evaluation(
                opened, source, call.tokens_per_batch, callbacks, autocast=call.precision == "bf16"
            )
            if call.attention is not None:
                from nlpkit.evaluate.alignments import draw_alignments

                draw_alignments(run, generation, user_path(call.attention), call.attention_layer)
            figures, rows = run.figures(names, generation, log, stop, batch=32)
            results.append(figures)
    if call.predictions is not None:
        write_rows(Path(call.predictions), rows)
    if runs:
        _print_summary([seed for seed, _ in runs], results, common)
    else:
        common.result(held_out.table(figures), **figures)
    if call.confusion is not None:
        from nlpkit.report.figures import confusion_figure

        confusion_figure(**figures["confusion"], path=Path(call.confusion))
        log.info(f"drawn: {call.confusion}")


def _print_summary(seeds: list[int], results: list[dict[str, Any]], common: Common) -> None:
    """Print mean, median and deviation of the figures of several seeds."""
    from nlpkit.evaluate.held_out import values
    from nlpkit.runs.seeds import summary, table

    result = summary(seeds, [values(figures) for figures in results])
    result["checkpoints"] = [figures["checkpoint"] for figures in results]
    result["precision"] = results[0]["precision"]
    common.result(f"{table(result)}\nprecision\t{result['precision']}", **result)
