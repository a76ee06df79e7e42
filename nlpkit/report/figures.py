"""Curves, masks and tables as pictures, by matplotlib: an extra, imported only here."""

import logging
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nlpkit.disk import whole_file
from nlpkit.errors import Unsupported, not_installed
from nlpkit.plural import number_of
from nlpkit.report import svg
from nlpkit.report.curves import Chart
from nlpkit.train.log import Log

_MISSING = "Glyph .* missing from"  # the beginning of matplotlib's warning
READABLE = 48  # up to this number of tokens or classes the axes have labels
_WITH_COUNTS = 30  # up to this number of classes the cells of a confusion table have numbers


@dataclass(frozen=True)
class Alignment:
    """The weights (T, S) of the tokens of a source for each token of a target."""

    weights: np.ndarray
    source: list[str]
    target: list[str]


@dataclass(frozen=True)
class Layer:
    """A layer's weights (H, N, K) with its tokens: N of the rows, K of the columns."""

    title: str
    weights: np.ndarray
    queries: list[str]
    keys: list[str]

    @property
    def entropies(self) -> np.ndarray:
        """The mean entropy (H,) of each head's rows in nats: 0 is one token, log K all alike."""
        log = np.log(np.where(self.weights > 0, self.weights, 1))
        return -(self.weights * log).sum(-1).mean(-1)


# Fonts with Chinese, Japanese and Korean; the first that is installed is used.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "PingFang SC", "Hiragino Sans GB",
    "Microsoft YaHei", "SimHei", "Arial Unicode MS",
)  # fmt: skip


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise Unsupported(f"drawing: {not_installed('matplotlib')}") from error
    matplotlib.use("Agg")
    # It also logs that it builds its cache, and which font has no bold letters.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    matplotlib.rcParams["figure.constrained_layout.use"] = True
    matplotlib.rcParams["text.parse_math"] = False  # `$` in the name of a run is not a formula
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    matplotlib.rcParams["svg.hashsalt"] = "nlpkit"  # the same curves give the same bytes
    import matplotlib.pyplot as plt
    from matplotlib import font_manager

    # Asked for only if installed: matplotlib logs a line about each that is not.
    installed = {font.name for font in font_manager.fontManager.ttflist}
    found = [name for name in CJK_FONTS if name in installed]
    plt.rcParams["font.sans-serif"] = [*found, "DejaVu Sans"]
    return plt


def draw_curves(charts: Sequence[Chart], labels: Sequence[str], heading: str, path: Path) -> None:
    """Draw the charts of the runs with these labels, two in a row, as SVG or PNG."""
    plt = _pyplot()
    rows = math.ceil(len(charts) / 2)
    height = 3 * rows + 0.6 + 0.2 * len(labels)
    figure, grid = plt.subplots(rows, 2, figsize=(10.4, height), squeeze=False)
    looks = [
        {
            "color": svg.PALETTE[number % len(svg.PALETTE)][0],
            "ls": ("-", "--", ":", "-.")[number // len(svg.PALETTE) % 4],
        }
        for number in range(len(labels))
    ]
    for axes in grid.flat[len(charts) :]:
        axes.set_visible(False)
    for axes, chart in zip(grid.flat, charts, strict=False):
        title = svg.replace_unprintable(f"{chart.title}, {chart.unit}")
        axes.set_title(title, fontsize=10, fontweight="bold", loc="left")
        axes.set_xlabel("step", fontsize=9)
        axes.tick_params(labelsize=9)
        axes.grid(color="#d9dde2")
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if chart.logarithmic:
            axes.set_yscale("log")
        for line in chart.lines:
            look = looks[line.number] | {"marker": "o" if line.has_dots else "", "ms": 3}
            width, alpha = (1.8, 1.0) if line.strong else (1.0, 0.65)
            axes.plot(line.x, line.y, lw=width, alpha=alpha, **look)
            if line.low is not None:
                colour = looks[line.number]["color"]
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, lw=0)
        for _, value, number in chart.levels:
            axes.axhline(value, color=looks[number]["color"], ls=":", lw=1)
    figure.suptitle(svg.replace_unprintable(f"{heading}\nthin: training, thick: held out"))
    # matplotlib leaves out what begins with an underscore.
    handles = [plt.Line2D([], [], lw=1.8, label=f" {label}", **look)
               for label, look in zip(labels, looks, strict=True)]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower left")
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
    _save(plt, figure, path, metadata=metadata)


