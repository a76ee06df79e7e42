"""The records in `metrics.jsonl` that a resumed run keeps."""

import io
import json
import math
import operator
from collections.abc import Callable
from pathlib import Path

_DAMAGED = math.inf, 0.0  # after every step


def select(path: Path, last: tuple[int, int], warn: Callable[[str], None]) -> str:
    """Return the lines up to the `last` step and the last evaluation, by their steps."""
    kept = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(io.StringIO(text), 1):  # `splitlines` splits at U+2028, too
        order = _order(line)
        if order <= last:
            kept.append(line)
        # Without its end, it is the last line of a killed run.
        elif order == _DAMAGED and line.endswith("\n"):
            warn(f"{path}:{number}: no record of a step; the line is left out")
    return "".join(kept)


def _order(line: str) -> tuple[float, float]:
    """Return the sort key of a line: (step, 0) for a step, (step, step) for its evaluation."""
    try:
        record = json.loads(line)
        step = operator.index(record["step"])
    except (ValueError, KeyError, TypeError):
        return _DAMAGED
    return step, step if "held_out" in record else 0
