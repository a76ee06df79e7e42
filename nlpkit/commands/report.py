"""Write one page about one or several runs: curves, evaluations, recipe, differences, hashes."""

from pathlib import Path
from typing import Annotated

import typer

from nlpkit.commands._options import Common, shared

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


@shared("json", "quiet", "verbose")
def command(runs: Runs, common: Common, output: Output = None) -> None:
    """Write one page about one or several runs: curves, evaluations, recipe, differences, hashes.

    The page needs no network. The runs may still be running. Prints the path of the page. The
    setting train.trackers sends the same figures to TensorBoard and others while a run trains.
    """
    from nlpkit import report
    from nlpkit.train.log import Log

    Log(common.verbosity).detail(f"reading {', '.join(runs)}")
    path = report.write([Path(run) for run in runs], Path(output) if output is not None else None)
    common.result(str(path), report=str(path))
