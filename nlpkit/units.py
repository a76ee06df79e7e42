"""Amounts of memory, lengths of time and large numbers as people write them: `1h30m`, `1.5M`."""

import re
from contextlib import suppress

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_NUMBERS = {"K": 10**3, "M": 10**6, "B": 10**9}
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_bytes(text: str) -> int:
    """Return the bytes in `20GB` (10^9) or `20GiB` (2^30).

    Raises:
        ValueError: the text is not an amount of memory above 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    size = float(found[1]) * _BYTES.get(found[2].upper(), 0) if found else 0
    if not 1 <= size < float("inf"):
        raise ValueError(f"{text!r} is not an amount of memory such as 20GB, 512MB or 16GiB")
    return int(size)


def format_bytes(size: float) -> str:
    """Return `1.5 GB` or `320 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def parse_number(text: str | int, of: str) -> int:
    """Return the number in `15M`, `1.5B`, `800k` or 15000000; `of` is what it counts.

    Raises:
        ValueError: the text is not a number above 0.
    """
    found = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)\s*([KMB])", str(text).upper(), re.ASCII)
    number = 0
    with suppress(OverflowError, ValueError):  # of hundreds of digits
        if found:
            number = int(found[1]) if found[1] else round(float(found[2]) * _NUMBERS[found[3]])
    if isinstance(text, bool) or number <= 0:
        raise ValueError(f"{text!r} is not a number of {of} such as 15M, 1.5B or 15000000")
    return number


def format_number(number: int) -> str:
    """Return `1M`, `1.5M`, `1000M` or `800k`: what `parse_number` reads, without rounding."""
    size, unit = next(u for u in ((10**6, "M"), (10**3, "k"), (1, "")) if number >= u[0])
    return f"{number / size:.6f}".rstrip("0").rstrip(".") + unit


def parse_duration(text: str) -> float:
    """Return the seconds in `90s`, `50m`, `1h30m` or `2d`; a number without a unit is seconds.

    Raises:
        ValueError: the text is not a length of time above 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if re.fullmatch(r"\d+", text):
        total = float(text)
    elif "".join(number + unit for number, unit in parts) != text:
        total = 0.0
    if not 0 < total < float("inf"):
        raise ValueError(f"{text!r} is not a time such as 90s, 50m or 1h30m")
    return total


def format_duration(length: float) -> str:
    """Return `1h30m` for 5400 seconds, rounded to whole seconds; below 10 seconds, to tenths."""
    if length < 10:
        return f"{length:.1f}s".replace(".0s", "s")
    left, text = round(length), ""
    for unit, size in _SECONDS.items():
        number, left = divmod(left, size)
        text += f"{number}{unit}" if number else ""
    return text
