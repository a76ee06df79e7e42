"""Pictures for people. matplotlib is an optional extra and only imported here."""

from pathlib import Path
from typing import Any

import numpy as np

from nlpkit.errors import Unsupported
from nlpkit.train.checkpoint import naming_the_path

_READABLE = 48  # up to so many tokens are written along the axes


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise Unsupported("drawing needs matplotlib: pip install 'nlpkit[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # The first that is installed; tokens are often Chinese.
    plt.rcParams["font.sans-serif"] = [
        "Noto Sans CJK SC", "WenQuanYi Zen Hei", "PingFang SC", "SimHei", "DejaVu Sans",
    ]  # fmt: skip
    return plt


def mask_figure(
    mask: np.ndarray, spans: list[tuple[int, int]], tokens: list[str], path: Path
) -> None:
    """Draw the mask (N, N) of a pack and, beside it, that of its shortest sequence.

    Dark is seen; rows are queries, columns keys.
    """
    plt = _pyplot()
    start, stop = min(spans, key=lambda span: span[1] - span[0])
    figure, (whole, one) = plt.subplots(1, 2, figsize=(13, 6.5), layout="constrained")
    whole.imshow(mask, cmap="Blues", interpolation="nearest", vmin=0, vmax=1)
    whole.set_title(f"the pack: {len(spans)} sequences, {len(mask)} tokens, no padding")
    one.imshow(mask[start:stop, start:stop], cmap="Blues", interpolation="nearest", vmin=0, vmax=1)
    one.set_title(f"its shortest sequence: {stop - start} tokens")
    for axes in (whole, one):
        axes.set_xlabel("key")
        axes.set_ylabel("query")
    if stop - start <= _READABLE:
        places = range(stop - start)
        one.set_xticks(places, tokens[start:stop], rotation=90, fontsize=7)
        one.set_yticks(places, tokens[start:stop], fontsize=7)
    with naming_the_path(path):
        figure.savefig(path, dpi=120)
    plt.close(figure)
