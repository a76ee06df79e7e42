"""Tables of text: columns of equal width, or Markdown."""

from collections.abc import Iterable, Sequence

# For `str.translate`: what would end a line or a cell, and the backslash.
ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = True) -> list[str]:
    """Return rows as lines: the first column to the left, the others to the right if numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if numbers:
            cells[1:] = [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def markdown(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
