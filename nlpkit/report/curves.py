"""The curves of runs: losses, scores, optimizer, speed and memory over the training steps.

A curve of more than LIMIT points is drawn as the means of BUCKETS equal intervals, with a band of
their smallest and largest values, so that every spike is visible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nlpkit.report.history import History

LIMIT, BUCKETS = 1500, 500
# A gradient norm that varies by more than this is drawn on a logarithmic axis.
_WIDE = 30.0
_MARKERS = 60  # held-out curves with at most this number of points have dots
# Columns of a history with the title and unit of their charts, and what they are multiplied by.
_RECORDED = (
    ("lr", "Learning rate", "per step", 1.0),
    ("grad_norm", "Gradient norm", "before clipping", 1.0),
    ("tokens_per_second", "Speed", "tokens/s", 1.0),
    ("memory_bytes", "Peak memory", "MiB", 2.0**-20),
)


@dataclass(frozen=True)
class Line:
    """A curve: `x`, `y` (P,), and the band `low` to `high` (P,) if it is averaged.

    `number` is the index of the run, which selects the colour; `strong` curves are thick.
    """

    name: str
    number: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    strong: bool = False

    @property
    def has_dots(self) -> bool:
        """Whether its points are marked; a line with a single point would be invisible."""
        count = np.isfinite(self.y).sum()
        return count == 1 or (self.strong and count <= _MARKERS)


@dataclass(frozen=True)
class Chart:
    """Curves over training steps, and horizontal lines (`levels`): `(name, value, number)`."""

    key: str
    title: str
    unit: str
    lines: list[Line]
    levels: list[tuple[str, float, int]] = field(default_factory=list)
    logarithmic: bool = False


def thin_out(name: str, number: int, x: np.ndarray, y: np.ndarray, strong: bool = False) -> Line:
    """Return the curve `x`, `y` (P,), averaged if it has more than LIMIT points."""
    if len(x) <= LIMIT:
        return Line(name, number, x, y, strong=strong)
    starts = np.linspace(0, len(x), BUCKETS + 1).astype(int)[:-1]
    finite = np.isfinite(y)
    counts = np.add.reduceat(finite.astype(float), starts)
    with np.errstate(invalid="ignore"):
        mean = np.add.reduceat(np.where(finite, y, 0.0), starts) / counts
    ends = np.append(starts[1:], len(x)) - 1
    low, high = np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)
    return Line(name, number, x[(starts + ends) // 2], mean, low, high, strong)


def make_charts(histories: Sequence[History]) -> list[Chart]:
    """Return the charts of the runs: losses, scores, optimizer, speed, memory."""
    # A task that does not generate text has a loss per row, not per token.
    unit = " or ".join(sorted({history.loss_unit for history in histories}, reverse=True))
    first: dict[tuple[str, float], int] = {}  # baseline -> the first run that has it
    for number, history in enumerate(histories):
        for baseline in history.baselines.items():
            first.setdefault(baseline, number)
    levels = [(*baseline, number) for baseline, number in first.items()]
    charts = [Chart("loss", "Loss", unit, _make_losses(histories), levels)]
    parts = sorted({name for history in histories for name in history.parts})
    # A single part is equal to the total loss. A part has no unit, since it may be a share, such as
    # that of right answers.
    for part in parts if len(parts) > 1 else ():
        lines = _make_losses(histories, part)
        charts.append(Chart(f"loss.{part}", part, "mean over its targets", lines))
    for name in sorted({name for history in histories for name in history.scores}):
        lines = []
        for number, history in enumerate(histories):
            lines += _make_held_out(history, number, history.label, "metrics", name)
        charts.append(Chart(f"score.{name}", f"Held out: {name}", "score", lines))
    return charts + [_make_recorded(histories, *each) for each in _RECORDED]


def _make_losses(histories: Sequence[History], part: str | None = None) -> list[Line]:
    """Return the training and held-out losses of the runs: of one part, or in total (None)."""
    lines = []
    for number, history in enumerate(histories):
        before = f"{history.label}: " if len(histories) > 1 else ""
        values = history.column("loss") if part is None else history.parts.get(part)
        if values is not None and len(values):
            lines.append(thin_out(f"{before}training", number, history.column("step"), values))
        lines += _make_held_out(history, number, f"{before}held out", "losses", part)
    return lines


def _make_held_out(
    history: History, number: int, name: str, group: str, figure: str | None
) -> list[Line]:
    """Return a figure of the evaluations, if there is one; what is undefined is a gap."""
    found = history.evaluations
    values = [
        each["loss"] if figure is None else each[group].get(figure) for each in found.values()
    ]
    if all(value is None for value in values):
        return []
    return [thin_out(name, number, np.array([*found], float), np.array(values, float), strong=True)]


def _make_recorded(
    histories: Sequence[History], key: str, title: str, unit: str, scale: float
) -> Chart:
    lines = [
        thin_out(history.label, number, history.column("step"), history.column(key) * scale)
        for number, history in enumerate(histories)
        if np.isfinite(history.column(key)).any()
    ]
    values = np.concatenate([np.zeros(0), *[line.y for line in lines]])
    values = values[np.isfinite(values) & (values > 0)]
    is_wide = len(values) > 0 and bool(values.max() > _WIDE * values.min())
    return Chart(key, title, unit, lines, logarithmic=key == "grad_norm" and is_wide)
