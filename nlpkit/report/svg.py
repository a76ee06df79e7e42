"""Line charts as SVG, for light and dark mode; no JavaScript is needed.

A curve of more than LIMIT points is drawn as the means of BUCKETS equal intervals, with a band of
their smallest and largest values, so that every spike is visible.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

LIMIT, BUCKETS = 1500, 500
WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 460, 12, 226  # of the plotted field
MARKERS = 60  # held-out curves with at most this number of points have dots

# (light, dark): contrast of at least 3:1 to the page (WCAG 2.1, 1.4.11), safe for colour-blind
# readers.
PALETTE = (
    ("#1a5fb4", "#78b5ff"), ("#b8480a", "#ff9f5a"), ("#0b7a55", "#5cd6a3"), ("#a0307f", "#f08fd0"),
    ("#76620a", "#e0c34a"), ("#0e7490", "#5fd3e8"), ("#b3213c", "#ff8a95"), ("#5b4bd6", "#b0a8ff"),
)  # fmt: skip
DASHES = ("none", "7 3", "2 3", "9 3 2 3")  # for runs 1-8, 9-16, 17-24 and 25-32


@dataclass(frozen=True)
class Line:
    """A curve: `x`, `y` (P,), and the band `low` to `high` (P,) if it is averaged.

    `number` is the index of the run, which selects the colour; `strong` curves are thick with dots.
    """

    name: str
    number: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    strong: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over training steps, and horizontal lines (`levels`): `(name, value, number)`."""

    key: str
    title: str
    unit: str
    lines: list[Line]
    levels: list[tuple[str, float, int]] = field(default_factory=list)
    logarithmic: bool = False


def thin(name: str, number: int, x: np.ndarray, y: np.ndarray, strong: bool = False) -> Line:
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


def style(dark: bool) -> str:
    """Return the CSS rules of the charts' colours."""
    text, grid, page = ("#e6e8eb", "#3a3f47", "#15181c") if dark else ("#1c2024", "#d9dde2", "#fff")
    rules = [
        f".chart text{{fill:{text};font:12px system-ui,sans-serif}}.chart .grid{{stroke:{grid}}}",
        f".chart .frame{{stroke:{text};fill:none}}.chart .cursor{{stroke:{text}}}",
        f".paper{{fill:{page}}}",
    ]
    for number, colours in enumerate(PALETTE):
        colour = colours[dark]
        rules.append(f".s{number}{{stroke:{colour}}}.f{number}{{fill:{colour}}}")
    return "\n".join(rules)


SHAPES = """
.chart path{fill:none;stroke-linejoin:round}
.chart .thin{stroke-width:1.3;opacity:.65}
.chart .strong{stroke-width:2.4}
.chart .level{stroke-width:1.2;stroke-dasharray:2 4}
.chart .band{opacity:.2;stroke:none}
.chart .cursor{display:none}
""" + "".join(f".d{n}{{stroke-dasharray:{dash}}}\n" for n, dash in enumerate(DASHES) if n)


def classes(number: int) -> str:
    """Return the classes that give run `number` its colour and dashes."""
    return f"s{number % len(PALETTE)} d{number // len(PALETTE) % len(DASHES)}"


def span(chart: Chart) -> tuple[float, float, float, float]:
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


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between `low` and `high`."""
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * 0.7)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def powers(low: float, high: float) -> list[float]:
    """Return at most 7 round numbers between `low` and `high` for a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [m * 10.0**d for d in decades for m in factors if low <= m * 10.0**d <= high]
        if len(values) <= 7:
            break
    values = values[:: math.ceil(len(values) / 7) or 1]
    return [float(f"{value:.12g}") for value in values]


def short(values: list[float]) -> list[str]:
    """Return labels of an axis, in one unit: `0`, `10k`, `20k`; `1e-3`, `1.5e-3`."""
    largest = max(map(abs, values), default=0.0)
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= max(size, 1e4):
            return [f"{value / size:.6g}{letter}" if value else "0" for value in values]
    if 0 < largest < 0.01:
        power = math.floor(math.log10(largest))
        return [f"{value / 10.0**power:.6g}e{power}" if value else "0" for value in values]
    return [f"{value:.6g}" for value in values]


