"""Answers rows that have no labels: each gets a valid one, which nothing that is reported reads."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from nlpkit.contracts.abilities import AnswersUnlabelled, Generative
from nlpkit.contracts.reader import Counts, RowError
from nlpkit.contracts.task import Task
from nlpkit.data.items import Row, read_rows
from nlpkit.errors import DataError
from nlpkit.evaluate.source import Source


@dataclass(frozen=True)
class Unlabelled:
    """The first row has no label: what is missing, and a function that adds a label to a row."""

    problem: str
    add_label: Callable[[Row], Row]


def find_unlabelled(source: Source, objective: Task) -> Unlabelled | None:
    """Return what is missing if the first row of the data has no label, else None.

    Raises:
        DataError: it has none, and this task is answered in another way.
    """
    config = objective.config
    rows = read_rows(source.inputs, source.config, objective.columns, Counts(), source.part)
    row = next(rows, None)
    if row is None:
        return None
    try:
        objective.check_columns(config, row)
        return None
    except RowError as error:
        problem = f"{row.file}:{row.line}: {error.what}"
    if isinstance(objective, Generative):
        raise DataError(f"{problem}; nlpkit generate answers rows that have no right answer")
    if not isinstance(objective, AnswersUnlabelled):
        return None

    def add_label(row: Row) -> Row:
        try:
            return replace(row, values=row.values | objective.stand_in(row))
        except RowError:  # it lacks more, which the task reports
            return row

    try:
        objective.check_columns(config, add_label(row))
    except RowError:
        return None
    return Unlabelled(problem, add_label)
