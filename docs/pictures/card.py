"""A card, and what is drawn on it: rows of tokens, boxes, arrows, matrices.

A card is white with round corners, so that it is read on a light page and on a dark one.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

matplotlib.use("Agg")
matplotlib.rcParams |= {
    "svg.fonttype": "none",  # text stays text, in the reader's font
    "svg.hashsalt": "nlpkit",  # the same picture gives the same bytes
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}

INK, GREY, LINE = "#1f2933", "#6b7480", "#c3c9d1"
BLUE, ORANGE, GREEN, RED = "#2563a8", "#c96a12", "#2f855a", "#b83232"
PALE = {BLUE: "#dfeaf6", ORANGE: "#fce9d4", GREEN: "#dcefe3", RED: "#f7dede", GREY: "#eef0f3"}
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", BLUE])


def card(
    width: float, height: float, panels: tuple[int, int] = (1, 1)
) -> tuple[Figure, np.ndarray]:
    """Return a figure of this size in inches, and its axes (rows, columns)."""
    figure, grid = plt.subplots(
        *panels, figsize=(width, height), squeeze=False, layout="constrained", facecolor="none"
    )
    figure.get_layout_engine().set(w_pad=0.14, h_pad=0.14)
    edge = 0.06
    back = FancyBboxPatch(
        (edge, edge), width - 2 * edge, height - 2 * edge, boxstyle="round,pad=0,rounding_size=0.1",
        transform=figure.dpi_scale_trans, facecolor="#ffffff", edgecolor=LINE, zorder=-10,
    )  # fmt: skip
    back.set_in_layout(False)
    figure.add_artist(back)
    for axes in grid.flat:
        axes.set_facecolor("none")
        axes.tick_params(colors=INK, labelsize=9)
    return figure, grid


def save(figure: Figure, path: Path) -> None:
    """Write the card as SVG."""
    figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="none")
    plt.close(figure)


def sheet(axes: Axes, width: float, height: float) -> None:
    """Make axes a sheet of paper: no ticks, 0 … width to the right, 0 … height upwards."""
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str = GREY,
    size: float = 9,
) -> None:  # fmt: skip
    """Draw a box whose lower left corner is at (x, y), with text in its middle."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=PALE[colour],
            edgecolor=colour,
            linewidth=1,
        )
    )
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", size=size, color=INK)


def row(
    axes: Axes, x: float, y: float, words: Sequence[str], colours: Sequence[str],
    width: float = 1.0, size: float = 9,
) -> None:  # fmt: skip
    """Draw tokens side by side, a box each, `width` apart."""
    for place, (word, colour) in enumerate(zip(words, colours, strict=True)):
        box(axes, x + place * width + 0.04, y, width - 0.08, 0.6, word, colour, size)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = GREY,
    bend: float = 0.0,
) -> None:  # fmt: skip
    """Draw an arrow; `bend` is the curve's height as a share of its length."""
    axes.annotate(
        "", end, start,
        arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.1, "shrinkA": 1, "shrinkB": 1,
                    "connectionstyle": f"arc3,rad={bend}"},
    )  # fmt: skip


def note(axes: Axes, x: float, y: float, text: str, colour: str = INK, **more: object) -> None:
    """Write text that begins at (x, y)."""
    axes.text(x, y, text, **{"color": colour, "size": 9, "va": "center", **more})


def label_powers(axes: Axes, powers: Sequence[int]) -> None:
    """Label the y axis with powers of ten; matplotlib's own labels are formulas."""
    small = {3: "1,000", 2: "100", 1: "10", 0: "1", -1: "0.1", -2: "0.01"}
    axes.set_yticks([10.0**n for n in powers], [small.get(n, f"1e{n}") for n in powers])
    axes.minorticks_off()


def matrix(
    axes: Axes, values: np.ndarray, title: str, rows: Sequence[str] = (),
    columns: Sequence[str] = (), colour: str = BLUE,
) -> None:  # fmt: skip
    """Draw a matrix: 0 is white, 1 the colour; a row is a query, a column a key."""
    shades = SHADES if colour == BLUE else LinearSegmentedColormap.from_list("", ["#fff", colour])
    height, width = values.shape
    axes.imshow(values, cmap=shades, vmin=0, vmax=1, interpolation="none",
                extent=(0, width, height, 0))  # fmt: skip
    axes.hlines(range(height + 1), 0, width, LINE, linewidth=0.4)
    axes.vlines(range(width + 1), 0, height, LINE, linewidth=0.4)
    axes.set_title(title, size=9.5, color=INK)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90 if len(columns) > 6 else 0)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.tick_params(length=0, labelsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)
