"""What `nlpkit score` can be asked: one parser for the chosen metrics, with sacrebleu's options.

Of several metrics that share an option, the plain name is that of the first in the alphabet, and
`--METRIC-NAME` is everyone's: BLEU has `--lowercase` and chrF `--chrf-lowercase`, as in sacrebleu.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NoReturn

from nlpkit import registry
from nlpkit.errors import UsageError
from nlpkit.score.contract import Option

_FORMATS = ("text", "json")


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` where argparse would print its usage; long help from docstrings."""

    def __init__(self, prog: str, about: str | None = None, usage: str = "%(prog)s [options]"):
        super().__init__(prog=prog, usage=usage, formatter_class=_Help)
        self._about = about

    def format_help(self) -> str:
        from inspect import cleandoc  # slow to import, and no score needs it

        self.description = self._about and cleandoc(self._about)
        return super().format_help()

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        # Long names may be cut (--tok), but sacrebleu's -l en-de must not be taken for -lc.
        found = super()._get_option_tuples(option_string)
        is_long = option_string.startswith("--")
        return [each for each in found if is_long or len(each[1]) <= len(option_string)]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """Return the options; raise `UsageError` with the nearest option for an unknown one."""
        found, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            given = unknown[0].partition("=")[0]
            near = registry.suggest(given, self._option_string_actions)
            self.error(f"no option {given}{near}")
        return found


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        # argparse would import shutil to find it out, for every option that is added.
        super().__init__(prog, max_help_position=32, width=_columns() - 2)


