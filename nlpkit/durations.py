"""Lengths of time as people write them: `90s`, `50m`, `1h30m` or `2d`."""

import re

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def seconds(text: str) -> float:
    """Return the seconds in `90s`, `50m`, `1h30m` or `2d`; a number without a unit is seconds.

    Raises:
        ValueError: the text is not a length of time above 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if re.fullmatch(r"\d+", text):
        total = float(text)
    elif "".join(number + unit for number, unit in parts) != text:
        total = 0.0
    if not 0 < total < float("inf"):
        raise ValueError(f"{text!r} is not a time such as 90s, 50m or 1h30m")
    return total


def written(length: float) -> str:
    """Return `1h30m` for 5400 seconds, rounded to whole seconds; below 10 seconds, to tenths."""
    if length < 10:
        return f"{length:.1f}s".replace(".0s", "s")
    left, text = round(length), ""
    for unit, size in _UNITS.items():
        number, left = divmod(left, size)
        text += f"{number}{unit}" if number else ""
    return text
