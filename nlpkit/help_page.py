"""A page of help, the same for every verb: how it is called, what it does, what it takes.

Plain text, on a terminal as in a pipe. Imports nothing heavy, for `nlpkit score` prints it, too.
"""

from collections.abc import Mapping, Sequence

Rows = Sequence[tuple[str, str]]
HELP_ROW = ("-h, --help", "show this help")
_WIDEST_NAME = 30


def format_page(usage: Sequence[str], about: str, sections: Mapping[str, Rows]) -> str:
    """Return the page: forms of the command, paragraphs, and per section rows of name and text.

    A paragraph with an indented line, such as a table, is kept as it is; others are filled.
    """
    import shutil

    width = max(min(shutil.get_terminal_size().columns, 80) - 2, 50)
    forms = [
        _fill(form, "Usage: " if not i else " " * 7, 11, width) for i, form in enumerate(usage)
    ]
    blocks = ["\n".join(forms)]
    blocks += [_format_paragraph(each, width) for each in about.strip("\n").split("\n\n") if each]
    for title, rows in sections.items():
        if rows:
            blocks.append(f"{title}:\n{_format_rows(rows, width)}")
    return "\n\n".join(blocks) + "\n"


def _format_paragraph(text: str, width: int) -> str:
    if "\n " in f"\n{text}":
        return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
    return _fill(text, "  ", 2, width)


def _format_rows(rows: Rows, width: int) -> str:
    """Return the rows with all texts in one column, below a name that is too long for it."""
    column = 4 + min(max(len(name) for name, _ in rows), _WIDEST_NAME)
    lines = []
    for name, text in rows:
        fits = len(name) <= column - 4
        lines += [] if fits else [f"  {name}"]
        first = f"  {name if fits else '':<{column - 2}}"
        lines.append(_fill(text, first, column, max(width, column + 20)).rstrip())
    return "\n".join(lines)


def _fill(text: str, first: str, indent: int, width: int) -> str:
    import textwrap

    wrapper = textwrap.TextWrapper(
        width, initial_indent=first, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return wrapper.fill(text) or first
