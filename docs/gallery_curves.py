"""Draws the curve of a run for docs/gallery: a small SVG for light and dark pages."""

from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, BELOW = 260, 96, 42, 16  # pixels; LEFT and BELOW are for the numbers
# Read on white and on black alike.
TRAIN, HELD_OUT, TEXT = "#8a94a0", "#e08a2e", "#7d8794"

Points = Sequence[Sequence[float]]  # (step, loss)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def draw(name: str, steps: int, train: Points, held_out: Points) -> str:
    """Return the losses of a run against its steps as SVG: in training a line, held out dots."""
    losses = [loss for _, loss in (*train, *held_out)]
    low, high = min(losses), max(losses)

    def place(point: Sequence[float]) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 6) * point[0] / steps
        y = 6 + (HEIGHT - BELOW - 12) * (high - point[1]) / ((high - low) or 1)
        return round(x, 1), round(y, 1)

    def trace(points: Points) -> str:
        return "M" + "L".join(f"{x:g} {y:g}" for x, y in map(place, points))

    bottom = HEIGHT - BELOW
    dots = "".join(f'<circle cx="{x:g}" cy="{y:g}" r="2.4"/>' for x, y in map(place, held_out))
    numbers = [
        (LEFT - 4, 10, "end", _number(high)),
        (LEFT - 4, bottom - 3, "end", _number(low)),
        (LEFT, HEIGHT - 4, "start", "0"),
        (WIDTH - 6, HEIGHT - 4, "end", f"{steps:,} steps"),
    ]
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="10">',
        f"<title>{name}: loss in training (grey) and held out (orange)</title>",
        f'<path fill="none" stroke="{TEXT}" stroke-opacity=".5" d="M{LEFT} 2V{bottom}H{WIDTH}"/>',
        f'<path fill="none" stroke="{TRAIN}" stroke-width="1.4" d="{trace(train)}"/>',
        f'<path fill="none" stroke="{HELD_OUT}" stroke-width="1.4" d="{trace(held_out)}"/>',
        f'<g fill="{HELD_OUT}">{dots}</g>',
    ]
    for x, y, anchor, number in numbers:
        text.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{TEXT}">{number}</text>')
    return "\n".join([*text, "</svg>", ""])
