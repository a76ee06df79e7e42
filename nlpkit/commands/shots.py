"""Score the rows of a task with K examples in the prompt, without tuning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands._checkpoint import check_folder, check_unread, make_settings, open_as_asked
from nlpkit.commands._options import Checkpoint, Common, RecipeName, option, shared
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject

if TYPE_CHECKING:
    from nlpkit.evaluate.prompts import Rows


@dataclass(frozen=True)
class ShotOptions:
    """How many examples stand in the prompt, and how they are drawn."""

    shots: int = option("--shots K", "training rows in front of each row", default=0, min=0)
    seeds: int = option(
        "--seeds N",
        "draw the examples with N seeds; print mean, median and deviation",
        default=1,
        min=1,
    )
    show_prompt: bool = option("--show-prompt", "print the first row's prompt and answers instead")

    max_new_tokens: int | None = option("--max-new-tokens N", "of each generated answer", min=1)
    beam: int = option("--beam N", "beams of each generated answer", default=1, min=1)

    def __post_init__(self) -> None:
        if self.seeds > 1 and not self.shots:
            raise UsageError("--seeds: without examples (--shots 0) nothing is drawn; give --shots")


@shared(
    "overrides", "data", "metrics", "predictions", "method", "tokens_per_batch", "family", "device"
)
def command(checkpoint: Checkpoint, recipe: RecipeName, common: Common, asked: ShotOptions) -> None:
    """Score the rows of a task with K examples in the prompt, without tuning.

    RECIPE is that of the task; --shots K puts K of its training rows, with their answers, in front
    of each row, as the papers of GPT-2 and GPT-3 do. eval.prompt in the recipe, or in --set, says
    how a row is shown as text (eval.prompt.template), and how answers to choose from are scored
    (eval.prompt.option_score). The model computes in float32.
    """
    from nlpkit.evaluate import list_left_out, prompts, write_rows
    from nlpkit.score.named import explain_unreadable, split

    if common.predictions is not None and (asked.seeds > 1 or asked.show_prompt):
        raise UsageError("--predictions: has the answers of one seed; no --seeds or --show-prompt")
    metrics = split(common.metrics) if common.metrics else None
    predictions = check_folder(common.predictions)
    check_unread(predictions, common.data or ())
    found = prompts.load(recipe, common.overrides or (), common.data or (), asked.shots)
    found.check_examples(asked.shots)
    common.open_log().warn_all(list_left_out(found.counts))
    if asked.show_prompt:
        shown = _build_prompt(found, asked.shots)
        answers = shown["answers"] or [shown["right"]]
        lines = [f"{'*' if each == shown['right'] else ' '} {each!r}" for each in answers]
        common.print_result("\n".join([shown["text"], *lines]), **shown)
        return
    for name in metrics or found.metrics:  # before all rows are computed
        if wrong := explain_unreadable(name, [row.label for row in found.rows]):
            what = f"--metrics {wrong}" if metrics else found.locate(f"eval.metrics: {wrong}")
            raise UsageError(what)
    results, rows = _score(checkpoint, found, metrics or found.metrics, asked, common)
    if predictions is not None:
        write_rows(Path(predictions), rows)
    _print(results, _build_prompt(found, asked.shots), common)


def _score(
    checkpoint: str, rows: "Rows", metrics: Sequence[str], asked: ShotOptions, common: Common
) -> tuple[list[JsonObject], list[JsonObject]]:
    from nlpkit.evaluate.shots import Shots
    from nlpkit.train.scores import scores

    log = common.open_log()
    chooses = bool(rows.rows[0].answers)
    writing = {"--beam": asked.beam > 1, "--max-new-tokens": asked.max_new_tokens is not None}
    given = writing if chooses else {"--method": common.method is not None}
    for name in [name for name, is_given in given.items() if is_given]:
        log.warn(f"{name}: has no effect: answers are {'chosen' if chooses else 'written'}")
    generation = make_settings(max_new_tokens=asked.max_new_tokens, beam=asked.beam)
    results, answers = [], []
    with common.catch_signals() as stop:
        opened = open_as_asked(checkpoint, common, log)
        shots = Shots(opened, rows, common.method, common.tokens_per_batch, generation)

        def progress(done: int, total: int) -> None:
            stop.check()
            log.info_rarely(f"scored {done:,} of {total:,} rows")

        for seed in range(rows.seed, rows.seed + asked.seeds):
            shots.cut.clear()
            answers = shots.answer(asked.shots, seed, progress)
            if shots.cut:
                lost = ", ".join(f"{n:,} {what}" for what, n in shots.cut.items())
                log.warn(f"prompts were not read whole: {lost}")
            pairs = [(row["prediction"], row["target"]) for row in answers]
            figures = {"checkpoint": str(opened.path), "task": rows.name, "shots": asked.shots}
            figures |= {"seed": seed, "rows": len(answers), **shots.describe()}
            results.append(figures | {"metrics": scores(metrics, pairs, log.warn)})
    return results, answers


def _print(results: list[JsonObject], prompt: JsonObject, common: Common) -> None:
    from nlpkit.evaluate.held_out import format_table
    from nlpkit.report import seeds

    last = results[-1]
    if len(results) == 1:
        common.print_result(format_table(last), **last, prompt=prompt)
        return
    summary = seeds.summary([row["seed"] for row in results], [row["metrics"] for row in results])
    settings = {key: value for key, value in last.items() if key not in ("seed", "metrics")}
    common.print_result(seeds.table(summary), **settings, **summary, prompt=prompt)


def _build_prompt(rows: "Rows", shots: int) -> JsonObject:
    row = rows.rows[0]
    return {
        "text": rows.write_prompt(rows.draw_examples(shots, rows.seed, 0), row),
        "answers": list(row.answers),
        "right": row.right,
        **rows.settings.model_dump(),
    }
