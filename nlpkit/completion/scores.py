"""Finds completions for `nlpkit score` from its parsers."""

import argparse
from collections.abc import Iterator

from nlpkit import registry
from nlpkit.contracts.metric import is_metric, is_tool
from nlpkit.score import parsing

_FIRST = [("--help", "show the help"), ("-m", "several metrics"), ("--metrics", "several metrics")]


def list_offers(words: list[str], typed: str) -> Iterator[tuple[str, str]]:
    """Yield the completions after `words` of `nlpkit score`, with descriptions."""
    if not words:
        yield from _FIRST if typed.startswith("-") else list_names(typed, tools=True)
        return
    last = next((word for word in reversed(words) if word.startswith("-")), "")
    if last in ("-m", "--metrics") and not _is_tool(words[0]) and not typed.startswith("-"):
        yield from list_names(typed, tools=False)
        return
    chosen, rest = parsing.split_metrics(words)
    modules = {name: parsing.load_score(name) for name in chosen}
    first = modules[chosen[0]]
    parser = (
        parsing.make_tool_parser(chosen[0], first)
        if is_tool(first)
        else parsing.make_metric_parser(
            {name: one for name, one in modules.items() if is_metric(one)}
        )
    )
    name, equals, _ = typed.partition("=")
    if name.startswith("--") and equals:
        for choice in _list_choices(parser, [name]):
            yield f"{name}={choice}", ""
    elif typed.startswith("-"):
        yield from _list_options(parser)
    else:
        yield from ((choice, "") for choice in _list_choices(parser, rest[-1:]))


def list_names(typed: str, *, tools: bool) -> Iterator[tuple[str, str]]:
    """Yield the names of scores, each after the comma-separated names that are already typed."""
    before = typed.rpartition(",")[0]
    for name in registry.names(parsing.FOLDER):
        if name in before.split(",") or ((before or not tools) and _is_tool(name)):
            continue
        yield f"{before},{name}" if before else name, registry.about(parsing.FOLDER, name)


def _is_tool(name: str) -> bool:
    names = registry.names(parsing.FOLDER)
    return name in names and is_tool(parsing.load_score(name))


def _list_options(parser: parsing.Parser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            text = (action.help or "").replace("%%", "%")
            yield from ((name, text) for name in action.option_strings)


def _list_choices(parser: parsing.Parser, words: list[str]) -> list[str]:
    """Return the choices of the option `words[0]`, if it has any."""
    action = parser._option_string_actions.get(words[0]) if words else None
    return [str(choice) for choice in (action.choices or ())] if action is not None else []
