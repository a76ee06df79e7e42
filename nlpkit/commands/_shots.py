"""`nlpkit eval` with --task: the rows of a task are scored without tuning."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlpkit.commands._call import Call, write_rows
from nlpkit.commands._decoding import decoding_settings
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.evaluate.prompts import Rows


def run_task(call: Call) -> None:
    """Score the rows of the task and print the figures."""
    from nlpkit.evaluate import prompts
    from nlpkit.score.named import split

    metrics = split(call.metrics) if call.metrics else None
    overrides = list(call.common.overrides or ())
    if call.option_score is not None:
        overrides.append(f"eval.prompt.option_score={call.option_score}")
    if call.template is not None:
        overrides.append(f"eval.prompt.template={json.dumps(call.template)}")
    rows = prompts.load(str(call.task), overrides, call.data, call.shots)
    if call.show_prompt:
        _show(call, rows)
        return
    if call.predictions is not None and call.seeds > 1:
        raise UsageError("--predictions: of several seeds; give --seeds 1")
    results, found = _figures(call, rows, metrics or rows.metrics)
    if call.predictions is not None:
        write_rows(Path(call.predictions), found)
    _print(call, rows, results)


def _figures(
    call: Call, rows: "Rows", metrics: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the figures of each seed, and the answers with the last one."""
    from nlpkit.cli import exit_now
    from nlpkit.evaluate.shots import Shots
    from nlpkit.runs.opened import open_checkpoint
    from nlpkit.train.held_out import scores
    from nlpkit.train.log import Log
    from nlpkit.train.signals import catch_signals

    log = Log(call.common.verbosity)
    generation = decoding_settings(max_new_tokens=call.max_new_tokens, beam=call.beam or 1)
    results, found = [], []
    with catch_signals(exit_now) as stop:
        opened = open_checkpoint(
            call.checkpoint, device=call.common.device, precision="fp32", family=call.family,
            info=log.info, warn=log.warn,
        )  # fmt: skip
        shots = Shots(opened, rows, call.method, call.tokens_per_batch, generation)

        def progress(done: int, total: int) -> None:
            stop.check()
            log.scoring(done, total, "rows")

        for seed in range(rows.seed, rows.seed + call.seeds):
            shots.cut.clear()
            found = shots.answers(call.shots, seed, progress)
            if shots.cut:
                log.warn("too long: " + ", ".join(f"{n:,} {what}" for what, n in shots.cut.items()))
            how = {"method": "generate"}
            if shots.likelihood is not None:
                kind = rows.settings.option_score
                how = {"method": shots.likelihood.method, "option_score": kind}
            pairs = [(row["prediction"], row["target"]) for row in found]
            figures = {"checkpoint": str(opened.path), "task": rows.name, "shots": call.shots}
            figures |= {"seed": seed, "rows": len(found), **how}
            results.append(figures | {"metrics": scores(metrics, pairs, log.warn)})
    return results, found


def _print(call: Call, rows: "Rows", results: list[dict[str, Any]]) -> None:
    """Print the figures; of several seeds, their mean, median and deviation."""
    from nlpkit.evaluate.held_out import table
    from nlpkit.runs import seeds

    last = results[-1]
    shown = _prompt(rows, call.shots)
    if len(results) == 1:
        call.common.result(table(last), **last, prompt=shown)
        return
    summary = seeds.summary([row["seed"] for row in results], [row["metrics"] for row in results])
    settings = {key: value for key, value in last.items() if key not in ("seed", "metrics")}
    call.common.result(seeds.table(summary), **settings, **summary, prompt=shown)


def _prompt(rows: "Rows", shots: int) -> dict[str, Any]:
    """Return the first row's prompt as it is given to the model, and its answers."""
    row = rows.rows[0]
    return {
        "text": rows.text(rows.examples(shots, rows.seed, 0), row),
        "answers": list(row.answers),
        "right": row.right,
        **rows.settings.model_dump(),
    }


def _show(call: Call, rows: "Rows") -> None:
    """Print the first row's prompt, and its answers, the right one marked."""
    shown = _prompt(rows, call.shots)
    answers = shown["answers"] or [shown["right"]]
    lines = [f"{'*' if each == shown['right'] else ' '} {each!r}" for each in answers]
    call.common.result("\n".join([shown["text"], *lines]), **shown)
