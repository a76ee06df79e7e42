"""Draws docs/families.svg: pairs and tasks of each family, for light and dark pages."""

from collections.abc import Mapping
from typing import Any

WIDTH, ROW, LEFT, TOP, RIGHT = 640, 22, 92, 34, 16  # pixels
LOW, HIGH = 0.4, 0.8
# Read on white and on black alike.
TEXT, COLOURS = "#7d8794", ("#3d8bd4", "#e08a2e", "#a45fc4", "#3a9d5d")


def draw(families: Mapping[str, Mapping[str, Any]], tasks: Mapping[str, str]) -> str:
    """Return a row for each family as SVG, with a dot for each seed of each figure."""
    titles = {"pairs": "pairs", **tasks}
    bottom = TOP + ROW * len(families)

    def place(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (value - LOW) / (HIGH - LOW), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 20}" '
        f'viewBox="0 0 {WIDTH} {bottom + 20}" font-family="sans-serif" font-size="12">',
        "<title>Each family: accuracy on minimal pairs and on three tasks</title>",
    ]
    for tick in range(round(LOW * 10), round(HIGH * 10) + 1):
        x = place(tick / 10)
        parts += [
            f'<path stroke="{TEXT}" stroke-opacity=".35" d="M{x:g} {TOP - 6}V{bottom}"/>',
            f'<text x="{x:g}" y="{bottom + 14}" text-anchor="middle" fill="{TEXT}">'
            f"{tick / 10:g}</text>",
        ]
    for number, (title, colour) in enumerate(zip(titles.values(), COLOURS, strict=True)):
        x = LEFT + 100 * number
        parts += [
            f'<circle cx="{x + 5}" cy="12" r="4.5" fill="{colour}"/>',
            f'<text x="{x + 14}" y="16" fill="{TEXT}">{title}</text>',
        ]
    for number, (name, row) in enumerate(families.items()):
        y = TOP + ROW * number + ROW // 2
        parts.append(
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end" fill="{TEXT}">{name}</text>'
        )
        parts += [
            f'<circle cx="{place(value):g}" cy="{y}" r="4.5" fill="{colour}" fill-opacity=".85"/>'
            for key, colour in zip(titles, COLOURS, strict=True)
            for value in row[key]
        ]
    return "\n".join([*parts, "</svg>", ""])
