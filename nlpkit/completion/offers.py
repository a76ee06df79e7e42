"""Finds completions from the options that the verbs declare."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nlpkit.help_page import HELP_ROW


class Offer(NamedTuple):
    """A completion and its description."""

    text: str
    about: str = ""


def offers(words: list[str], typed: str) -> Iterator[Offer]:
    """Yield the completions after `words`; the caller selects those that begin with `typed`."""
    if words[:1] == ["score"]:
        from nlpkit.completion import scores

        yield from (Offer(*offer) for offer in scores.offers(words[1:], typed))
        return
    line = _Line(words)
    name, equals, value = typed.partition("=")
    if line.waiting is not None:
        yield from _values(line, line.waiting, typed)
    elif name.startswith("--") and equals and line.option(name) is not None:
        for text, about in _values(line, line.option(name), value):
            yield Offer(f"{name}={text}", about)
    elif typed.startswith("-"):
        for option in line.options:
            yield from (Offer(name, option.help or "") for name in option.opts)
        yield from (Offer(name, HELP_ROW[1]) for name in HELP_ROW[0].split(", "))
    elif line.verbs:
        for name, verb in line.verbs.items():
            yield Offer(name, (verb.help or "").partition("\n")[0])
    elif line.argument is not None:
        yield from _values(line, line.argument, typed)


class _Line:
    """The words before the cursor: the verb, and its options and arguments so far."""

    def __init__(self, words: list[str]):
        import typer

        from nlpkit import verbs

        # The classes of commands and options are typer's or click's, depending on typer's version.
        self._command: Any = typer.main.get_command(verbs.build(words[:1]))
        self._parameters()
        self.given: dict[str, list[str]] = {}  # by metavar, or an option's long name
        self.waiting: Any = None  # the option whose value is at the cursor
        for word in words:
            self._read(word)

    def _parameters(self) -> None:
        from typer.core import TyperGroup

        parameters = self._command.params
        is_group = isinstance(self._command, TyperGroup)
        self.verbs: dict[str, Any] = self._command.commands if is_group else {}
        self.options = [one for one in parameters if one.param_type_name == "option"]
        self._arguments = [one for one in parameters if one.param_type_name == "argument"]

    def _read(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if self.waiting is not None:
            self._note(self.waiting.opts[0], word)
            self.waiting = None
        elif word.startswith("-") and word != "-":
            option = self.option(name)
            if option is None or option.is_flag:
                return
            if equals:
                self._note(option.opts[0], value)
            else:
                self.waiting = option
        elif self.verbs:
            self._command = self.verbs[word]
            self._parameters()
        elif self._arguments:
            self._note(self._arguments[0].metavar, word)
            if self._arguments[0].nargs == 1:
                del self._arguments[0]

    def _note(self, name: str, value: str) -> None:
        self.given.setdefault(name, []).append(value)

    def option(self, name: str) -> Any:
        """Return the option `name`, or None."""
        return next((option for option in self.options if name in option.opts), None)

    @property
    def argument(self) -> Any:
        """The argument at the cursor, or None."""
        return self._arguments[0] if self._arguments else None

    @property
    def recipe(self) -> str | None:
        """The recipe on the line, or the verb's default."""
        for parameter in self._command.params:
            if parameter.metavar == "RECIPE":
                return self.given.get("RECIPE", [parameter.default])[0]
        return None


def _values(line: _Line, parameter: Any, typed: str) -> Iterator[Offer]:
    """Yield the values of an option or argument, if they are known."""
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
    if name in _KNOWN:
        yield from _KNOWN[name](line, typed)


def _recipes(_line: _Line, _typed: str) -> Iterator[Offer]:
    from nlpkit import recipe

    for name, path in recipe.packaged().items():
        with open(path, encoding="utf-8") as file:
            yield Offer(name, file.readline().strip("# \n"))


def _settings(line: _Line, typed: str) -> Iterator[Offer]:
    from nlpkit.completion import settings

    for text, about in settings.offers(line.recipe, line.given.get("--set", []), typed):
        yield Offer(text, about)


def _scores(_line: _Line, typed: str) -> Iterator[Offer]:
    from nlpkit.completion import scores

    yield from (Offer(*name) for name in scores.names(typed, tools=False))


def _printed(line: _Line, typed: str) -> Iterator[Offer]:
    yield from _recipes(line, typed)
    yield Offer("schema", "the JSON schema of recipes")
    yield Offer("parts", "which objective trains which family, and every part")


def _fixed(*texts: str) -> Callable[[_Line, str], Iterator[Offer]]:
    return lambda _line, _typed: (Offer(text) for text in texts)


# By the name of an option, or the name of an argument in the help.
_KNOWN: dict[str, Callable[[_Line, str], Iterator[Offer]]] = {
    "RECIPE": _recipes,
    "NAME|schema|parts": _printed,
    "--set": _settings,
    "--grid": _settings,
    "--metrics": _scores,
    "--device": _fixed("auto", "cpu", "cuda"),
    "--resume": _fixed("auto", "never"),
}
