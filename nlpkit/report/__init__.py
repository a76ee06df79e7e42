"""Reports on one or several runs: a self-contained HTML file, or only the charts as SVG or PNG.

The same runs give the same bytes: the file contains no date.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nlpkit.checkpoints.run_directory import RECIPE, runs_inside, seed_runs
from nlpkit.disk import name_path_in_errors
from nlpkit.errors import FileError, UsageError
from nlpkit.report import page, svg
from nlpkit.report.history import History
from nlpkit.report.history import read as read_history
from nlpkit.report.svg import Chart, Line, thin

ENDINGS = (".html", ".svg", ".png")
_MIB = 2**20
# A gradient norm that varies by more than this is drawn on a logarithmic axis.
_WIDE = 30.0
# Characters that XML does not allow, and surrogates, which UTF-8 cannot encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def read(runs: Sequence[Path], *, may_be_empty: bool = False) -> list[History]:
    """Return the histories of runs; a folder of runs stands for those inside.

    Raises:
        FileError: a directory is neither, or is damaged; or a run has no step yet, which is left
            out inside of a folder, or with `may_be_empty` returned, too.
    """
    found = []
    inside = {run: of_folder(run) for run in runs}
    paths = [path for run in runs for path in (inside[run] or [run])]
    labels = _labels(paths)
    if len(runs) == 1 and inside[runs[0]]:
        labels = [_UNPRINTABLE.sub("\ufffd", str(path.relative_to(runs[0]))) for path in paths]
    for path, label in zip(paths, labels, strict=True):
        history = read_history(path, label, may_be_empty=may_be_empty or path not in runs)
        if may_be_empty or history.last_step:
            found.append(history)
    if not found:
        raise FileError(f"{runs[0]}: nothing to report yet: no run in it has made a step")
    return found


def of_folder(path: Path) -> list[Path]:
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
        Unsupported: `out` is a PNG and matplotlib is not installed.
    """
    if out is None:
        out = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    ending = out.suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(f"{out}: a report ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    histories = read(runs) if histories is None else histories
    charts = make_charts(histories)
    labels = [history.label for history in histories]
    if ending == ".html":
        _write(out, page.render(histories, charts))
    elif ending == ".svg":
        _write(out, svg.sheet(charts, labels, page.heading(histories)))
    else:
        from nlpkit.report.figures import charts_figure

        charts_figure(charts, labels, page.heading(histories), out)
    return out


def _labels(runs: Sequence[Path]) -> list[str]:
    """Return unique names of the runs: the name of the directory, or else the path."""
    names = [run.resolve().name for run in runs]
    names = [n if names.count(n) == 1 else str(run) for n, run in zip(names, runs, strict=True)]
    names = [_UNPRINTABLE.sub("\ufffd", name) for name in names]
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        seen[name] += 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def _write(out: Path, text: str) -> None:
    """Write the file atomically."""
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    with name_path_in_errors(out):
        try:
            draft.write_text(_UNPRINTABLE.sub("\ufffd", text), encoding="utf-8")
            draft.replace(out)
        finally:
            draft.unlink(missing_ok=True)


def make_charts(histories: Sequence[History]) -> list[Chart]:
    """Return the charts of the runs: losses, scores, optimizer, speed, memory."""
    several = len(histories) > 1
    unit = _loss_unit(histories)
    # A single part is equal to the total loss.
    parts = sorted({name for history in histories for name in history.parts})
    charts = [
        Chart(
            "loss",
            "Loss",
            unit,
            [
                line
                for n, history in enumerate(histories)
                for line in _losses(history, n, None, several)
            ],
            levels=_entropies(histories),
        )
    ]
    charts += [
        Chart(
            f"loss.{part}",
            _UNPRINTABLE.sub("\ufffd", part),
            "mean over its targets",  # a part may be a share, such as that of right answers
            [
                line
                for n, history in enumerate(histories)
                for line in _losses(history, n, part, several)
            ],
        )
        for part in (parts if len(parts) > 1 else ())
    ]
    charts += [
        Chart(
            f"score.{name}",
            _UNPRINTABLE.sub("\ufffd", f"Held out: {name}"),
            "score",
            [line for n, history in enumerate(histories) for line in _scores(history, n, name)],
        )
        for name in sorted({name for history in histories for name in history.scores})
    ]
    charts += [
        _chart(histories, "lr", "Learning rate", "per step"),
        _chart(histories, "grad_norm", "Gradient norm", "before clipping"),
        _chart(histories, "tokens_per_second", "Speed", "tokens/s"),
        _chart(histories, "memory_bytes", "Peak memory", "MiB", scale=1 / _MIB),
    ]
    return charts


def _losses(history: History, number: int, part: str | None, several: bool) -> list[Line]:
    """Return the training and held-out losses of a run: of one part, or in total (None)."""
    before = f"{history.label}: " if several else ""
    steps = history.columns["step"]
    values = history.columns["loss"] if part is None else history.parts.get(part)
    lines = []
    if values is not None and len(steps):
        lines.append(thin(f"{before}training", number, steps, values))
    held_out = {
        step: figures["loss"] if part is None else (figures.get("losses") or {}).get(part)
        for step, figures in history.evaluations.items()
    }
    if any(value is not None for value in held_out.values()):
        at = np.array(list(held_out), dtype=np.float64)
        values = np.array(list(held_out.values()), dtype=np.float64)
        lines.append(thin(f"{before}held out", number, at, values, strong=True))
    return lines


def _scores(history: History, number: int, name: str) -> list[Line]:
    """Return the held-out score `name` of a run; undefined ones are gaps."""
    values_by_step = {
        step: f.get("metrics", {}).get(name) for step, f in history.evaluations.items()
    }
    if all(value is None for value in values_by_step.values()):
        return []
    at, values = (
        np.array(list(x), dtype=np.float64) for x in (values_by_step, values_by_step.values())
    )
    return [thin(history.label, number, at, values, strong=True)]


def _loss_unit(histories: Sequence[History]) -> str:
    """Return the unit of the loss: per token, or per row for tasks that do not generate text."""
    units = {history.loss_unit for history in histories}
    return " or ".join(sorted(units, reverse=True))


def _entropies(histories: Sequence[History]) -> list[tuple[str, float, int]]:
    """Return the unigram entropy of the held-out text of each run, without duplicates."""
    run_of_entropy: dict[float, int] = {}
    for number, history in enumerate(histories):
        entropy: Any = history.status.get("held_out_unigram_entropy")
        if isinstance(entropy, int | float) and not isinstance(entropy, bool):
            run_of_entropy.setdefault(float(entropy), number)
    return [("unigram entropy", entropy, number) for entropy, number in run_of_entropy.items()]


def _chart(
    histories: Sequence[History], key: str, title: str, unit: str, *, scale: float = 1.0
) -> Chart:
    lines = [
        thin(history.label, number, history.columns["step"], history.columns[key] * scale)
        for number, history in enumerate(histories)
        if np.isfinite(history.columns[key]).any()
    ]
    wide = False
    if key == "grad_norm":
        values = np.concatenate([np.zeros(0), *[line.y for line in lines]])
        values = values[np.isfinite(values) & (values > 0)]
        wide = bool(len(values)) and float(values.max()) > _WIDE * float(values.min())
    return Chart(key, title, unit, lines, logarithmic=wide)
