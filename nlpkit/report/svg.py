"""Line charts as SVG for the page, for light and dark mode; no JavaScript is needed."""

import math
import re
from collections.abc import Callable, Iterator
from html import escape

import numpy as np

from nlpkit.report.curves import Chart, Line

WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 460, 12, 226  # of the plotted field

# (light, dark): contrast of at least 3:1 to the page (WCAG 2.1, 1.4.11), safe for colour-blind
# readers.
PALETTE = (
    ("#1a5fb4", "#78b5ff"), ("#b8480a", "#ff9f5a"), ("#0b7a55", "#5cd6a3"), ("#a0307f", "#f08fd0"),
    ("#76620a", "#e0c34a"), ("#0e7490", "#5fd3e8"), ("#b3213c", "#ff8a95"), ("#5b4bd6", "#b0a8ff"),
)  # fmt: skip
# Characters that XML does not allow, and surrogates, which UTF-8 cannot encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
DASHES = ("none", "7 3", "2 3", "9 3 2 3")  # for runs 1-8, 9-16, 17-24 and 25-32


def replace_unprintable(text: str) -> str:
    """Return the text with a mark in place of each character that no page can show."""
    return _UNPRINTABLE.sub("\ufffd", text)


def make_style(dark: bool) -> str:
    """Return the CSS rules of the colours and dashes of the runs."""
    rules = [
        f".s{number}{{stroke:{colours[dark]}}}.f{number}{{fill:{colours[dark]}}}"
        for number, colours in enumerate(PALETTE)
    ]
    rules += [f".d{number}{{stroke-dasharray:{dash}}}" for number, dash in enumerate(DASHES)]
    return "\n".join(rules)


def get_classes(number: int) -> str:
    """Return the classes that give run `number` its colour and dashes."""
    return f"s{number % len(PALETTE)} d{number // len(PALETTE) % len(DASHES)}"


def find_limits(chart: Chart) -> tuple[float, float, float, float]:
    """Return x0, x1, y0, y1: the limits of the axes."""
    xs = np.concatenate([np.zeros(0), *[line.x for line in chart.lines]])
    ys = [a for line in chart.lines for a in (line.y, line.low, line.high) if a is not None]
    y = np.concatenate([np.zeros(0), *ys, [value for _, value, _ in chart.levels]])
    y = y[np.isfinite(y)]
    if chart.logarithmic:
        y = y[y > 0]
    x0, x1 = (float(xs.min()), float(xs.max())) if len(xs) else (0.0, 1.0)
    y0, y1 = (float(y.min()), float(y.max())) if len(y) else (0.0, 1.0)
    if x0 == x1:
        x0, x1 = x0 - 1, x1 + 1
    if chart.logarithmic:
        return x0, x1, y0 / 1.15, y1 * 1.15
    margin = 0.04 * (y1 - y0)
    if y1 - y0 <= 1e-9 * abs(y1):  # a constant, except for rounding
        return x0, x1, min(0.0, 1.5 * y0), max(0.0, 1.5 * y1) or 1.0
    return x0, x1, (0.0 if 0 <= y0 < 0.25 * y1 else y0 - margin), y1 + margin


def choose_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between `low` and `high`."""
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * 0.7)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def choose_powers(low: float, high: float) -> list[float]:
    """Return at most 7 round numbers between `low` and `high` for a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [m * 10.0**d for d in decades for m in factors if low <= m * 10.0**d <= high]
        if len(values) <= 7:
            break
    values = values[:: math.ceil(len(values) / 7) or 1]
    return [float(f"{value:.12g}") for value in values]


def shorten(values: list[float]) -> list[str]:
    """Return labels of an axis, in one unit: `0`, `10k`, `20k`; `1e-3`, `1.5e-3`."""
    largest = max(map(abs, values), default=0.0)
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= max(size, 1e4):
            return [f"{value / size:.6g}{letter}" if value else "0" for value in values]
    if 0 < largest < 0.01:
        power = math.floor(math.log10(largest))
        return [f"{value / 10.0**power:.6g}e{power}" if value else "0" for value in values]
    return [f"{value:.6g}" for value in values]


