"""Writes the shipped images: small digits, drawn with random strokes and noise.

    python data/images/make.py [DIRECTORY]

Each image is a digit of 16 x 12 grey pixels: its strokes are bent, slanted, scaled and moved at
random, with another thickness and ink each time, on a background with noise and a stray line.
Files are in MNIST's idx format. One seed, standard library only, and no functions that differ from
one machine to the next: the same bytes each time. Prints a table of what it wrote. Licence:
CC0 1.0.
"""

import hashlib
import random
import struct
import sys
from itertools import pairwise
from math import sqrt
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEED = 12
HEIGHT, WIDTH = 16, 12
COUNTS = {"train": 1600, "valid": 400}
# Cosines of sixteenths of a circle.
_COSINES = (1.0, 0.9239, 0.7071, 0.3827, 0.0, -0.3827, -0.7071, -0.9239, -1.0)

Point = tuple[float, float]
Stroke = list[Point]


def arc(x: float, y: float, across: float, down: float, start: int, stop: int) -> Stroke:
    """Points of an ellipse; sixteenths of a circle, clockwise from the right."""
    return [(x + across * _cosine(k), y + down * _cosine(k - 4)) for k in range(start, stop + 1)]


def _cosine(sixteenth: int) -> float:
    k = sixteenth % 16
    return _COSINES[min(k, 16 - k)]


# The strokes of the digits in a box from (0, 0) at the top left to (1, 1).
DIGITS: tuple[list[Stroke], ...] = (
    [arc(0.5, 0.5, 0.38, 0.48, 0, 16)],
    [[(0.28, 0.22), (0.55, 0.03), (0.55, 0.97)]],
    [[*arc(0.5, 0.28, 0.36, 0.26, 8, 18), (0.12, 0.97), (0.9, 0.97)]],
    [arc(0.45, 0.27, 0.36, 0.25, 9, 20), arc(0.45, 0.73, 0.4, 0.25, 12, 23)],
    [[(0.65, 0.97), (0.65, 0.03), (0.1, 0.65), (0.92, 0.65)]],
    [[(0.85, 0.05), (0.25, 0.05), (0.2, 0.45), *arc(0.48, 0.68, 0.38, 0.29, 11, 23)]],
    [[(0.7, 0.04), (0.35, 0.3), (0.15, 0.65)], arc(0.5, 0.7, 0.35, 0.27, 8, 24)],
    [[(0.1, 0.05), (0.9, 0.05), (0.4, 0.97)]],
    [arc(0.5, 0.27, 0.3, 0.23, 4, 20), arc(0.5, 0.73, 0.38, 0.25, 12, 28)],
    [arc(0.5, 0.3, 0.35, 0.27, 0, 16), [(0.85, 0.3), (0.8, 0.7), (0.5, 0.97)]],
)


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    target.mkdir(parents=True, exist_ok=True)
    for name, data in files().items():
        (target / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        print(f"| images/{name} | {len(data)} | - | `{digest}` |")


def files() -> dict[str, bytes]:
    """The bytes of every file, by its name."""
    made: dict[str, bytes] = {}
    for part, count in COUNTS.items():
        draw = random.Random(f"{SEED} {part}")
        labels = [number % 10 for number in range(count)]
        draw.shuffle(labels)
        pixels = b"".join(image(label, draw) for label in labels)
        header = struct.pack(">IIII", 2051, count, HEIGHT, WIDTH)
        made[f"{part}-images-idx3-ubyte"] = header + pixels
        made[f"{part}-labels-idx1-ubyte"] = struct.pack(">II", 2049, count) + bytes(labels)
    return made


def image(digit: int, draw: random.Random) -> bytes:
    """The pixels of one image, row by row."""
    segments = _segments(digit, draw)
    thickness, ink = draw.uniform(0.5, 1.1), draw.uniform(120, 255)
    stray = _stray(draw)
    faint = draw.uniform(0, 90)
    paper, grain = draw.uniform(0, 40), draw.uniform(10, 45)
    pixels = []
    for cover, other in zip(_drawn(segments, thickness), _drawn([stray], 0.4), strict=True):
        noise = (draw.random() + draw.random() - 1) * 2 * grain
        value = paper + max(cover * (ink - paper), other * faint) + noise
        pixels.append(min(255, max(0, round(value))))
    return bytes(pixels)


def _segments(digit: int, draw: random.Random) -> list[tuple[Point, Point]]:
    """The lines of a digit in pixels."""
    across, down = draw.uniform(5.5, 9), draw.uniform(9, 13.5)
    slant, tilt = draw.uniform(-0.35, 0.35), draw.uniform(-0.2, 0.2)
    x0, y0 = WIDTH / 2 + draw.uniform(-1.2, 1.2), HEIGHT / 2 + draw.uniform(-1.2, 1.2)
    segments = []
    for stroke in DIGITS[digit]:
        points = []
        for x, y in stroke:
            right = (x - 0.5 + draw.uniform(-0.05, 0.05)) * across
            below = (y - 0.5 + draw.uniform(-0.04, 0.04)) * down
            points.append((x0 + right - slant * below, y0 + below + tilt * right))
        segments += list(pairwise(points))
    return segments


def _stray(draw: random.Random) -> tuple[Point, Point]:
    """A short line that belongs to no digit."""
    x, y = draw.uniform(0, WIDTH), draw.uniform(0, HEIGHT)
    return (x, y), (x + draw.uniform(-5, 5), y + draw.uniform(-5, 5))


def _drawn(segments: list[tuple[Point, Point]], thickness: float) -> list[float]:
    """How much of each pixel the lines cover, from 0 to 1, row by row."""
    covers = [0.0] * (HEIGHT * WIDTH)
    for segment in segments:
        rows, columns = (
            _reached([point[axis] for point in segment], thickness, size)
            for axis, size in ((1, HEIGHT), (0, WIDTH))
        )
        for row in rows:
            for column in columns:
                cover = thickness + 0.5 - _distance((column + 0.5, row + 0.5), segment)
                place = row * WIDTH + column
                covers[place] = max(covers[place], min(1.0, cover))
    return covers


def _reached(ends: list[float], thickness: float, size: int) -> range:
    """The rows or columns that a line can touch."""
    first, last = int(min(ends) - thickness - 1), int(max(ends) + thickness + 1)
    return range(max(0, first), min(size, last + 1))


def _distance(at: Point, segment: tuple[Point, Point]) -> float:
    (x0, y0), (x1, y1) = segment
    dx, dy = x1 - x0, y1 - y0
    length = dx * dx + dy * dy
    share = ((at[0] - x0) * dx + (at[1] - y0) * dy) / length if length else 0.0
    share = min(1.0, max(0.0, share))
    x, y = at[0] - x0 - share * dx, at[1] - y0 - share * dy
    return sqrt(x * x + y * y)


if __name__ == "__main__":
    main()
