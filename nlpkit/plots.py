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


def loss_figure(
    steps: list[dict[str, Any]], held_out: list[dict[str, Any]], entropy: float, path: Path
) -> None:
    """Draw the training loss of every step and the held-out loss, from records of metrics.jsonl.

    `entropy` is the unigram entropy of the held-out text, in nats a token.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(
        [r["step"] for r in steps], [r["loss"] for r in steps], color="#9db7d5", lw=1, label="train"
    )
    for name, style in (("loss", "-"), ("infilling", ":"), ("generation", "--")):
        values = [
            r["held_out"][name] if name == "loss" else r["held_out"]["losses"][name]
            for r in held_out
        ]
        label = "held out" if name == "loss" else f"held out, {name}"
        axes.plot([r["step"] for r in held_out], values, style, color="#123c73", label=label)
    axes.axhline(entropy, color="#b3541e", lw=1, label="unigram entropy of the held-out text")
    axes.set_xlabel("step")
    axes.set_ylabel("nats / token")
    axes.grid(alpha=0.3)
    axes.legend()
    with naming_the_path(path):
        figure.savefig(path, dpi=120)
    plt.close(figure)


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