def mask_figure(
    masks: Mapping[str, np.ndarray], spans: list[tuple[int, int]], tokens: list[str], path: Path
) -> None:
    """Draw each mask (N, N) of a packed batch, and that of its shortest sequence, in a row.

    `masks` has them by name. Dark cells are visible; rows are queries, columns are keys.
    """
    plt = _pyplot()
    start, stop = min(spans, key=lambda span: span[1] - span[0])
    figure, grid = plt.subplots(len(masks), 2, figsize=(13, 6.5 * len(masks)), squeeze=False)
    for (name, mask), (whole, one) in zip(masks.items(), grid, strict=True):
        colours = {"cmap": "Blues", "interpolation": "nearest", "vmin": 0, "vmax": 1}
        whole.imshow(mask, **colours)
        whole.set_title(
            f"{name}\nthe pack: {number_of(len(spans), 'sequences')}, "
            f"{number_of(len(mask), 'tokens')}, no padding"
        )
        one.imshow(mask[start:stop, start:stop], **colours)
        one.set_title(f"{name}\nits shortest sequence: {number_of(stop - start, 'tokens')}")
        for axes in (whole, one):
            axes.set(xlabel="key", ylabel="query")
        if stop - start <= READABLE:
            ticks = range(stop - start)
            one.set_xticks(ticks, tokens[start:stop], rotation=90, fontsize=7)
            one.set_yticks(ticks, tokens[start:stop], fontsize=7)
    _save(plt, figure, path)


def alignment_figure(alignments: Sequence[Alignment], title: str, path: Path) -> None:
    """Draw a panel for each alignment; columns are tokens of the source, rows of the target."""
    plt = _pyplot()
    rows = math.ceil(len(alignments) / 2)
    columns = min(2, len(alignments))
    figure, grid = plt.subplots(rows, columns, figsize=(6 * columns, 6 * rows), squeeze=False)
    for axes in grid.flat[len(alignments) :]:
        axes.set_visible(False)
    for axes, each in zip(grid.flat, alignments, strict=False):
        image = axes.imshow(each.weights, cmap="gray", interpolation="nearest", vmin=0, vmax=1)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xticks(range(len(each.source)), each.source, rotation=90, fontsize=9)
        axes.set_yticks(range(len(each.target)), each.target, fontsize=9)
        axes.set(xlabel="source", ylabel="written")
    figure.suptitle(title)
    figure.colorbar(image, ax=grid, shrink=0.4, label="weight")
    _save(plt, figure, path)


def heads_figure(layers: Sequence[Layer], path: Path) -> None:
    """Draw the weights of every head: a row of panels for each layer, of one layer rows of four."""
    plt = _pyplot()
    heads = max(len(layer.weights) for layer in layers)
    columns, rows, side = heads, len(layers), 2.2
    if len(layers) == 1:
        columns, rows, side = min(heads, 4), math.ceil(heads / 4), 4.5
    figure, grid = plt.subplots(rows, columns, figsize=(side * columns, side * rows), squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for row, layer in enumerate(layers):
        panels = grid[row] if len(layers) > 1 else grid.flat
        of_heads = zip(panels, layer.weights, layer.entropies, strict=False)
        for head, (axes, each, entropy) in enumerate(of_heads, 1):
            axes.set_visible(True)
            axes.imshow(each, cmap="Blues", interpolation="nearest", vmin=0, vmax=1)
            axes.set_title(f"{layer.title}, head {head}: {entropy:.2f} nats", fontsize=7)
            axes.set(xticks=[], yticks=[])
            if len(layers) == 1:
                axes.set_xticks(range(len(layer.keys)), layer.keys, rotation=90, fontsize=7)
                axes.set_yticks(range(len(layer.queries)), layer.queries, fontsize=7)
    _save(plt, figure, path)


def _save(plt: Any, figure: Any, path: Path, **options: Any) -> None:
    with whole_file(path) as file, warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=_MISSING)
        options |= {"dpi": 120, "bbox_inches": "tight", "format": path.suffix[1:]}
        figure.savefig(file.buffer, **options)
    others = [each for each in caught if not re.match(_MISSING, str(each.message))]
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if len(others) < len(caught):  # matplotlib would warn about each character
        Log().warn(
            f"{path}: no installed font has all characters, and some are drawn as boxes; install "
            f"{CJK_FONTS[0]} (Debian, Ubuntu: apt install fonts-noto-cjk) and draw again"
        )
    plt.close(figure)


def confusion_figure(labels: Sequence[str], counts: Sequence[Sequence[int]], path: Path) -> None:
    """Draw how many rows of each right class (rows) are predicted as each class (columns).

    The colour is the share of the row, so that rare classes are as visible as frequent ones.
    """
    plt = _pyplot()
    table = np.array(counts)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    side = min(14.0, 2.5 + 0.45 * len(labels))
    figure, axes = plt.subplots(figsize=(side, side))
    axes.imshow(shares, cmap="Blues", interpolation="nearest", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="right")
    right = int(np.trace(table))
    axes.set_title(f"{right:,} of {number_of(table.sum(), 'rows')} right", fontsize=10)
    if len(labels) <= READABLE:
        turned = 90 if max(map(len, labels)) > 3 else 0
        axes.set_xticks(range(len(labels)), labels, rotation=turned)
        axes.set_yticks(range(len(labels)), labels)
    if len(labels) <= _WITH_COUNTS:
        for (row, column), count in np.ndenumerate(table):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count}", ha="center", va="center", color=colour, size=8)
    _save(plt, figure, path)
