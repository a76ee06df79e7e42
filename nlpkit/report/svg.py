"""Line charts as shapes, and these as SVG, for light and dark mode; no JavaScript is needed.

`figures.draw_shapes` draws the same shapes as PNG.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Literal, NamedTuple

import numpy as np

from nlpkit.report.curves import Chart, Line

WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 460, 12, 226  # of the plotted field
_GAP, _HEAD = 20, 46  # of a sheet: between charts, above the legend
_MARKERS = 60  # held-out curves with at most this number of points have dots

# (light, dark): contrast of at least 3:1 to the page (WCAG 2.1, 1.4.11), safe for colour-blind
# readers.
PALETTE = (
    ("#1a5fb4", "#78b5ff"), ("#b8480a", "#ff9f5a"), ("#0b7a55", "#5cd6a3"), ("#a0307f", "#f08fd0"),
    ("#76620a", "#e0c34a"), ("#0e7490", "#5fd3e8"), ("#b3213c", "#ff8a95"), ("#5b4bd6", "#b0a8ff"),
)  # fmt: skip
TEXT, GRID, _PAGE = ("#1c2024", "#e6e8eb"), ("#d9dde2", "#3a3f47"), ("#fff", "#15181c")
DASHES = ("none", "7 3", "2 3", "9 3 2 3")  # for runs 1-8, 9-16, 17-24 and 25-32
STROKES = {"grid": 1.0, "frame": 1.0, "level": 1.2, "thin": 1.3, "strong": 2.4}
SHAPES = (
    ".chart path{fill:none;stroke-linejoin:round}\n"
    + "".join(f".chart .{kind}{{stroke-width:{width}}}\n" for kind, width in STROKES.items())
    + ".chart .thin{opacity:.65}\n.chart .level{stroke-dasharray:2 4}\n"
    ".chart .band{opacity:.2;stroke:none}\n.chart .cursor{display:none}\n"
    + "".join(f".d{n}{{stroke-dasharray:{dash}}}\n" for n, dash in enumerate(DASHES) if n)
)


# Characters that XML does not allow, and surrogates, which UTF-8 cannot encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def replace_unprintable(text: str) -> str:
    """Return the text with a mark in place of each character that no page can show."""
    return _UNPRINTABLE.sub("\ufffd", text)


Anchor = Literal["start", "middle", "end"]


class Shape(NamedTuple):
    """A line, an area, dots, or a text at one point, in pixels; NaN interrupts a line."""

    kind: Literal["grid", "frame", "level", "thin", "strong", "band", "dots", "text"]
    points: np.ndarray  # (P, 2)
    number: int = 0  # of the run, which selects the colour and dashes
    text: str = ""
    anchor: Anchor = "start"
    size: int = 12
    bold: bool = False


def make_style(dark: bool) -> str:
    """Return the CSS rules of the charts' colours."""
    text, grid, page = TEXT[dark], GRID[dark], _PAGE[dark]
    rules = [
        f".chart text{{fill:{text};font:12px system-ui,sans-serif}}.chart .grid{{stroke:{grid}}}",
        f".chart .frame,.chart .cursor{{stroke:{text}}}",
        f".paper{{fill:{page}}}",
    ]
    for number, colours in enumerate(PALETTE):
        colour = colours[dark]
        rules.append(f".s{number}{{stroke:{colour}}}.f{number}{{fill:{colour}}}")
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


