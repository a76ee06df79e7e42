"""The options of `nlpkit score`: one parser for the chosen metrics, with sacrebleu's options.

If several metrics have an option of the same name, the plain name is that of the first metric in
the alphabet, and each has `--METRIC-NAME`: `--lowercase` is BLEU's and `--chrf-lowercase` chrF's,
as in sacrebleu.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

from nlpkit import registry
from nlpkit.contracts.metric import Metric, Option, Tool, is_tool
from nlpkit.errors import UsageError

FOLDER = "score/metrics"
_FORMATS = ("text", "json")
_END = "---"  # stands for --, the end of the options
_TEST_SETS = ("-l", "--language-pair", "-t", "--test-set")


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing its usage; its help looks like that of other verbs.

    `forms` are the usage lines of the help; the default is made of the arguments.
    """

    def __init__(self, prog: str, abouts: Sequence[str | None] = (), forms: Sequence[str] = ()):
        super().__init__(prog=prog, usage="", formatter_class=_Unused)
        self._abouts, self._forms = abouts, forms
        self.add_argument(_END, dest="end", action="store_true", help=argparse.SUPPRESS)

    def format_help(self) -> str:
        from nlpkit.score.help_rows import make_help  # no score needs what it imports

        return make_help(self, self._abouts, self._forms)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        # Long names may be shortened (--tok), but -l en-de must not be read as -lc.
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
            if given in _TEST_SETS:
                self.error(
                    f"no option {given}: test sets of sacrebleu are not downloaded; give the "
                    "references as files, and --tokenize zh for Chinese"
                )
            known = list(self._option_string_actions)
            # Compared without the dashes that all have: --index is not near --fail-under.
            is_near = registry.suggest(given.lstrip("-"), [each.lstrip("-") for each in known])
            self.error(f"no option {given}{registry.suggest(given, known) if is_near else ''}")
        return found


class _Unused(argparse.HelpFormatter):
    """Formats nothing; argparse makes one for each option, and the default imports shutil."""

    def __init__(self, prog: str):
        super().__init__(prog, width=80)


def mark_end(arguments: list[str]) -> list[str]:
    """Return the arguments; what stands after `--` begins as no option does.

    argparse would give `-i HYP -- REF` a second system.
    """
    if "--" not in arguments:
        return arguments
    at = arguments.index("--")
    files = [
        f"./{name}" if name[:1] == "-" and name != "-" else name for name in arguments[at + 1 :]
    ]
    return [*arguments[:at], _END, *files] if at else files


def split_metrics(arguments: list[str]) -> tuple[list[str], list[str]]:
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
            if is_tool(load_score(name)):
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


def load_score(name: str) -> Metric | Tool:
    """Return the score's module; raise `UsageError` with the nearest name for an unknown one."""
    if name not in registry.names(FOLDER) and os.path.isfile(name):
        raise UsageError(f"{name} is a file; METRIC comes first: nlpkit score METRIC HYP REF...")
    try:
        return cast("Metric | Tool", registry.load(FOLDER, name))
    except UsageError as error:
        raise UsageError(f"{error} (nlpkit score METRIC HYP REF...)") from error


def _add_metrics(parser: argparse._ActionsContainer) -> None:
    text = "several metrics, as sacrebleu takes them; printed in alphabetical order"
    parser.add_argument("-m", "--metrics", nargs="+", metavar="METRIC", help=text)


def make_tool_parser(name: str, module: Tool) -> Parser:
    """Return a parser for a tool, which adds arguments of its own."""
    parser = Parser(f"nlpkit score {name}", [module.__doc__])
    module.add_arguments(parser)
    _add_limit(parser)
    _add_traceback(parser)
    return parser


def make_metric_parser(modules: Mapping[str, Metric]) -> Parser:
    """Return a parser for these metrics; what it reads for `Option` o of m is called `m:o`."""
    prog = f"nlpkit score {','.join(modules)}"
    forms = ("HYP REF... [OPTIONS]", "REF... -i HYP... [OPTIONS]")
    parser = Parser(prog, [module.__doc__ for module in modules.values()], forms)
    _add_files(parser)
    _add_output(parser.add_argument_group("output"))
    _add_significance(parser.add_argument_group("significance (95 %)"))
    _add_traceback(parser)
    taken = set(parser._option_string_actions)
    for name in sorted(modules):
        group = parser.add_argument_group(f"options of {name}")
        for option in modules[name].OPTIONS:
            _add_option(group, name, option, taken)
    return parser


