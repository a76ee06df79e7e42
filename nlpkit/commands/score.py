"""Score the lines of a file (bleu, rouge, accuracy, ...), or rank documents (bm25, tfidf).

`nlpkit score` lists them. This module and its imports must not import typer, which is slow, and
only the metrics that are named are imported: for small files, imports take most of the time.
"""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from nlpkit import registry
from nlpkit.contracts.metric import Metric, Tool, is_metric, is_tool
from nlpkit.errors import CheckFailed, OutOfMemory, UsageError
from nlpkit.plural import number_of
from nlpkit.score import output, parsing
from nlpkit.score.files import Inputs, read_inputs
from nlpkit.score.output import Result, to_json
from nlpkit.score.results import choose_references, compute_results, name_bad_lines

_FORMS = ("METRIC HYP REF... [OPTIONS]", "METRIC REF... -i HYP... [OPTIONS]", "TOOL ... [OPTIONS]")
_ABOUT = """Score files: how good are the lines of HYP, compared with the same lines of each REF?

- is stdin; files *.gz are unpacked. Several metrics at once: bleu,chrf. The second form is that of
sacrebleu, whose options all work. The score is on stdout, all else on stderr; with --fail-under X
the exit code is 6 if the score is below X.

A tool reads files of another kind. The options of a score: nlpkit score METRIC --help"""


def main(arguments: list[str]) -> None:
    """Run `nlpkit score` with these arguments; raise `NlpkitError` for what a user can mend."""
    try:
        _run(arguments)
    except MemoryError as error:
        raise OutOfMemory("out of memory: all lines of the files must fit into it") from error


def _run(arguments: list[str]) -> None:
    if not arguments:
        _say(make_overview().rstrip("\n"))
        raise UsageError("no METRIC")
    if arguments[0] in ("-h", "--help"):
        return _write(make_overview())
    names, rest = parsing.split_metrics(arguments)
    metrics: dict[str, Metric] = {}
    for name in names:
        module = parsing.load_score(name)
        if is_tool(module):
            if len(names) > 1:
                raise UsageError(f"{name} reads files of its own kind; name it alone")
            return _run_tool(name, module, rest)
        assert is_metric(module)
        metrics[name] = module
    return _run_metrics(metrics, rest)


def make_overview() -> str:
    """Return the help: how it is called, and a line for each score of the folder."""
    from nlpkit.help_page import HELP_ROW, format_page

    folder = parsing.FOLDER
    scores = [(name, registry.about(folder, name)) for name in registry.names(folder)]
    usage = [f"nlpkit score {form}" for form in _FORMS]
    return format_page(usage, _ABOUT, {"Scores": scores, "Options": [HELP_ROW]})


def _read(parser: parsing.Parser, arguments: list[str]) -> argparse.Namespace | None:
    """Return the options; print the help and return None if it is asked for."""
    if {"-h", "--help"} & {*arguments}:
        _write(parser.format_help())
        return None
    return parser.read(arguments)


def _run_tool(name: str, module: Tool, arguments: list[str]) -> None:
    found = _read(parsing.make_tool_parser(name, module), arguments)
    if found is None:
        return
    with _to_stdout():
        value = module.run(found)
    if found.fail_under is not None:
        if value is None:
            raise UsageError(f"{name}: --fail-under needs a score, and there was none")
        _check_limit([(name, value)], found.fail_under)


def _run_metrics(modules: Mapping[str, Metric], arguments: list[str]) -> None:
    found = _read(parsing.make_metric_parser(modules), arguments)
    if found is None:
        return
    _check_options(modules, found)
    fewest = max(module.REFERENCES[0] for module in modules.values())
    # A metric without references does not limit their number.
    limits = [module.REFERENCES[1] for module in modules.values()]
    most = min((m for m in limits if m), default=None if None in limits else 0)
    inputs = read_inputs(found, fewest, most, ",".join(modules))
    if (found.sentence_level or found.confidence) and len(inputs.systems) > 1:
        option = "--sentence-level" if found.sentence_level else "-ci"
        raise UsageError(f"{option} is for one system; -pbs and -par compare several")
    if (found.paired_bs or found.paired_ar) and len(inputs.systems) == 1:
        raise UsageError("a paired test needs several systems: REF... -i BASELINE SYSTEM ...")
    if found.sentence_level:
        ((name, module),) = modules.items()
        _run_sentences(name, module, inputs, found)
        return
    rows = compute_results(modules, inputs, found)
    _say_files(inputs, rows, found.quiet)
    for each in (each for row in rows for each in row):
        for warning in each.score.details.get("warnings", ()):
            _say(f"warning: {each.system}: {warning}")
    _write(_format(rows, inputs, found))
    _check_limits(rows, modules, found)


def _check_options(modules: Mapping[str, Metric], found: argparse.Namespace) -> None:
    tests = [found.confidence, found.paired_bs, found.paired_ar]
    limits = (found.fail_under, found.fail_over)
    if sum(tests) > 1:
        raise UsageError("-ci, -pbs and -par exclude each other: choose one")
    if found.sentence_level and (len(modules) > 1 or any(tests) or limits != (None, None)):
        raise UsageError("--sentence-level takes one metric, and no test or limit of its score")
    if found.json and found.score_only:
        raise UsageError("--json and --score-only exclude each other")
    falls = [module.LOWER_IS_BETTER for module in modules.values()]
    if found.fail_under is not None and all(falls):
        raise UsageError(f"{','.join(modules)}: lower is better; use --fail-over")
    if found.fail_over is not None and not any(falls):
        raise UsageError(f"{','.join(modules)}: higher is better; use --fail-under")
    for name, module in modules.items():
        if found.sentence_level and module.sentences is None:
            raise UsageError(f"{name} has no score of a single line")
        if any(tests) and None in (module.statistics, module.from_sums):
            raise UsageError(
                f"{name} is not computed from sums over lines, so it cannot be resampled"
            )


