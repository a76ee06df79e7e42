"""Write one page about one or several runs: curves, evaluations, recipe, differences, hashes."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nlpkit.commands._options import Common, shared
from nlpkit.errors import UsageError

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="run directories, or the directory of a --seeds run"),
]
Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="FILE.html, or only the curves as .svg or .png; default: RUN/report.html, or "
        "./report.html of several runs",
    ),
]
Csv = Annotated[
    bool,
    typer.Option("--csv", help="print a row for each step of each run as CSV, and write no page"),
]


@shared("json", "quiet", "verbose")
def command(runs: Runs, common: Common, output: Output = None, csv: Csv = False) -> None:
    """Write one page about one or several runs: curves, evaluations, recipe, differences, hashes.

    The page needs no network. The runs may still be running. Prints the path of the page. The
    setting train.trackers sends the same figures to TensorBoard and others while a run trains.
    """
    from nlpkit import report
    from nlpkit.train.log import Log

    if csv and (output is not None or common.json):
        raise UsageError(
            "--csv prints to stdout; leave -o and --json out, and redirect: > FILE.csv"
        )
    Log(common.verbosity).detail(f"reading {', '.join(runs)}")
    if csv:
        from nlpkit.report.records import as_csv

        sys.stdout.write(as_csv(report.read_histories([Path(run) for run in runs])))
        return
    path = report.write([Path(run) for run in runs], Path(output) if output is not None else None)
    common.result(str(path), report=str(path))
