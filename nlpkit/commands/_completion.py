"""Answers the script of a shell that asks what can follow on a command line."""

import importlib
import re
from collections.abc import Mapping

import typer

from nlpkit.completion import list_scores
from nlpkit.verbs import WRONG_USAGE, build

_CLICK = WRONG_USAGE.__module__.removesuffix(".exceptions")
_COMPLETE = "_NLPKIT_COMPLETE"


def complete(environment: Mapping[str, str]) -> str:
    """Return the completions of a command line for the script of a shell, one per line.

    `_NLPKIT_COMPLETE` is complete_SHELL, COMP_WORDS has the words of the command line, one per
    line, COMP_CWORD the index of the word at the cursor. For zsh and fish a tab and a description
    follow. If it is empty, the shell completes file names.
    """
    words = environment["COMP_WORDS"].split("\n")[1 : int(environment["COMP_CWORD"]) + 1]
    typed = words.pop()
    # bash has `=` as a word of its own; what is behind it is not completed.
    offers = [] if "=" in (typed, *words[-1:]) else _list_offers(words, typed)
    offers = [(value, about) for value, about in offers if value.startswith(typed)]
    if environment[_COMPLETE] == "complete_bash":
        return "".join(f"{value}\n" for value, _ in offers)
    return "".join(f"{value}\t{about}\n" for value, about in offers)


def _list_offers(words: list[str], typed: str) -> list[tuple[str, str]]:
    """Return the completions of the word that is `typed` after `words`, with descriptions."""
    if words == ["score"] or (words[:1] == ["score"] and words[-1] in ("-m", "--metrics")):
        return list_scores(typed)
    if words and re.fullmatch("--[^=]+", words[-1]):
        # click reads nothing of a line that ends in an option without its value.
        typed = f"{words.pop()}={typed}"
    app = typer.main.get_command(build(words[:1]))
    base = importlib.import_module(f"{_CLICK}.shell_completion").ShellComplete
    # What a script of click's own would need.
    unused = dict.fromkeys(("source_vars", "get_completion_args", "format_completion"))
    shell = type("Shell", (base,), unused)(app, {}, "nlpkit", _COMPLETE)
    found = shell.get_completions(words, typed)
    return [(each.value, (each.help or "").partition("\n")[0]) for each in found]
