"""The options of `nlpkit score`: one parser for the chosen metrics, with sacrebleu's options.

If several metrics have an option of the same name, the plain name is that of the first metric in
the alphabet, and each has `--METRIC-NAME`: `--lowercase` is BLEU's and `--chrf-lowercase` chrF's,
as in sacrebleu.
"""

import argparse
import os
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from nlpkit import registry
from nlpkit.contracts.metric import Metric, Option, Tool, is_tool
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject

FOLDER = "score/metrics"
_METRICS = "-m --metrics"
_TEST_SETS = {"-l", "--language-pair", "-t", "--test-set"}


def integer(text: str) -> int:
    """Return a whole number of 0 or more; its name is in argparse's message."""
    if not text.isdecimal() or len(text) > 9:
        raise ValueError
    return int(text)


_SEED = "the seed is $SACREBLEU_SEED or 12345"
# Group -> options of every metric: the names, the value (none: a switch), the default, the help.
_OPTIONS: dict[str, tuple[tuple[str, dict[str, Any], str], ...]] = {
    "files": (
        ("-i --input", {"nargs": "+", "metavar": "HYP"},
         "one or several systems; then all other files are references, and stand before -i"),
        ("-nr --num-refs", {"type": integer, "default": 1, "metavar": "N"},
         "each line of the one REF has N references between tabs"),
        ("-e --encoding", {"default": "utf-8", "metavar": "NAME"}, "of all files [default: utf-8]"),
        (_METRICS, {"nargs": "+", "metavar": "METRIC"},
         "several metrics, as sacrebleu takes them; printed in alphabetical order"),
    ),
    "output": (
        ("-b --score-only", {}, "print the number alone"),
        ("-w --width", {"type": integer, "metavar": "N"},
         "decimals [default: 1, or 4 for a score that is not 0-100]"),
        ("-f --format", {"choices": ("text", "json"), "default": "text"},
         "json: sacrebleu's keys, the score rounded [default: text, or $SACREBLEU_FORMAT]"),
        ("--json", {}, "the unrounded score, signature, files, counts and details as JSON"),
        ("-sl --sentence-level", {}, "a score for each line"),
        ("-sh --short", {}, "a short signature"),
        ("-q --quiet", {}, "only warnings and errors on stderr"),
        ("--fail-over", {"type": float, "metavar": "X"},
         "exit code 6 if an error rate (wer, ter, ...) is above X"),
        ("-nc --no-color", {}, argparse.SUPPRESS),  # sacrebleu's; nothing here has colour
    ),
    "significance (95 %)": (
        ("-ci --confidence", {}, "print an interval, by bootstrap"),
        ("-pbs --paired-bs", {}, "compare each system with the first, by paired bootstrap"),
        ("-par --paired-ar", {}, "the same, by paired approximate randomization"),
        ("-cin --confidence-n", {"type": integer, "default": 1000, "metavar": "N"},
         f"samples of -ci; {_SEED} [default: 1000]"),
        ("-pbsn --paired-bs-n", {"type": integer, "default": 1000, "metavar": "N"},
         f"samples of -pbs; {_SEED} [default: 1000]"),
        ("-parn --paired-ar-n", {"type": integer, "default": 10000, "metavar": "N"},
         f"samples of -par; {_SEED} [default: 10000]"),
        # sacrebleu's; one process is enough here.
        ("-j --paired-jobs", {"type": integer}, argparse.SUPPRESS),
    ),
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing its usage; has the options of metrics and tools."""

    def __init__(self, prog: str, about: str = "", usage: str | None = None):
        super().__init__(prog=prog, description=about, usage=usage, formatter_class=_Formatter)

    def add_shared(self, has_score: bool = True) -> None:
        """Add the options that metrics and tools have; `--fail-under` where there is a score."""
        self.set_defaults(fail_under=None)
        if has_score:
            text = "exit code 6 if a score is below X"
            self.add_argument("--fail-under", type=float, metavar="X", help=text)
        # `nlpkit.cli` reads it, for any verb.
        text = "show where an error was raised"
        self.add_argument("--traceback", action="store_true", help=text)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """Return the options; raise `UsageError` with the nearest option for an unknown one."""
        for given in sorted(_TEST_SETS & {*arguments}):
            what = "test sets of sacrebleu are not downloaded; give the references as files"
            self.error(f"no option {given}: {what}, and --tokenize zh for Chinese")
        found, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            given = unknown[0].partition("=")[0]
            if not given.startswith("-"):
                self.error(f"{unknown[0]}: one file too many")
            known = list(self._option_string_actions)
            # Compared without the dashes that all have: --index is not near --fail-under.
            is_near = registry.suggest(given.lstrip("-"), [each.lstrip("-") for each in known])
            self.error(f"no option {given}{registry.suggest(given, known) if is_near else ''}")
        return found


class _Formatter(argparse.HelpFormatter):
    """Writes the names of an option once, without those that begin with its metric.

    No line is wider than the terminal, but for a word that is.
    """

    def __init__(self, prog: str):
        # argparse makes one for each option, and would import shutil for the width.
        columns = os.environ.get("COLUMNS", "")
        super().__init__(prog, width=max(int(columns) if columns.isdecimal() else 80, 32) - 2)

    def _format_usage(self, *given: Any) -> str:
        from nlpkit.help_page import fill_row

        usage, actions, groups, _ = given
        lines = super()._format_usage(usage, actions, groups, "Usage: ").splitlines()
        return "\n".join(fill_row(line, self._width) for line in lines) + "\n"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from nlpkit.help_page import format_text

        return format_text(text, indent, width)

    def _format_action(self, action: argparse.Action) -> str:
        name, end, text = super()._format_action(action).partition("\n")
        if len(name) > self._width:
            from nlpkit.help_page import fill_row

            name = fill_row(name.replace(",", ", ").replace(",  ", ", "), self._width)
        return f"{name}{end}{text}"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        prefix = f"--{action.dest.partition(':')[0].rpartition('.')[2]}-"
        names = [name for name in action.option_strings if not name.startswith(prefix)]
        value = self._format_args(action, action.dest.rpartition(":")[2].upper())
        return " ".join(filter(None, [", ".join(names or action.option_strings), value]))


def split_metrics(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the chosen scores and the other arguments: METRIC comes first, or `-m` names it.

    `-m bleu chrf` wins over METRIC, and sorts them, both as sacrebleu does. Raise `UsageError` for
    a name twice.
    """
    names: list[str] = []
    if arguments and not arguments[0].startswith("-"):
        names, arguments = arguments[0].split(","), arguments[1:]
        # A tool's options are its own: `-m` of `ir` names measures.
        if any(is_tool(load_score(name)) for name in names):
            return names, arguments
    if any(argument.startswith(("-m", "--m")) for argument in arguments):
        parser = Parser("nlpkit score")
        parser.add_argument(*_METRICS.split(), nargs="+")
        listed = parser.parse_known_args([a for a in arguments if a not in ("-h", "--help")])[0]
        if listed.metrics:
            names = sorted(name for each in listed.metrics for name in each.split(","))
    if not names:
        raise UsageError("METRIC comes first: nlpkit score METRIC HYP REF... (nlpkit score --help)")
    if twice := [name for name in names if names.count(name) > 1]:
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


def make_tool_parser(name: str, module: Tool) -> Parser:
    """Return a parser for a tool, which adds arguments of its own."""
    parser = Parser(f"nlpkit score {name}", module.__doc__ or "")
    module.add_arguments(parser)
    parser.add_shared(module.HAS_SCORE)
    forms = {"+": "{}...", "?": "[{}]"}
    given = parser._get_positional_actions()
    files = [forms.get(str(each.nargs), "{}").format(each.metavar) for each in given]
    parser.usage = " ".join(["%(prog)s", *files, "[OPTIONS]"])
    return parser


def make_metric_parser(modules: Mapping[str, Metric]) -> Parser:
    """Return a parser for these metrics; what it reads for `Option` o of m is called `m:o`."""
    usage = "%(prog)s HYP REF... [OPTIONS]\n       %(prog)s REF... -i HYP... [OPTIONS]"
    if not any(module.REFERENCES[0] for module in modules.values()):
        takes_one = any(module.REFERENCES[1] != 0 for module in modules.values())
        usage = f"%(prog)s HYP{' [REF]' if takes_one else ''} [OPTIONS]"
    about = "\n\n".join(module.__doc__ or "" for module in modules.values())
    parser = Parser(f"nlpkit score {','.join(modules)}", about, usage)
    text = "HYP REF...; line i of one belongs to line i of the others; - is stdin"
    parser.add_argument("files", nargs="*", metavar="FILE", help=text)
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for names, settings, text in options:
            group.add_argument(*names.split(), help=text, **(settings or {"action": "store_true"}))
    parser.add_shared()
    taken = set(parser._option_string_actions)
    for name in sorted(modules):
        group = parser.add_argument_group(f"options of {name}")
        for option in modules[name].OPTIONS:
            _add_option(group, name, option, taken)
    return parser


def get_options(name: str, module: Metric, found: argparse.Namespace) -> JsonObject:
    """Return the keyword arguments of a metric's `score`."""
    return {option.name: vars(found)[f"{name}:{option.name}"] for option in module.OPTIONS}


def _add_option(
    group: argparse._ArgumentGroup, metric: str, option: Option, taken: set[str]
) -> None:
    dashed = option.name.replace("_", "-")
    prefix = metric.rpartition(".")[2]
    own = dashed.removeprefix(f"{prefix}-")
    names = dict.fromkeys((*option.flags, f"--{dashed}", f"--{prefix}-{own}"))
    # Two metrics of one's own may have the same last name.
    flags = [name for name in names if name not in taken] or [f"--{metric}-{own}"]
    taken.update(flags)
    text = option.help.replace("%", "%%")
    settings: dict[str, Any] = {"dest": f"{metric}:{option.name}", "default": option.default}
    if option.type is bool:
        settings["action"] = argparse.BooleanOptionalAction if option.default else "store_true"
    else:
        settings |= {"type": option.type, "choices": option.choices}
        settings["metavar"] = option.metavar or (None if option.choices else option.name.upper())
        if option.default is not None:
            text += f" [default: {str(option.default).replace('%', '%%')}]"
    # The short and the plain name first, as they are in the help.
    group.add_argument(*sorted(flags, key=len), help=text, **settings)
