"""Score the rows of a task with K examples in the prompt, without tuning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlpkit.commands._decoding import decoding_settings
from nlpkit.commands._evaluation import Checkpoint, Method, RowOptions, TokensPerBatch
from nlpkit.commands._options import Common, Family, RecipeName, shared
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.evaluate.prompts import Rows


@dataclass(frozen=True)
class ShotOptions:
    """How many examples stand in the prompt, and how they are drawn."""

    shots: Annotated[
        int,
        typer.Option("--shots", metavar="K", min=0, help="training rows in front of each row"),
    ] = 0
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            metavar="N",
            min=1,
            help="draw the examples with N seeds; print mean, median and deviation",
        ),
    ] = 1
    show_prompt: Annotated[
        bool,
        typer.Option("--show-prompt", help="print the first row's prompt and answers instead"),
    ] = False

    def __post_init__(self) -> None:
        if self.seeds > 1 and not self.shots:
            raise UsageError("--seeds: without examples (--shots 0) nothing is drawn; give --shots")


@dataclass(frozen=True)
class ModelOptions:
    """How the model answers."""

    method: Method = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", metavar="N", min=1, help="of each generated answer"),
    ] = None
    beam: Annotated[
        int, typer.Option("--beam", metavar="N", min=1, help="beams of each generated answer")
    ] = 1
    tokens_per_batch: TokensPerBatch = 4096
    family: Family = None


@shared("overrides", "device", "json", "quiet", "verbose")
def command(
    checkpoint: Checkpoint,
    recipe: RecipeName,
    common: Common,
    rows: RowOptions,
    shots: ShotOptions,
    model: ModelOptions,
) -> None:
    """Score the rows of a task with K examples in the prompt, without tuning.

    RECIPE is that of the task; --shots K puts K of its training rows, with their answers, in front
    of each row, as the papers of GPT-2 and GPT-3 do. eval.prompt in the recipe, or in --set, says
    how a row is shown as text (eval.prompt.template), and how answers to choose from are scored
    (eval.prompt.option_score). The model computes in float32.
    """
    from nlpkit.evaluate import prompts, write_rows

    metrics = rows.split_metrics()
    found = prompts.load(recipe, common.overrides or (), rows.data or (), shots.shots)
    if shots.show_prompt:
        _show(found, shots.shots, common)
        return
    if rows.predictions is not None and shots.seeds > 1:
        raise UsageError("--predictions writes the answers of one seed; give --seeds 1")
    results, answers = _score(checkpoint, found, metrics or found.metrics, shots, model, common)
    if rows.predictions is not None:
        write_rows(Path(rows.predictions), answers)
    _print(results, _build_prompt(found, shots.shots), common)


def _score(
    checkpoint: str,
    rows: "Rows",
    metrics: Sequence[str],
    asked: ShotOptions,
    model: ModelOptions,
    common: Common,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the figures of each seed, and the answers with the last one."""
    from nlpkit.cli import exit_now
    from nlpkit.evaluate.shots import Shots
    from nlpkit.runs.open_checkpoint import open_checkpoint
    from nlpkit.train.log import Log
    from nlpkit.train.scores import scores
    from nlpkit.train.signals import catch_signals

    log = Log(common.verbosity)
    generation = decoding_settings(max_new_tokens=model.max_new_tokens, beam=model.beam)
    results, answers = [], []
    with catch_signals(exit_now) as stop:
        opened = open_checkpoint(
            checkpoint, device=common.device, precision="fp32", family=model.family,
            info=log.info, warn=log.warn,
        )  # fmt: skip
        shots = Shots(opened, rows, model.method, model.tokens_per_batch, generation)

        def progress(done: int, total: int) -> None:
            stop.check()
            log.scoring(done, total, "rows")

        for seed in range(rows.seed, rows.seed + asked.seeds):
            shots.cut.clear()
            answers = shots.answer(asked.shots, seed, progress)
            if shots.cut:
                log.warn("too long: " + ", ".join(f"{n:,} {what}" for what, n in shots.cut.items()))
            pairs = [(row["prediction"], row["target"]) for row in answers]
            figures = {"checkpoint": str(opened.path), "task": rows.name, "shots": asked.shots}
            figures |= {"seed": seed, "rows": len(answers), **shots.describe()}
            results.append(figures | {"metrics": scores(metrics, pairs, log.warn)})
    return results, answers


def _print(results: list[dict[str, Any]], prompt: dict[str, Any], common: Common) -> None:
    """Print the figures; of several seeds, their mean, median and deviation."""
    from nlpkit.evaluate.held_out import format_table
    from nlpkit.report import seeds

    last = results[-1]
    if len(results) == 1:
        common.print_result(format_table(last), **last, prompt=prompt)
        return
    summary = seeds.summary([row["seed"] for row in results], [row["metrics"] for row in results])
    settings = {key: value for key, value in last.items() if key not in ("seed", "metrics")}
    common.print_result(seeds.table(summary), **settings, **summary, prompt=prompt)


def _build_prompt(rows: "Rows", shots: int) -> dict[str, Any]:
    """Return the first row's prompt as it is given to the model, and its answers."""
    row = rows.rows[0]
    return {
        "text": rows.write_prompt(rows.draw_examples(shots, rows.seed, 0), row),
        "answers": list(row.answers),
        "right": row.right,
        **rows.settings.model_dump(),
    }


def _show(rows: "Rows", shots: int, common: Common) -> None:
    """Print the first row's prompt, and its answers, the right one marked."""
    shown = _build_prompt(rows, shots)
    answers = shown["answers"] or [shown["right"]]
    lines = [f"{'*' if each == shown['right'] else ' '} {each!r}" for each in answers]
    common.print_result("\n".join([shown["text"], *lines]), **shown)