def _run_sentences(name: str, module: Metric, inputs: Inputs, found: argparse.Namespace) -> None:
    assert module.sentences is not None  # `_check_options` has checked it
    options = parsing.get_options(name, module, found)
    references = choose_references(module, inputs)
    _say_files(inputs, [], found.quiet)
    with _to_stdout(), name_bad_lines(inputs, 0):
        scores = module.sentences(inputs.systems[0], references, **options)
        for line, score in enumerate(scores, 1):
            for warning in score.details.get("warnings", ()):
                _say(f"warning: {inputs.names[0]}:{line}: {warning}")
            result = Result(name, inputs.names[0], score, score.signature)
            if found.json:
                text = to_json({"line": line} | output.to_object(result, inputs.sources, 1))
            elif found.score_only:
                text = output.format_number(result, found.width)
            else:
                text = output.format_line(result, found.width, found.short)
            sys.stdout.write(f"{text}\n")


def _format(rows: list[list[Result]], inputs: Inputs, found: argparse.Namespace) -> str:
    if found.json:
        count = len(inputs.systems[0])
        objects = [output.to_object(each, inputs.sources, count) for row in rows for each in row]
        return to_json(objects[0] if len(objects) == 1 else objects) + "\n"
    if found.score_only:
        numbers = [[output.format_number(each, found.width) for each in row] for row in rows]
        # A line each for the metrics of one system, as sacrebleu; a row each for several.
        separator = "\n" if len(rows) == 1 else "\t"
        return "".join(f"{separator.join(row)}\n" for row in numbers)
    paired = found.paired_bs or found.paired_ar
    # As in sacrebleu, the variable overrides the option.
    if (os.environ.get("SACREBLEU_FORMAT", "").lower() or found.format) == "json":
        if len(rows) > 1:
            return to_json(output.systems_to_sacrebleu(rows, found.width, paired), 4) + "\n"
        plain = [output.to_sacrebleu(each, found.width) for each in rows[0]]
        return to_json(plain[0] if len(plain) == 1 else plain, 1) + "\n"
    if len(rows) > 1:
        return f"{output.format_table(rows, found.width, found.short, paired)}\n"
    lines = [output.format_line(each, found.width, found.short) for each in rows[0]]
    return "".join(f"{line}\n" for line in output.align_equals(lines))


def _check_limits(
    rows: list[list[Result]], modules: Mapping[str, Metric], found: argparse.Namespace
) -> None:
    low: list[tuple[str, float]] = []
    high: list[tuple[str, float]] = []
    for row in rows:
        for each in row:
            name = f"{each.score.name} of {each.system}" if len(rows) > 1 else each.score.name
            falls = modules[each.metric].LOWER_IS_BETTER
            (high if falls else low).append((name, each.score.score))
    _check_limit(low, found.fail_under)
    _check_limit(high, found.fail_over, over=True)


def _check_limit(
    scores: Sequence[tuple[str, float]], limit: float | None, over: bool = False
) -> None:
    """Raise `CheckFailed` for scores below (`over`: above) the limit; undefined ones are, too."""
    if limit is None:
        return
    if wrong := [(n, v) for n, v in scores if not (v <= limit if over else v >= limit)]:
        values = [f"{name} is {'undefined' if math.isnan(v) else f'{v:.6g}'}" for name, v in wrong]
        option = f"above --fail-over {limit:g}" if over else f"below --fail-under {limit:g}"
        raise CheckFailed(f"{', '.join(values)}: {option}")


def _say_files(inputs: Inputs, rows: list[list[Result]], quiet: bool) -> None:
    """Print the names of the files, since no score shows that they are in the wrong order.

    A metric that compares lengths has their `ratio`, hypotheses by references, in its details.
    """
    sources = dict(zip(inputs.sources, inputs.references, strict=True))
    against = "" if quiet else ", ".join(map(_describe, sources, sources.values()))
    for index, (name, lines) in enumerate(zip(inputs.names, inputs.systems, strict=True)):
        found = [each.score.details.get("ratio") for each in (rows[index] if rows else ())]
        ratio = next((each for each in found if each is not None), None)
        if not quiet:
            parts = [f"hypotheses: {_describe(name, lines)}"]
            parts += [f"references: {against}"] if against else []
            parts += [] if ratio is None else [f"length ratio: {ratio:.3f}"]
            _say("; ".join(parts))
        if ratio is not None and not 0.5 <= ratio <= 2:
            text = "times as long as the references: are the files given as HYP REF...?"
            _say(f"warning: {name}: the hypotheses are {ratio:.3g} {text}")


def _describe(name: str, lines: Sequence[str]) -> str:
    blank = sum(not line.strip() for line in lines)
    return f"{name} ({number_of(len(lines), 'lines')}{f', {blank:,} blank' if blank else ''})"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed or full stderr changes no score
        sys.stderr.write(f"{text}\n")


def _write(text: str) -> None:
    with _to_stdout():
        sys.stdout.write(text)


@contextlib.contextmanager
def _to_stdout() -> Iterator[None]:
    """Flush stdout at the end, so that an error is raised here, and name stdout in it."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.filename is None:
            error.filename = "stdout"
        raise
