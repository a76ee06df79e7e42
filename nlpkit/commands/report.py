"""Write one page about one or several runs: curves, evaluations, recipe, differences."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nlpkit.commands._options import Common, argument, option, shared
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from nlpkit.report.sweep import Row, Table
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


@shared()
def command(runs: Runs, common: Common, asked: Asked) -> None:
    """Write one page about one or several runs: curves, evaluations, recipe, differences.

    The page needs no network. The runs may still be running. Prints the path of the page. The
    setting train.trackers sends the same figures to TensorBoard and others while a run trains.

    Of the directory of a --grid or --seeds run, a table is printed instead: the settings that
    differ, and the figures of the best evaluation of each run. Of several such directories, and of
    runs with several seeds, also the difference of their means, with its 95 % interval (Welch), to
    the first one: "no difference" where the interval holds 0. Only finished runs count there.
    """
    from nlpkit import report
    from nlpkit.report import sweep
    from nlpkit.report.history import list_records

    if asked.csv and (asked.output is not None or common.json):
        raise UsageError(
            "--csv prints to stdout; leave -o and --json out, and redirect: > FILE.csv"
        )
    log = common.open_log()
    log.detail(f"reading {', '.join(runs)}")
    paths = [Path(run) for run in runs]
    folders = [path for path in paths if report.find_runs(path)]
    histories = report.read(paths, may_be_empty=bool(folders))
    table = sweep.make_table(histories, asked.sort)
    if asked.csv:
        columns, rows = (table.columns, table.cells()) if folders else list_records(histories)
        sys.stdout.write(sweep.write_csv(rows, columns))
        return
    page = None
    if with_steps := [history for history in histories if history.last_step]:
        output = Path(asked.output) if asked.output is not None else None
        page = str(report.write(paths, output, with_steps))
    values: JsonObject = {"report": page}
    compared = _compare(paths, folders, table, log)
    lines = [_describe(each) for each in compared]
    values |= {"differences": compared} if compared else {}
    if folders:
        log.info(f"page: {page}" if page else "no page: no run has made a step")
        text = "\n\n".join([sweep.format_table(table), *(["\n".join(lines)] if lines else [])])
        common.print_result(text, **{**sweep.to_json(table), **values})
    else:
        for line in lines:
            log.info(line)
        common.print_result(page or "", **values)


def _compare(
    paths: Sequence[Path], folders: Sequence[Path], table: "Table", log: "Log"
) -> list[JsonObject]:
    """Return the differences of the figure of the table between directories, or between settings.

    Directories are compared if each holds runs that differ in the seed alone; runs that are named
    one by one are taken together where they do.
    """
    from nlpkit.report import find_runs, sweep

    if len(paths) < 2 or table.sort not in table.figures:
        return []
    sides: dict[str, list[Row]] = {}
    if folders:
        for path in paths:
            inside = {str(run) for run in (find_runs(path) or [path])}
            sides[str(path)] = [row for row in table.rows if row.path in inside]
        mixed = [name for name, rows in sides.items() if len({row.group for row in rows}) > 1]
        if mixed:
            log.info(f"{mixed[0]} holds runs of several settings: no difference is computed; name "
                     "directories of one setting each")  # fmt: skip
            return []
    else:
        of_path = {row.path: row for row in table.rows}
        for row in [of_path[str(path)] for path in dict.fromkeys(paths)]:
            sides.setdefault(row.group, []).append(row)
        sides = {rows[0].run: rows for rows in sides.values()}
    if len(sides) < 2:
        return []
    left_out = sum(row.state != "finished" for rows in sides.values() for row in rows)
    if left_out:
        log.info(f"{left_out} not finished, so not compared")
    return _to_json(sides, sweep.compare(sides, table.sort), table.sort)


def _to_json(
    sides: Mapping[str, Sequence["Row"]], found: JsonMapping, figure: str
) -> list[JsonObject]:
    first = next(iter(sides))
    return [
        {
            "figure": figure,
            "first": first,
            "other": name,
            "means": each.means,
            "seeds": each.counts,
            "difference": each.difference,
            "interval": None if each.low is None else [each.low, each.high],
            "level": 0.95,
            "p": each.p,
            "verdict": each.verdict,
        }
        for name, each in found.items()
    ]


def _describe(found: JsonMapping) -> str:
    (one, other), (few, more) = found["means"], found["seeds"]
    head = (
        f"{found['figure']}: {found['first']} {one:.4f} ({few} seeds), "
        f"{found['other']} {other:.4f} ({more} seeds): difference {found['difference']:+.4f}"
    )
    head = head.replace("(1 seeds)", "(1 seed)")
    if found["interval"] is None:
        return f"{head}; one seed cannot tell: train both with --seeds 3 or more"
    low, high = found["interval"]
    verdict = "no difference" if found["verdict"] == "no difference" else "they differ"
    return (
        f"{head}, 95 % interval {low:+.4f} to {high:+.4f} (Welch, p = {found['p']:.2g}): {verdict}"
    )
