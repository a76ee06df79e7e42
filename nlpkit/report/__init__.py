"""Reports on one or several runs: a self-contained HTML file, or only the charts as SVG or PNG.

The same runs give the same bytes: the file contains no date.
"""

from collections.abc import Sequence
from pathlib import Path

from nlpkit.checkpoints.run_directory import RECIPE, runs_inside, seed_runs
from nlpkit.disk import whole_file
from nlpkit.errors import FileError, UsageError
from nlpkit.report import page, svg
from nlpkit.report.curves import make_charts
from nlpkit.report.figures import draw_curves
from nlpkit.report.history import History
from nlpkit.report.history import read as read_history

ENDINGS = (".html", ".svg", ".png")


def read(runs: Sequence[Path], *, may_be_empty: bool = False) -> list[History]:
    """Return the histories of runs, each once; a folder of runs stands for those inside.

    Raises:
        FileError: a directory is neither, or is damaged; or a run has no step yet, which is left
            out inside of a folder, or with `may_be_empty` returned, too.
    """
    inside = {run: find_runs(run) for run in runs}
    paths = [*{path.resolve(): path for run in runs for path in inside[run] or [run]}.values()]
    labels = _label_runs(paths)
    if len(runs) == 1 and inside[runs[0]]:
        labels = [svg.replace_unprintable(str(path.relative_to(runs[0]))) for path in paths]
    found = [
        read_history(path, label, may_be_empty=may_be_empty or path not in runs)
        for path, label in zip(paths, labels, strict=True)
    ]
    found = [history for history in found if may_be_empty or history.last_step]
    if not found:
        raise FileError(f"{runs[0]}: nothing to report yet: no run in it has made a step")
    return found


def find_runs(path: Path) -> list[Path]:
    """Return the runs in a folder of a grid or of seeds; none of what is a run itself."""
    if seeds := seed_runs(path):
        return [run for _, run in seeds]
    return [] if (path / RECIPE).is_file() else runs_inside(path)


def write(
    runs: Sequence[Path], out: Path | None = None, histories: Sequence[History] | None = None
) -> Path:
    """Write the report on the run directories `runs`; return its path.

    Without `out` it is `RUN/report.html`, or `report.html` here if there are several runs.
    `histories` are those of the runs, if they were read before.

    Raises:
        FileError: a directory is not a run, has no step yet or is damaged; `out` is unwritable.
        UsageError: the ending of `out` is not in ENDINGS.
        Unsupported: `out` is a picture and matplotlib is not installed.
    """
    if out is None:
        out = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    ending = out.suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(f"{out}: a report ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    histories = read(runs) if histories is None else histories
    charts = make_charts(histories)
    if ending == ".html":
        with whole_file(out) as file:
            file.write(svg.replace_unprintable(page.render(histories, charts)))
    else:
        draw_curves(charts, [h.label for h in histories], page.make_heading(histories), out)
    return out


def _label_runs(runs: Sequence[Path]) -> list[str]:
    """Return unique names of the runs: the name of the directory, or else the path."""
    names = [run.resolve().name for run in runs]
    names = [n if names.count(n) == 1 else str(run) for n, run in zip(names, runs, strict=True)]
    names = [svg.replace_unprintable(name) for name in names]
    counts = [names[:number].count(name) + 1 for number, name in enumerate(names)]
    return [f"{n} ({c})" if c > 1 else n for n, c in zip(names, counts, strict=True)]
