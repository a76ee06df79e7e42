"""Draws the mask of every attention kind for docs/gallery: small SVGs for light and dark pages.

A panel is a mask of N tokens; a row is a query, a column a key. The mask comes from the code of the
kind (`dense_mask`), for one sequence.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.masks import dense_mask
from nlpkit.contracts.request import Layout

TOKENS = 16
CELL, GAP, LABEL = 7, 26, 18  # pixels: of a pair, between panels, of the line below a panel
# Read on white and on black alike.
SEEN, HIDDEN, TEXT = "#3f8ae0", "#8a94a0", "#7d8794"


class Panel(NamedTuple):
    """One mask: what stands below it, the settings of the kind, and what the batch says."""

    label: str
    settings: Mapping[str, Any] = {}
    fields: Mapping[str, Tensor] = {}


def _sides(**settings: Any) -> list[Panel]:
    return [
        Panel("in a GPT", {"causal": True, **settings}),
        Panel("in a BERT", {"causal": False, **settings}),
    ]


def _where(*true: int) -> Tensor:
    """Return a field (N,) bool that is True at these places."""
    return torch.tensor([place in true for place in range(TOKENS)])


def _patterns(names: Sequence[str], **settings: Any) -> list[Panel]:
    return [Panel(name, {"pattern": name, **settings}) for name in names]


_PLACE = torch.arange(TOKENS)
_HALF = _PLACE < TOKENS // 2
_TYPES = torch.zeros(TOKENS, dtype=torch.long)
_NO_END = torch.full((TOKENS,), TOKENS - 1)
# The order in which a permutation language model predicts; 0: a token that all see.
_ORDER = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 2, 8, 1, 4, 7, 3])

PANELS: dict[str, list[Panel]] = {
    "aft": _sides(),
    "block_local": _sides(block=4),
    "causal": [Panel("")],
    "cosformer": _sides(),
    "cpm_ant": [
        Panel("infilling", {}, {"context": ~_where(3, 4, 9, 12, 13), "segment": _TYPES}),
        Panel("generation", {}, {"context": _HALF, "segment": _TYPES}),
    ],
    "disentangled": _sides(),
    "fixed": _patterns(["fa1", "fa2", "both"], stride=4, summary=1),
    "full": [Panel("")],
    "group": [Panel("groups: 4", {"groups": 4})],
    "hybrid": [
        Panel("a sequence of clm", {}, {"full": _where()}),
        Panel("a masked one", {}, {"full": _where(*range(TOKENS))}),
    ],
    "linear": _sides(),
    "local_window": [
        Panel("window: 4", {"window": 4}),
        Panel("causal: false", {"window": 4, "causal": False}),
    ],
    "longformer": [
        Panel("first", {"window": 4, "causal": False}),
        Panel("in a GPT", {"window": 4, "causal": True}),
        Panel("dilation: 2", {"window": 4, "causal": False, "dilation": 2}),
        Panel("question", {"window": 4, "causal": False, "global_tokens": "question"},
              {"text": torch.tensor([0, *[1] * 4, 0, *[2] * 9, 0])}),
    ],
    "lsh": _sides(),
    "memory_compressed": _sides(),
    "prefix": [Panel("context of 8 tokens", {}, {"context": _HALF})],
    "relative": [
        Panel("a task"),
        Panel("plm", {}, {"rank": _ORDER}),
    ],
    "relative_bias": [Panel("")],
    "relative_bias_causal": [Panel("")],
    "relative_keys": _sides(),
    "seen_range": [
        Panel("both", {}, {"first": 0 * _PLACE, "last": _NO_END}),
        Panel("left", {}, {"first": 0 * _PLACE, "last": _PLACE}),
        Panel("right", {}, {"first": _PLACE, "last": _NO_END}),
        Panel("source", {}, {"first": 0 * _PLACE, "last": _PLACE.clamp(min=TOKENS // 2 - 1)}),
    ],
    "strided": _patterns(["sa1", "sa2", "both"], stride=4),
}  # fmt: skip
# The panel that stands for a kind in a small picture, where it is not the first one.
_TYPICAL = {"fixed": "both", "relative": "plm", "seen_range": "source", "strided": "both"}
# What is to be said of a picture beside the names of its panels.
NOTES = {
    "aft": "Which keys have a weight; how large it is, the keys and learned numbers say.",
    "block_local": "`block: 4`.",
    "cosformer": "Which keys have a weight: it falls with the distance.",
    "cpm_ant": "Hidden tokens stand anywhere (infilling) or at the end (generation).",
    "disentangled": "Scores have parts for the distance of two tokens, too.",
    "fixed": "`stride: 4, summary: 1`; with `split` half of the heads see `fa1`, the others `fa2`.",
    "hybrid": "The objective says which sequences are masked ones.",
    "longformer": "`window: 4`; with `question` the tokens 2 to 5 are a question.",
    "lsh": "What a token may see: of this it sees a part of its own bucket of a hash.",
    "memory_compressed": "A key is a convolution of 3 tokens (`stride`), which are seen together.",
    "prefix": "The objective says which tokens are context.",
    "relative": "`plm` predicts tokens in a random order, here the last 7.",
    "relative_bias": "To each score a learned bias of the distance is added.",
    "relative_bias_causal": "To each score a learned bias of the distance is added.",
    "relative_keys": "Keys and values have a learned vector for the distance, which is added.",
    "seen_range": "The four masks of UniLM; in `source` the first 8 tokens are the source.",
    "strided": "`stride: 4`; with `split` half of the heads see `sa1`, the others `sa2`.",
}


def compute(kind: str, panel: Panel) -> np.ndarray:
    """Return the mask of a panel, (N, N) bool."""
    choice = AttentionChoice.of(kind, **panel.settings).with_defaults("causal", TOKENS)
    layout = Layout((TOKENS,)).with_fields(panel.fields)
    seen: np.ndarray = dense_mask(choice, layout).numpy()
    return seen


def _trace(seen: np.ndarray) -> Iterator[str]:
    """Yield a path for each run of keys that a query sees."""
    for row, keys in enumerate(seen):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], keys, [False]]).astype(int)))
        for first, stop in edges.reshape(-1, 2):
            yield f"M{first * CELL} {row * CELL}h{(stop - first) * CELL}v{CELL}H{first * CELL}z"


def _draw_grid(kind: str, panel: Panel) -> list[str]:
    """Return the paths of a mask: what is seen, and the lines of the grid."""
    side = TOKENS * CELL
    lines = "".join(f"M0 {n * CELL}H{side}M{n * CELL} 0V{side}" for n in range(TOKENS + 1))
    return [
        f'<path fill="{SEEN}" d="{"".join(_trace(compute(kind, panel)))}"/>',
        f'<path stroke="{HIDDEN}" stroke-opacity=".4" stroke-width=".6" d="{lines}"/>',
    ]


def _open(kind: str, width: int, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f"<title>{kind}: a row is a query, a column a key; what it sees is blue</title>",
    ]


def draw(kind: str) -> str:
    """Return the picture of a kind, its panels side by side, as SVG."""
    side, panels = TOKENS * CELL, PANELS[kind]
    text = _open(kind, len(panels) * (side + GAP) - GAP, side + LABEL)
    for number, panel in enumerate(panels):
        text += [
            f'<g transform="translate({number * (side + GAP)} 0)">',
            *_draw_grid(kind, panel),
            f'<text x="{side / 2:g}" y="{side + 13}" text-anchor="middle" fill="{TEXT}">'
            f"{panel.label}</text>",
            "</g>",
        ]
    return "\n".join([*text, "</svg>", ""])


def draw_small(kind: str) -> str:
    """Return one panel of a kind without words, for tables."""
    (panel, *_) = [p for p in PANELS[kind] if p.label == _TYPICAL.get(kind, PANELS[kind][0].label)]
    side = TOKENS * CELL
    return "\n".join([*_open(kind, side, side), *_draw_grid(kind, panel), "</svg>", ""])
