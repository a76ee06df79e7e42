"""The confusion table of a task with classes: which class is predicted for rows of which class."""

from collections.abc import Sequence

from nlpkit.contracts.task import Answer
from nlpkit.json_types import JsonObject
from nlpkit.text_table import aligned

_WIDEST = 20  # classes; of more, only the most frequent errors are printed
_MOST = 10  # of these errors
_CORNER = "right \\ predicted"


def count_confusion(labels: Sequence[str], answers: Sequence[Answer]) -> JsonObject:
    """Return `labels` and `counts`, a row for each right class and a column for each predicted one.

    `answers` are pairs of the predicted and the right class.
    """
    place = {label: number for number, label in enumerate(labels)}
    counts = [[0] * len(labels) for _ in labels]
    for predicted, right in answers:
        counts[place[str(right)]][place[predicted]] += 1
    return {"labels": list(labels), "counts": counts}


def format_table(found: JsonObject) -> str:
    """Return the table as text; of many classes, a line for each of the most frequent errors."""
    labels, counts = found["labels"], found["counts"]
    if len(labels) > _WIDEST:
        errors = [
            (count, labels[right], labels[predicted])
            for right, row in enumerate(counts)
            for predicted, count in enumerate(row)
            if count and right != predicted
        ]
        most = sorted(errors, key=lambda error: -error[0])[:_MOST]
        rows = [["right", "predicted", "rows"], *([a, b, f"{n:,}"] for n, a, b in most)]
    else:
        rows = [[_CORNER, *labels]]
        rows += [[label, *map(str, row)] for label, row in zip(labels, counts, strict=True)]
    return "\n".join(aligned(rows))
