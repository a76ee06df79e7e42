"""Run an experiment: conditions that differ in what is named, and a verdict."""

import os
from dataclasses import dataclass
from typing import Annotated

from nlpkit.commands._options import Common, argument, option, parse_by, shared
from nlpkit.disk import name_path_in_errors, user_path
from nlpkit.errors import RunsFailed, UsageError
from nlpkit.units import format_duration, parse_duration

File = Annotated[str, argument("EXPERIMENT", "a file such as experiments/lstm_transformer.yaml")]


@dataclass(frozen=True)
class Asked:
    """Where the data are, and how much is done now."""

    folder: str | None = option("--folder DIR", "folder of the data; default: folder of EXPERIMENT")
    jobs: int = option("--jobs N", "runs that are trained at a time", default=1, min=1)
    so_far: bool = option("--so-far", "train nothing; print what is known, and how long it takes")
    max_time: float | None = option(
        "--max-time TIME",
        "save and stop after TIME, with exit code 75; the same command goes on",
        parser=parse_by(parse_duration),
    )


@shared("overrides", "out", "device", "dry_run")
def command(file: File, common: Common, asked: Asked) -> None:
    """Run an experiment: conditions that differ in what is named, and a verdict.

    EXPERIMENT names the conditions, what is equal between them, the seeds, and what is expected.
    All is checked and planned before the first run begins. The same command again does what is
    left. Afterwards EXPERIMENT cannot be changed, unless its name changes, too.

    Prints a row for each condition and a verdict for each expectation: reproduced, not reproduced,
    no difference seen, or too few seeds. The curves are in report.html in --out, by default
    runs/NAME. A run that diverges is worse than every other one.
    """
    from nlpkit.commands import _compare, _runs
    from nlpkit.evaluate import experiment
    from nlpkit.evaluate import experiment_table as table

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("compare starts its runs itself; start it without a launcher")
    found, document = experiment.load(file, common.overrides or [])
    out, log = user_path(common.out or f"runs/{found.name}"), common.open_log()
    folder = found.folder if asked.folder is None else asked.folder
    runs = _compare.Runs(found, document, out, folder, common)
    with name_path_in_errors(out):
        runs.read_state()
        failed: dict[str, int] = {}
        if not asked.so_far:
            runs.check()
            runs.plan(log)
            left = table.describe(found, runs.measure())["seconds_left"]
            log.info(f"about {format_duration(left / asked.jobs)} of training; runs in {out}")
            if common.dry_run:
                return
            runs.write_state()
            if asked.jobs > 1:
                threads = max(1, (os.cpu_count() or 1) // asked.jobs)
                os.environ.setdefault("OMP_NUM_THREADS", str(threads))
            failed = runs.train(_runs.Runner(log, asked.max_time, asked.jobs))
        measured = runs.measure()
    result = table.describe(found, measured)
    trained = dict.fromkeys(found.find_trained(name) for name in found.conditions)
    histories = [run for name in trained for run in measured[name].histories if run.last_step]
    if histories and not asked.so_far:
        from nlpkit import report

        page = report.write([run.path for run in histories], out / "report.html", histories)
        log.info(f"page: {page}")
    common.print_result(table.format_table(result), **result)
    if failed:
        raise RunsFailed(_runs.describe_failures(failed, len(failed)), failed.values())
