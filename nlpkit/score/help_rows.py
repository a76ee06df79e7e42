"""The help of a score: arguments and options in the rows of `nlpkit.help_page`."""

import argparse
from collections.abc import Sequence
from inspect import cleandoc

from nlpkit.help_page import HELP_ROW, format_page

_TITLES = {"positional arguments": "Arguments", "options": "Options"}
_FEW = 24  # letters of choices that fit beside an option's name


def make_help(
    parser: argparse.ArgumentParser, abouts: Sequence[str | None], forms: Sequence[str]
) -> str:
    """Return the help page; `forms` follow the name of the program in the usage lines."""
    sections: dict[str, list[tuple[str, str]]] = {}
    arguments: list[str] = []
    for group in parser._action_groups:
        name = group.title or ""
        title = _TITLES.get(name, name[:1].upper() + name[1:])
        for action in group._group_actions:
            if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
                continue
            if not action.option_strings:
                value = _value(action)
                arguments.append(f"[{value}]" if action.nargs == "?" else value)
            sections.setdefault(title, []).append(_row(parser, action))
    options = sections.pop("Options", [])
    ordered = {"Arguments": sections.pop("Arguments", []), **sections}
    forms = forms or [" ".join([*arguments, "[OPTIONS]"])]
    usage = [f"{parser.prog} {form}" for form in forms]
    about = "\n\n".join(cleandoc(each or "") for each in abouts)
    return format_page(usage, about, ordered | {"Options": [*options, HELP_ROW]})


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str]:
    """Return the names of the option or argument, and its description."""
    text = (action.help or "") % {"prog": parser.prog}
    value = _value(action)
    if action.choices and not _choices(action):
        text += f"{'; ' if text else ''}one of {', '.join(map(str, action.choices))}"
    return " ".join(filter(None, [", ".join(_names(action)), value])), text


def _names(action: argparse.Action) -> list[str]:
    """Return the option's names, without those that differ in the metric's name before them."""
    names = list(action.option_strings)
    prefix = f"--{action.dest.partition(':')[0].rpartition('.')[2]}-"
    plain = [name for name in names if not name.startswith(prefix)]
    return plain if any(name.startswith("--") for name in plain) else names


def _value(action: argparse.Action) -> str:
    """Return the name of the value; empty for a switch."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    name = action.metavar or _choices(action) or action.dest.rpartition(":")[2].upper()
    return f"{name}..." if action.nargs in ("+", "*") else name


def _choices(action: argparse.Action) -> str:
    """Return the choices as a value's name if they are few, else nothing."""
    written = f"<{'|'.join(map(str, action.choices or ()))}>"
    return written if 2 < len(written) <= _FEW else ""