def get_options(name: str, module: Metric, found: argparse.Namespace) -> dict[str, Any]:
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
            text += f" [default: {str(option.default).replace('%', '%%')}]"
    # The short and the plain name first, as they are in the help.
    group.add_argument(*sorted(flags, key=len), help=text, **settings)


def _add_files(parser: Parser) -> None:
    text = "HYP REF...; line i of one belongs to line i of the others; - is stdin"
    parser.add_argument("files", nargs="*", metavar="FILE", help=text)
    group = parser.add_argument_group("files")
    group.add_argument(
        "-i", "--input", nargs="+", metavar="HYP",
        help="one or several systems; then all other files are references, and stand before -i",
    )  # fmt: skip
    group.add_argument(
        "-nr", "--num-refs", type=_at_least(1), default=1, metavar="N",
        help="each line of the one REF has N references between tabs",
    )  # fmt: skip
    group.add_argument(
        "-e", "--encoding", default="utf-8", metavar="NAME", help="of all files [default: utf-8]"
    )
    _add_metrics(group)


def _add_output(group: argparse._ArgumentGroup) -> None:
    def switch(short: str, name: str, text: str) -> None:
        group.add_argument(*filter(None, (short, name)), action="store_true", help=text)

    switch("-b", "--score-only", "print the number alone")
    group.add_argument(
        "-w", "--width", type=_at_least(0), metavar="N",
        help="decimals [default: 1, or 4 for a score that is not 0-100]",
    )  # fmt: skip
    group.add_argument(
        "-f", "--format", choices=_FORMATS, default="text",
        help="json: sacrebleu's keys, the score rounded [default: text, or $SACREBLEU_FORMAT]",
    )  # fmt: skip
    switch("", "--json", "the unrounded score, signature, files, counts and details as JSON")
    switch("-sl", "--sentence-level", "a score for each line")
    switch("-sh", "--short", "a short signature")
    switch("-q", "--quiet", "only warnings and errors on stderr")
    _add_limit(group)
    text = "exit code 6 if an error rate (wer, ter, ...) is above X"
    group.add_argument("--fail-over", type=_limit, metavar="X", help=text)
    # sacrebleu's; nothing here has colour.
    group.add_argument("-nc", "--no-color", action="store_true", help=argparse.SUPPRESS)


def _add_limit(group: argparse._ActionsContainer) -> None:
    """Add the limit that metrics and tools have."""
    text = "exit code 6 if a score is below X, or undefined"
    group.add_argument("--fail-under", type=_limit, metavar="X", help=text)


def _limit(text: str) -> float:
    value = float(text)
    if value != value:
        raise argparse.ArgumentTypeError("nan is not a limit; give a number")
    return value


_limit.__name__ = "number"


def _add_traceback(parser: Parser) -> None:
    """Add the option that `nlpkit.cli` reads, for any verb."""
    text = "show where an error was raised"
    parser.add_argument("--traceback", action="store_true", help=text)


def _add_significance(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-ci", "--confidence", action="store_true", help="print an interval, by bootstrap"
    )
    pair = group.add_mutually_exclusive_group()
    text = "compare each system with the first, by paired bootstrap"
    pair.add_argument("-pbs", "--paired-bs", action="store_true", help=text)
    text = "the same, by paired approximate randomization"
    pair.add_argument("-par", "--paired-ar", action="store_true", help=text)
    for short, name, of, default in (
        ("-cin", "--confidence-n", "-ci", 1000),
        ("-pbsn", "--paired-bs-n", "-pbs", 1000),
        ("-parn", "--paired-ar-n", "-par", 10000),
    ):
        text = f"samples of {of}; the seed is $SACREBLEU_SEED or 12345 [default: {default}]"
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


def choose_format(environment: Mapping[str, str], given: str) -> str:
    """Return the format: as in sacrebleu, SACREBLEU_FORMAT overrides the option."""
    override = environment.get("SACREBLEU_FORMAT", "").lower()
    return override if override in _FORMATS else given


def is_help(arguments: Iterable[str]) -> bool:
    """Return whether the arguments contain a help option."""
    return any(argument in ("-h", "--help") for argument in arguments)