def make_shapes(chart: Chart) -> Iterator[Shape]:
    """Yield the shapes of a chart in a field of WIDTH x HEIGHT pixels: axes, levels, curves."""
    x0, x1, y0, y1 = find_limits(chart)
    bottom, top = (math.log(y0), math.log(y1)) if chart.logarithmic else (y0, y1)

    def across(x: np.ndarray) -> np.ndarray:
        return LEFT + (x - x0) / (x1 - x0) * (RIGHT - LEFT)

    def up(y: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            y = np.log(np.where(y > 0, y, np.nan)) if chart.logarithmic else y
        return BOTTOM - (y - bottom) / (top - bottom) * (BOTTOM - TOP)

    rows = choose_powers(y0, y1) if chart.logarithmic else choose_ticks(y0, y1, 6)
    texts = [f"{value:g}" for value in rows] if chart.logarithmic else shorten(rows)
    for h, text in zip(up(np.array(rows)), texts, strict=True):
        yield Shape("grid", np.array([(LEFT, h), (RIGHT, h)]))
        yield _make_text(LEFT - 6, h + 4, text, anchor="end")
    steps = [
        value for value in choose_ticks(x0, x1, 5) if value == int(value)
    ]  # steps are integers
    for w, text in zip(across(np.array(steps)), shorten(steps), strict=True):
        yield Shape("grid", np.array([(w, TOP), (w, BOTTOM)]))
        yield _make_text(w, BOTTOM + 16, text, anchor="middle")
    yield Shape("frame", np.array([(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)]))
    yield _make_text(RIGHT, HEIGHT - 4, "step", anchor="end")
    for _, value, number in chart.levels:
        points = np.stack([np.array([LEFT, RIGHT]), up(np.array([value, value]))], 1)
        yield Shape("level", points, number)
    for line in chart.lines:
        yield from _make_curve(line, across(line.x), up)


def _make_text(
    x: float, y: float, text: str, anchor: Anchor = "start", size: int = 12, bold: bool = False
) -> Shape:
    text = replace_unprintable(text)
    return Shape("text", np.array([(x, y)]), 0, text, anchor, size, bold)


def _make_curve(
    line: Line, x: np.ndarray, up: Callable[[np.ndarray], np.ndarray]
) -> Iterator[Shape]:
    if line.low is not None and line.high is not None:
        low, high = np.stack([x, up(line.low)], 1), np.stack([x, up(line.high)], 1)
        finite = np.isfinite(low[:, 1]) & np.isfinite(high[:, 1])
        yield Shape("band", np.concatenate([high[finite], low[finite][::-1]]), line.number)
    points = np.stack([x, up(line.y)], 1)
    yield Shape("strong" if line.strong else "thin", points, line.number)
    finite = np.isfinite(points[:, 1])
    # A line with a single point would be invisible.
    if finite.sum() == 1 or (line.strong and finite.sum() <= _MARKERS):
        yield Shape("dots", points[finite], line.number)


def _write_element(shape: Shape) -> str:
    """Return a shape as SVG."""
    fill = f"f{shape.number % len(PALETTE)}"
    if shape.kind == "text":
        ((x, y),) = shape.points
        look = f"font-size:{shape.size}px;font-weight:{600 if shape.bold else 400}"
        style = "" if look == "font-size:12px;font-weight:400" else f' style="{look}"'
        anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        return f'<text x="{x:.1f}" y="{y:.1f}"{anchor}{style}>{escape(shape.text)}</text>'
    if shape.kind == "band":
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polygon class="band {fill}" points="{points}"/>'
    if shape.kind == "dots":
        return "".join(
            f'<circle class="{fill}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in shape.points
        )
    return (
        f'<path class="{shape.kind} {get_classes(shape.number)}" d="{_write_path(shape.points)}"/>'
    )


def _write_path(points: np.ndarray) -> str:
    """Return the path through the points, with a gap if a value is missing."""
    parts, is_drawing = [], False
    finite = np.isfinite(points[:, 1]).tolist()
    for (x, y), is_finite in zip(points.tolist(), finite, strict=True):
        if is_finite:
            parts.append(f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}")
        is_drawing = is_finite
    return "".join(parts)


def draw(chart: Chart, extra: str = "") -> str:
    """Return the chart as an `<svg>` element with a title, with `extra` attributes."""
    title = escape(f"{chart.title}, {chart.unit}, by training step: {_summarize(chart)}")
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}"{extra}>'
        f"<title>{title}</title>{''.join(map(_write_element, make_shapes(chart)))}"
        f'<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{BOTTOM}"/></svg>'
    )


def _summarize(chart: Chart) -> str:
    """Return each curve's first and last value as text, for screen readers."""
    texts = []
    for line in chart.lines:
        y = line.y[np.isfinite(line.y)]
        if len(y):
            texts.append(f"{line.name} from {y[0]:.4g} to {y[-1]:.4g}")
    return "; ".join(texts + [f"{name} {value:.4g}" for name, value, _ in chart.levels])


class Sheet(NamedTuple):
    """All charts with a heading and a legend, two in a row: what is above, and where each is."""

    size: tuple[int, int]
    head: list[Shape]
    places: list[tuple[Chart, int, int]]


def lay_out(charts: Sequence[Chart], labels: Sequence[str], heading: str) -> Sheet:
    """Return the sheet of the charts of these runs."""
    top = _HEAD + 20 * len(labels)
    width = 2 * (WIDTH + _GAP) + _GAP
    head = [_make_text(_GAP, 28, heading, size=18)]
    head.append(
        _make_text(width - _GAP, _HEAD + 4, "thin: training, thick: held out", anchor="end")
    )
    for number, label in enumerate(labels):
        y = _HEAD + 20 * number
        head.append(Shape("strong", np.array([(_GAP, y), (_GAP + 28, y)]), number))
        head.append(_make_text(_GAP + 36, y + 4, label))
    places = []
    for index, chart in enumerate(charts):
        x, y = _GAP + index % 2 * (WIDTH + _GAP), top + index // 2 * (HEIGHT + 40)
        head.append(_make_text(x, y + 20, f"{chart.title}, {chart.unit}", bold=True))
        places.append((chart, x, y + 28))
    return Sheet((width, top + math.ceil(len(charts) / 2) * (HEIGHT + 40) + 10), head, places)


def write_sheet(sheet: Sheet) -> str:
    """Return the sheet as one SVG file."""
    width, height = sheet.size
    pieces = [f'<rect class="paper" width="{width}" height="{height}"/>\n<g class="chart">']
    pieces += [_write_element(shape) for shape in sheet.head]
    for chart, x, y in sheet.places:
        pieces.append(draw(chart, f' x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"'))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">\n<title>{escape(sheet.head[0].text)}</title>\n'
        f"<style>{SHAPES}{make_style(False)}\n@media(prefers-color-scheme:dark){{{make_style(True)}}}"
        "</style>\n" + "\n".join(pieces) + "</g></svg>\n"
    )
