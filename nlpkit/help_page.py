"""A page of help, the same for every verb: how it is called, what it does, what it takes.

Plain text, on a terminal as in a pipe. Imports nothing heavy, for `nlpkit score` prints it, too.
"""

from collections.abc import Mapping, Sequence

Rows = Sequence[tuple[str, str]]
HELP_ROW = ("-h, --help", "show this help")
_WIDEST_NAME = 30


def format_page(usage: Sequence[str], about: str, sections: Mapping[str, Rows]) -> str:
    """Return the page: forms of the command, paragraphs, and per section rows of name and text.

    Lines of a paragraph that are indented, such as those of a table, stay lines of their own.
    """
    import shutil

    width = max(min(shutil.get_terminal_size().columns, 80) - 2, 30)
    forms = [
        _fill(form, "Usage: " if not i else " " * 7, 11, width) for i, form in enumerate(usage)
    ]
    blocks = ["\n".join(forms), format_text(about, "  ", width)]
    for title, rows in sections.items():
        if rows:
            blocks.append(f"{title}:\n{_format_rows(rows, width)}")
    return "\n\n".join(blocks) + "\n"


def format_text(text: str, indent: str, width: int) -> str:
    """Return the paragraphs, filled; lines that are indented stay lines of their own."""
    lines: list[str] = []
    for line in text.strip("\n").splitlines():
        if line[:1].strip() and lines and lines[-1][:1].strip():
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(
        _fill(line, indent, len(indent), width).rstrip()
        if line[:1].strip()
        else fill_row(f"{indent}{line}".rstrip(), width)
        for line in lines
    )


def fill_row(line: str, width: int) -> str:
    """Return the row of a table; what is too long goes on below its second column."""
    if len(line) <= width:
        return line
    text = line.lstrip()
    indent = len(line) - len(text)
    _, gap, rest = text.partition("  ")
    column = len(line) - len(rest.lstrip())
    return _fill(text, line[:indent], column if gap and column < 20 else indent + 2, width)


def _format_rows(rows: Rows, width: int) -> str:
    """Return the rows with all texts in one column, below a name that is too long for it."""
    column = 4 + min(max(len(name) for name, _ in rows), _WIDEST_NAME, max(width - 28, 4))
    lines = []
    for name, text in rows:
        fits = len(name) <= column - 4
        lines += [] if fits else [f"  {name}"]
        first = f"  {name if fits else '':<{column - 2}}"
        lines.append(_fill(text, first, column, width).rstrip())
    return "\n".join(lines)


def _fill(text: str, first: str, indent: int, width: int) -> str:
    import textwrap

    wrapper = textwrap.TextWrapper(
        width, initial_indent=first, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return wrapper.fill(text) or first