def draw(chart: Chart) -> str:
    """Return the chart as an `<svg>` element: axes, levels, curves, and a title that sums it up."""
    x0, x1, y0, y1 = find_limits(chart)
    bottom, top = (math.log(y0), math.log(y1)) if chart.logarithmic else (y0, y1)

    def place(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the pixels (P, 2) of points; NaN where a logarithm is not defined."""
        with np.errstate(all="ignore"):
            y = np.log(np.where(y > 0, y, np.nan)) if chart.logarithmic else y
        across = LEFT + (x - x0) / (x1 - x0) * (RIGHT - LEFT)
        up = BOTTOM - (y - bottom) / (top - bottom) * (BOTTOM - TOP)
        return np.stack(np.broadcast_arrays(across, up), 1)

    rows = choose_powers(y0, y1) if chart.logarithmic else choose_ticks(y0, y1, 6)
    texts = [f"{value:g}" for value in rows] if chart.logarithmic else shorten(rows)
    pieces = []
    for (_, y), text in zip(place(np.array([x0]), np.array(rows)), texts, strict=True):
        pieces.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        pieces.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    steps = [value for value in choose_ticks(x0, x1, 5) if value == int(value)]
    for (x, _), text in zip(place(np.array(steps), np.array([y0])), shorten(steps), strict=True):
        pieces.append(f'<path class="grid" d="M{x:.1f} {TOP}V{BOTTOM}"/>')
        pieces.append(f'<text x="{x:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{text}</text>')
    pieces.append(f'<path class="frame" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>')
    pieces.append(f'<text x="{RIGHT}" y="{HEIGHT - 4}" text-anchor="end">step</text>')
    for _, value, number in chart.levels:
        path = _write_path(place(np.array([x0, x1]), np.array([value])))
        pieces.append(f'<path class="level {get_classes(number)}" d="{path}"/>')
    for line in chart.lines:
        pieces += _draw_curve(line, place)
    title = f"{chart.title}, {chart.unit}, by training step: {_summarize(chart)}"
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'data-key="{escape(chart.key)}" data-x0="{x0:g}" data-x1="{x1:g}">'
        f"<title>{escape(title)}</title>{''.join(pieces)}"
        f'<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{BOTTOM}"/></svg>'
    )


def _draw_curve(line: Line, place: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Iterator[str]:
    fill = f"f{line.number % len(PALETTE)}"
    if line.low is not None and line.high is not None:
        low, high = place(line.x, line.low), place(line.x, line.high)
        finite = np.isfinite(low[:, 1] + high[:, 1])
        around = np.concatenate([high[finite], low[finite][::-1]])
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in around)
        yield f'<polygon class="band {fill}" points="{points}"/>'
    curve = place(line.x, line.y)
    look = f"{'strong' if line.strong else 'thin'} {get_classes(line.number)}"
    yield f'<path class="{look}" d="{_write_path(curve)}"/>'
    for x, y in curve[np.isfinite(curve[:, 1])] if line.has_dots else ():
        yield f'<circle class="{fill}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _write_path(points: np.ndarray) -> str:
    """Return the path through the points, with a gap if a value is missing."""
    parts, is_drawing = [], False
    finite = np.isfinite(points[:, 1]).tolist()
    for (x, y), is_finite in zip(points.tolist(), finite, strict=True):
        if is_finite:
            parts.append(f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}")
        is_drawing = is_finite
    return "".join(parts)


def _summarize(chart: Chart) -> str:
    """Return each curve's first and last value as text, for screen readers."""
    texts = []
    for line in chart.lines:
        y = line.y[np.isfinite(line.y)]
        if len(y):
            texts.append(f"{line.name} from {y[0]:.4g} to {y[-1]:.4g}")
    return "; ".join(texts + [f"{name} {value:.4g}" for name, value, _ in chart.levels])