def _columns() -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def metric_names(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the chosen scores and the other arguments: METRIC comes first, or `-m` names it.

    `-m bleu chrf` wins over METRIC, and sorts them, both as sacrebleu does. Raise `UsageError` for
    a name twice.
    """
    names: list[str] = []
    if arguments and not arguments[0].startswith("-"):
        names = arguments[0].split(",")
        arguments = arguments[1:]
        for name in names:
            # A tool's options are its own: `-m` of `ir` names measures.
            if is_tool(module_of(name)):
                return names, arguments
    if any(argument.startswith(("-m", "--m")) for argument in arguments):
        parser = Parser("nlpkit score")
        _add_metrics(parser)
        listed = parser.parse_known_args([a for a in arguments if a not in ("-h", "--help")])[0]
        if listed.metrics:
            names = sorted(name for each in listed.metrics for name in each.split(","))
    if not names:
        raise UsageError("METRIC comes first: nlpkit score METRIC HYP REF... (nlpkit score --help)")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"{twice[0]}: given twice")
    return names, arguments


def is_tool(module: ModuleType) -> bool:
    """Return whether a score reads files of its own kind, with arguments of its own."""
    return "run" in vars(module)


def module_of(name: str) -> ModuleType:
    """Return the score's module; raise `UsageError` with the nearest name for an unknown one."""
    if name not in registry.names("score/metrics") and os.path.isfile(name):
        raise UsageError(f"{name} is a file; METRIC comes first: nlpkit score METRIC HYP REF...")
    try:
        return registry.load("score/metrics", name)
    except UsageError as error:
        raise UsageError(f"{error} (nlpkit score METRIC HYP REF...)") from error


def _add_metrics(parser: argparse._ActionsContainer) -> None:
    text = "several metrics, as sacrebleu takes them; printed in the order of the alphabet"
    parser.add_argument("-m", "--metrics", nargs="+", metavar="METRIC", help=text)


def for_metrics(modules: Mapping[str, ModuleType]) -> Parser:
    """Return a parser for these metrics; what it reads for `Option` o of m is called `m:o`."""
    prog = f"nlpkit score {','.join(modules)}"
    usage = f"{prog} HYP REF... [options]\n       {prog} REF... -i HYP [HYP ...] [options]"
    parser = Parser(prog, "\n".join(module.__doc__ or "" for module in modules.values()), usage)
    _add_files(parser)
    _add_output(parser.add_argument_group("output"))
    _add_significance(parser.add_argument_group("significance (95 %)"))
    taken = set(parser._option_string_actions)
    for name in sorted(modules):
        group = parser.add_argument_group(f"options of {name}")
        for option in modules[name].OPTIONS:
            _add_option(group, name, option, taken)
    return parser


def options_of(name: str, module: ModuleType, found: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of a metric's `score`."""
    return {option.name: vars(found)[f"{name}:{option.name}"] for option in module.OPTIONS}


def _add_option(
    group: argparse._ArgumentGroup, metric: str, option: Option, taken: set[str]
) -> None:
    dashed = option.name.replace("_", "-")
    prefix = metric.rpartition(".")[2]
    own = dashed.removeprefix(f"{prefix}-")
    flags = [f for f in (*option.flags, f"--{dashed}", f"--{prefix}-{own}") if f not in taken]
    # Two metrics of one's own may have the same last name.
    flags = list(dict.fromkeys(flags)) or [f"--{metric}-{own}"]
    taken.update(flags)
    text = option.help.replace("%", "%%")
    settings: dict[str, Any] = {"dest": f"{metric}:{option.name}", "default": option.default}
    if option.type is bool:
        settings["action"] = "store_false" if option.default else "store_true"
        if option.default:
            flags = [f.replace("--", "--no-", 1) for f in flags if f.startswith("--")]
    else:
        settings |= {"type": option.type, "choices": option.choices}
        settings["metavar"] = option.metavar or (None if option.choices else option.name.upper())
        if option.default is not None:
            text += f" (default: {str(option.default).replace('%', '%%')})"
    # The short and the plain name first, as they are in the help.
    group.add_argument(*sorted(flags, key=len), help=text, **settings)


def _add_files(parser: Parser) -> None:
    group = parser.add_argument_group("files")
    group.add_argument(
        "files", nargs="*", metavar="FILE", help="HYP REF..., a line each; - is stdin"
    )
    group.add_argument(
        "-i", "--input", nargs="+", metavar="HYP",
        help="one or several systems; all other files are references then, and stand before it",
    )  # fmt: skip
    group.add_argument(
        "-nr", "--num-refs", type=_at_least(1), default=1, metavar="N",
        help="each line of the one REF has N references between tabs",
    )  # fmt: skip
    group.add_argument(
        "-e", "--encoding", default="utf-8", metavar="NAME", help="of all files (default: utf-8)"
    )
    _add_metrics(group)


def _add_output(group: argparse._ArgumentGroup) -> None:
    def switch(short: str, name: str, text: str) -> None:
        group.add_argument(*filter(None, (short, name)), action="store_true", help=text)

    switch("-b", "--score-only", "print the number alone")
    group.add_argument(
        "-w", "--width", type=_at_least(0), metavar="N",
        help="decimals (default: 1, or 4 of a score that is not 0-100)",
    )  # fmt: skip
    group.add_argument(
        "-f", "--format", choices=_FORMATS, default="text",
        help="json: sacrebleu's keys, the score rounded (default: text, or $SACREBLEU_FORMAT)",
    )  # fmt: skip
    switch("", "--json", "the unrounded score, signature, files, counts and details as JSON")
    switch("-sl", "--sentence-level", "a score for each line")
    switch("-sh", "--short", "a short signature")
    switch("-q", "--quiet", "only warnings and errors on stderr")
    add_shared(group)
    text = "the same for an error rate (wer, ter ...) above X"
    group.add_argument("--fail-over", type=float, metavar="X", help=text)
    # sacrebleu's; nothing here has colour.
    group.add_argument("-nc", "--no-color", action="store_true", help=argparse.SUPPRESS)


def add_shared(group: argparse._ActionsContainer) -> None:
    """Add what metrics and tools share."""
    text = "exit code 6 if a score is below X, or undefined"
    group.add_argument("--fail-under", type=float, metavar="X", help=text)
    # Read by nlpkit.cli.
    text = "show where an error was raised"
    group.add_argument("--traceback", action="store_true", help=text)


def _add_significance(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-ci", "--confidence", action="store_true", help="interval, by bootstrap")
    pair = group.add_mutually_exclusive_group()
    text = "compare each system with the first: paired bootstrap"
    pair.add_argument("-pbs", "--paired-bs", action="store_true", help=text)
    text = "the same by paired approximate randomization"
    pair.add_argument("-par", "--paired-ar", action="store_true", help=text)
    for short, name, default in (
        ("-cin", "--confidence-n", 1000),
        ("-pbsn", "--paired-bs-n", 1000),
        ("-parn", "--paired-ar-n", 10000),
    ):
        text = f"its samples (default: {default}); the seed is $SACREBLEU_SEED or 12345"
        group.add_argument(short, name, type=_at_least(2), default=default, metavar="N", help=text)
    # sacrebleu's: one process is enough here.
    group.add_argument("-j", "--paired-jobs", type=int, help=argparse.SUPPRESS)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    number.__name__ = "integer"
    return number


def format_from(environment: Mapping[str, str], given: str) -> str:
    """Return the format: sacrebleu lets SACREBLEU_FORMAT win over the option."""
    wished = environment.get("SACREBLEU_FORMAT", "").lower()
    return wished if wished in _FORMATS else given


def is_help(arguments: Iterable[str]) -> bool:
    """Return whether help is asked for."""
    return any(argument in ("-h", "--help") for argument in arguments)
