"""The scores of all systems by all metrics, with their intervals and tests."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from nlpkit.contracts.metric import BadLine, Metric
from nlpkit.errors import DataError
from nlpkit.json_types import JsonObject
from nlpkit.score import parsing
from nlpkit.score.files import Inputs
from nlpkit.score.output import Result


def compute_results(
    modules: Mapping[str, Metric], inputs: Inputs, found: argparse.Namespace
) -> list[list[Result]]:
    """Return a row for each system, a result in it for each metric."""
    columns = []
    for name, module in modules.items():
        options = parsing.get_options(name, module, found)
        references = choose_references(module, inputs)
        column = []
        for index, (system, lines) in enumerate(zip(inputs.names, inputs.systems, strict=True)):
            with name_bad_lines(inputs, index):
                score = module.score(lines, references, **options)
            column.append(Result(name, system, score, score.signature))
        if found.confidence or found.paired_bs or found.paired_ar:
            column = _test(column, module, options, inputs, found)
        columns.append(column)
    return [list(row) for row in zip(*columns, strict=True)]


def choose_references(module: Metric, inputs: Inputs) -> list[list[str]]:
    """Return the references; none for a metric that takes none."""
    return [] if module.REFERENCES[1] == 0 else inputs.references


def _test(
    column: list[Result],
    module: Metric,
    options: JsonObject,
    inputs: Inputs,
    found: argparse.Namespace,
) -> list[Result]:
    # Imported here, since numpy takes a tenth of a second; its random numbers are sacrebleu's.
    from functools import partial

    from nlpkit.score import significance

    assert module.statistics is not None  # `command` has checked it
    assert module.from_sums is not None
    seed = significance.read_seed()
    from_sums = partial(module.from_sums, **options)
    references = choose_references(module, inputs)
    # Of all systems at once: a column is the same class for each, whatever labels it writes.
    every = [line for lines in inputs.systems for line in lines]
    repeated = [list(each) * len(inputs.systems) for each in references]
    counted = iter(module.statistics(every, repeated, **options))
    rows = [list(islice(counted, len(lines))) for lines in inputs.systems]
    kind, test = "bs", significance.paired_bootstrap
    samples = found.confidence_n if found.confidence else found.paired_bs_n
    if found.paired_ar:
        kind, test = "ar", significance.paired_approximate_randomization
        samples = found.paired_ar_n
    tests = test(rows, from_sums, samples, seed)
    return [
        each._replace(
            signature=significance.sign(each.signature, kind, samples, seed),
            mean=tested.mean,
            half_width=tested.half_width,
            p_value=tested.p_value,
        )
        for each, tested in zip(column, tests, strict=True)
    ]


@contextmanager
def name_bad_lines(inputs: Inputs, system: int) -> Iterator[None]:
    """Turn `BadLine` into a `DataError` that names the file."""
    try:
        yield
    except BadLine as error:
        files = [inputs.names[system], *inputs.sources]
        raise DataError(f"{files[error.file]}:{error.index + 1}: {error}") from error
