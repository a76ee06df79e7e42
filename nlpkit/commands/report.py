"""Write one page about one or several runs: curves, evaluations, recipe, differences."""

import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nlpkit.commands._options import Common, argument, option, shared
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.units import parse_number

if TYPE_CHECKING:
    from nlpkit.train.log import Log

Runs = Annotated[list[str], argument("RUN...", "run directories, or those of --grid or --seeds")]


@dataclass(frozen=True)
class Asked:
    """What is written, and how."""

    output: str | None = option(
        "--output -o FILE",
        "FILE.html, or only the curves as .svg or .png; default: RUN/report.html, or ./report.html "
        "of several runs",
    )
    sort: str | None = option(
        "--sort COLUMN",
        "sort the table of a directory of runs by a figure, such as held_out.loss, or by a "
        "setting; default: what selects the best evaluation",
    )
    csv: bool = option(
        "--csv",
        "print as CSV a row for each step of each run, or the table of a directory of runs, and "
        "write no page",
    )
    push: str | None = option(
        "--push REPO",
        "print the commands that upload the folders of train.save_at in RUN as revisions of REPO, "
        "and write no page; nothing is uploaded",
    )
    rows: str | None = option(
        "--rows FILE",
        "compare also the rows of RUN/FILE, which judge --pairs, eval or shots has written for "
        "each run with --predictions RUN/FILE",
    )


@shared()
def command(runs: Runs, common: Common, asked: Asked) -> None:
    """Write one page about one or several runs: curves, evaluations, recipe, differences.

    The page needs no network. The runs may still be running. Prints the path of the page. The
    setting train.trackers sends the same figures to TensorBoard and others while a run trains.

    Of the directory of a --grid or --seeds run, a table is printed instead: the settings that
    differ, and the figures of the best evaluation of each run. Of several such directories, and of
    runs with several seeds, also the difference of their means to the first one, of the loss and
    each score, with its 95 % interval (Welch) and whether they differ: "differ", "no difference
    seen" or "too few seeds". Only finished runs count there, on the same evaluated text.
    """
    from nlpkit import report
    from nlpkit.report import differences, sweep
    from nlpkit.report.history import list_records

    if asked.csv and (asked.output is not None or common.json or asked.rows is not None):
        raise UsageError(
            "--csv prints to stdout; leave -o, --json and --rows out, and redirect: > FILE.csv"
        )
    if asked.push is not None and (asked.output is not None or asked.csv or asked.rows is not None):
        raise UsageError("--push prints commands alone; leave -o, --csv and --rows out")
    if asked.rows is not None and Path(asked.rows).is_absolute():
        raise UsageError(f"--rows {asked.rows}: is one file for all runs; name it within each run")
    log = common.open_log()
    paths = [Path(run) for run in runs]
    if asked.push is not None:
        uploads = [line for path in paths for line in _list_uploads(path, asked.push, log)]
        common.print_result("\n".join(uploads), push=uploads)
        return
    log.detail(f"reading {', '.join(runs)}")
    folders = [path for path in paths if report.find_runs(path)]
    histories = report.read(paths, may_be_empty=bool(folders))
    table = sweep.make_table(histories, asked.sort)
    if asked.sort is not None and not folders and len(paths) == 1:
        log.warn("--sort: has no effect: it is for a directory of runs")
    if asked.csv:
        columns, rows = (table.columns, table.cells()) if folders else list_records(histories)
        sys.stdout.write(sweep.write_csv(rows, columns))
        return
    sides = differences.find_sides(paths, table, log.info) if len(paths) > 1 else {}
    compared = differences.compare_figures(sides, table, log.info) if sides else []
    if asked.rows is not None:
        if not sides:
            raise UsageError(f"--rows {asked.rows}: name runs of at least two settings")
        compared += differences.compare_rows(sides, asked.rows)
    page = None
    if with_steps := [history for history in histories if history.last_step]:
        output = Path(asked.output) if asked.output is not None else None
        page = str(report.write(paths, output, with_steps))
    lines = [str(each) for each in compared]
    values: JsonObject = {"report": page}
    values |= {"differences": [each.to_json() for each in compared]} if compared else {}
    if folders:
        log.info(f"page: {page}" if page else "no page: no run has made a step")
        text = "\n\n".join([sweep.format_table(table), *(["\n".join(lines)] if lines else [])])
        common.print_result(text, **{**sweep.to_json(table), **values})
    else:
        for line in lines:
            log.info(line)
        common.print_result(page or "", **values)


def _list_uploads(run: Path, repository: str, log: "Log") -> list[str]:
    """Return the commands that upload `chck_1M`, …; `hf upload` makes what is not there."""
    found: list[tuple[int, Path]] = []
    for each in sorted(run.glob("chck_*")):
        number = 0
        with suppress(ValueError):
            number = parse_number(each.name[5:], "words")
        if number and each.is_dir():
            found.append((number, each))
        else:
            log.warn(f"--push: {each} is not uploaded: no folder of train.save_at")
    if not found:
        raise UsageError(f"--push: {run} has no chck_ folder; train.save_at says when to write one")
    return [
        shlex.join(("hf", "upload", repository, str(each), ".", "--revision", each.name))
        for _, each in sorted(found)
    ]
