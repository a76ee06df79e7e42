"""Run an experiment: conditions that differ in what is named, and a verdict."""

from dataclasses import dataclass
from typing import Annotated

from nlpkit.commands._options import Common, Limits, argument, option, shared
from nlpkit.disk import name_path_in_errors, user_path
from nlpkit.units import format_duration

File = Annotated[str, argument("EXPERIMENT", "a file such as experiments/lstm_transformer.yaml")]


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
    from nlpkit.evaluate import experiment_table as table
    from nlpkit.evaluate import suite
    from nlpkit.evaluate.experiment import Experiment

    found, document = suite.read(user_path(file), file, Experiment, common.overrides or [])
    out, log = user_path(common.out or f"runs/{found.name}"), common.open_log()
    folder = found.folder if limits.folder is None else limits.folder
    runner = _runs.Runner(log, limits.max_time, asked.jobs)
    with name_path_in_errors(out):
        runs = _compare.Runs(found, document, out, folder, common)
        failed: dict[str, int] = {}
        if not asked.so_far:
            runs.plan(log)
            left = table.describe(found, table.measure(found, out, runs.state))["seconds_left"]
            log.info(f"about {format_duration(left / asked.jobs)} of training; runs in {out}")
            if common.dry_run:
                return
            runs.write_state()
            failed = runs.train(runner)
        measured = table.measure(found, out, runs.state)
    for name in found.trained:
        paths = [run.path for run in measured[name].histories]
        runner.warn_of_other_data(f"conditions.{name}", paths)
    runner.warn_of_other_bases(h.path for name in found.trained for h in measured[name].histories)
    result = table.describe(found, measured)
    histories = [run for name in found.trained for run in measured[name].histories if run.last_step]
    if histories and not asked.so_far:
        from nlpkit import report

        page = report.write([run.path for run in histories], out / "report.html", histories)
        log.info(f"page: {page}")
    common.print_result(table.format_table(result), **result)
    count = sum(len(found.list_rates(name)) + found.seeds for name in found.trained)
    _runs.raise_failures(failed, max(len(failed), count))
