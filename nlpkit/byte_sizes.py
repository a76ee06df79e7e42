"""Amounts of memory as people write them: `20GB`, `512MB`, `1.5GiB`."""

import re

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parsed(text: str) -> int:
    """Return the bytes in `20GB` (10^9) or `20GiB` (2^30).

    Raises:
        ValueError: the text is not an amount of memory above 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    size = float(found[1]) * _UNITS.get(found[2].upper(), 0) if found else 0
    if size < 1:
        raise ValueError(f"{text!r} is not an amount of memory such as 20GB, 512MB or 16GiB")
    return int(size)


def written(size: float) -> str:
    """Return `1.5 GB` or `320 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
