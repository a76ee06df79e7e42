"""Run an experiment: conditions that differ in what is named, and a verdict."""

import math
from dataclasses import dataclass
from typing import Annotated

from nlpkit.commands._options import Common, argument, option, parse_by, shared
from nlpkit.disk import name_path_in_errors, user_path
from nlpkit.units import format_duration, parse_duration

File = Annotated[str, argument("EXPERIMENT", "a file such as experiments/lstm_transformer.yaml")]


@dataclass(frozen=True)
class Limits:
    """Where the data are, and how much is done now: also in `suite`."""

    folder: str | None = option("--folder DIR", "folder of the data; default: that of the file")
    max_time: float | None = option(
        "--max-time TIME",
        "save and stop after TIME, with exit code 75; the same command goes on",
        parser=parse_by(parse_duration),
    )


@dataclass(frozen=True)
class Asked:
    """How much is done at a time, if anything."""

    jobs: int = option("--jobs N", "runs that are trained at a time", default=1, min=1)
    so_far: bool = option("--so-far", "train nothing; print what is known, and how long it takes")


@shared("overrides", "out", "device", "dry_run")
def command(file: File, common: Common, limits: Limits, asked: Asked) -> None:
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

    found, document = experiment.load(file, common.overrides or [])
    out, log = user_path(common.out or f"runs/{found.name}"), common.open_log()
    folder = found.folder if limits.folder is None else limits.folder
    runner = _runs.Runner(log, limits.max_time, asked.jobs)
    runs = _compare.Runs(found, document, out, folder, common)
    with name_path_in_errors(out):
        runs.read_state()
        failed: dict[str, int] = {}
        if not asked.so_far:
            runs.check()
            least = 1 / math.comb(2 * found.seeds, found.seeds)  # p that this many can reach
            if least > found.rule.level and any(each.better for each in found.expect):
                log.warn(f"seeds: {found.seeds}: too few for a verdict on what is better")
            runs.plan(log)
            left = table.describe(found, table.measure(found, out, runs.state))["seconds_left"]
            log.info(f"about {format_duration(left / asked.jobs)} of training; runs in {out}")
            if common.dry_run:
                return
            runs.write_state()
            failed = runs.train(runner)
        measured = table.measure(found, out, runs.state)
    result = table.describe(found, measured)
    trained = dict.fromkeys(found.find_trained(name) for name in found.conditions)
    histories = [run for name in trained for run in measured[name].histories if run.last_step]
    if histories and not asked.so_far:
        from nlpkit import report

        page = report.write([run.path for run in histories], out / "report.html", histories)
        log.info(f"page: {page}")
    common.print_result(table.format_table(result), **result)
    _runs.raise_failures(failed, len(failed))