def draw(chart: Chart, extra: str = "") -> str:
    """Return the chart as an `<svg>` element with a title, with `extra` attributes."""
    x0, x1, y0, y1 = span(chart)
    bottom, top = (math.log(y0), math.log(y1)) if chart.logarithmic else (y0, y1)

    def across(x: Any) -> Any:
        return LEFT + (x - x0) / (x1 - x0) * (RIGHT - LEFT)

    def up(y: Any) -> Any:
        with np.errstate(all="ignore"):
            y = np.log(np.where(y > 0, y, np.nan)) if chart.logarithmic else y
        return BOTTOM - (y - bottom) / (top - bottom) * (BOTTOM - TOP)

    pieces = []
    rows = powers(y0, y1) if chart.logarithmic else ticks(y0, y1, 6)
    texts = [f"{value:g}" for value in rows] if chart.logarithmic else short(rows)
    for value, text in zip(rows, texts, strict=True):
        h = float(up(np.float64(value)))
        pieces.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{h:.1f}" y2="{h:.1f}"/>')
        pieces.append(f'<text x="{LEFT - 6}" y="{h + 4:.1f}" text-anchor="end">{text}</text>')
    steps = [value for value in ticks(x0, x1, 5) if value == int(value)]  # steps are integers
    for value, text in zip(steps, short(steps), strict=True):
        w = float(across(np.float64(value)))
        pieces.append(f'<line class="grid" x1="{w:.1f}" x2="{w:.1f}" y1="{TOP}" y2="{BOTTOM}"/>')
        pieces.append(f'<text x="{w:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{text}</text>')
    pieces.append(f'<path class="frame" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>')
    pieces.append(f'<text x="{RIGHT}" y="{HEIGHT - 4}" text-anchor="end">step</text>')
    for _, value, number in chart.levels:
        h = float(up(np.float64(value)))
        pieces.append(
            f'<path class="level {classes(number).split()[0]}" d="M{LEFT} {h:.1f}H{RIGHT}"/>'
        )
    for line in chart.lines:
        pieces += _curve(line, across(line.x), up)
    pieces.append(f'<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{BOTTOM}"/>')
    title = escape(f"{chart.title}, {chart.unit}, by training step: {_summary(chart)}")
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}"{extra}>'
        f"<title>{title}</title>{''.join(pieces)}</svg>"
    )


def _summary(chart: Chart) -> str:
    """Return each curve's first and last value as text, for screen readers."""
    texts = []
    for line in chart.lines:
        y = line.y[np.isfinite(line.y)]
        if len(y):
            texts.append(f"{line.name} from {y[0]:.4g} to {y[-1]:.4g}")
    return "; ".join(texts + [f"{name} {value:.4g}" for name, value, _ in chart.levels])


def _curve(line: Line, x: np.ndarray, up: Callable[[Any], Any]) -> list[str]:
    pieces, y = [], up(line.y)
    fill = f"f{line.number % len(PALETTE)}"
    if line.low is not None and line.high is not None:
        low, high = up(line.low), up(line.high)
        finite = np.isfinite(low) & np.isfinite(high)
        outline = [*zip(x[finite], high[finite], strict=True)]
        outline += [*zip(x[finite], low[finite], strict=True)][::-1]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in outline)
        pieces.append(f'<polygon class="band {fill}" points="{points}"/>')
    kind = f"{'strong' if line.strong else 'thin'} {classes(line.number)}"
    pieces.append(f'<path class="{kind}" d="{_path(x, y)}"/>')
    finite = np.isfinite(y)
    # A line with a single point would be invisible.
    if finite.sum() == 1 or (line.strong and finite.sum() <= MARKERS):
        pieces += [
            f'<circle class="{fill}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>'
            for a, b in zip(x[finite], y[finite], strict=True)
        ]
    return pieces


def _path(x: np.ndarray, y: np.ndarray) -> str:
    """Return the path through the points, with a gap if a value is missing."""
    parts, drawing = [], False
    for a, b, finite in zip(x.tolist(), y.tolist(), np.isfinite(y).tolist(), strict=True):
        if finite:
            parts.append(f"{'L' if drawing else 'M'}{a:.1f} {b:.1f}")
        drawing = finite
    return "".join(parts)


def sheet(charts: list[Chart], labels: list[str], heading: str) -> str:
    """Return all charts and a legend as one SVG file, two in a row."""
    rows = math.ceil(len(charts) / 2)
    head = 46 + 20 * len(labels)
    width, height = 2 * (WIDTH + 20) + 20, head + rows * (HEIGHT + 40) + 10
    pieces = [f'<rect class="paper" width="{width}" height="{height}"/>']
    pieces.append(f'<g class="chart"><text x="20" y="28" style="font-size:18px">{escape(heading)}')
    pieces.append('<tspan dx="16" style="font-size:12px">thin: training, thick: held out</tspan>')
    pieces.append("</text>")
    for number, label in enumerate(labels):
        y = 46 + 20 * number
        pieces.append(f'<path class="strong {classes(number)}" d="M20 {y}h28"/>')
        pieces.append(f'<text x="56" y="{y + 4}">{escape(label)}</text>')
    for index, chart in enumerate(charts):
        x, y = 20 + index % 2 * (WIDTH + 20), head + index // 2 * (HEIGHT + 40)
        pieces.append(f'<text x="{x}" y="{y + 20}" style="font-weight:600">')
        pieces.append(f"{escape(chart.title)}, {escape(chart.unit)}</text>")
        attributes = f' x="{x}" y="{y + 28}" width="{WIDTH}" height="{HEIGHT}"'
        pieces.append(draw(chart, attributes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">\n<title>{escape(heading)}</title>\n<style>{SHAPES}{style(False)}\n'
        f"@media(prefers-color-scheme:dark){{{style(True)}}}</style>\n"
        + "\n".join(pieces)
        + "</g></svg>\n"
    )
