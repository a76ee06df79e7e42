"""F1, with precision and recall: macro, micro or weighted over the classes, or of one class.

Each line has one label. The score is 0...1, as `precision_recall_fscore_support` of scikit-learn
with `zero_division=0`: precision is 0 for a class that is never predicted, and recall is 0 for a
class that is never right. The classes of both files count. Macro averages the F1 of the classes.
"""

from collections.abc import Iterator, Sequence

from nlpkit.errors import UsageError
from nlpkit.plural import number_of
from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _averages as averages
from nlpkit.score.metrics import _labels
from nlpkit.score.metrics._labels import Labels

AVERAGES = ("macro", "micro", "weighted", "binary")
REFERENCES = (1, 1)
OPTIONS = (
    Option(
        "average",
        "macro",
        "macro: every class counts the same; micro: every line counts the same (equal to "
        "accuracy); weighted: each class counts by its lines; binary: only --positive",
        choices=AVERAGES,
    ),
    Option("positive", "1", "the class that --average binary scores", metavar="LABEL"),
    Option("per_class", False, "show a row for every class", type=bool),
)


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    average: str = "macro",
    positive: str = "1",
    per_class: bool = False,
) -> Score:
    """Return F1; `details` has precision, recall, and the same with support for each class.

    Raise `UsageError` if `average` is `binary` and there are more than two classes, or `positive`
    is in neither file.
    """
    labels = _labels.read(hypotheses, references)
    classes = _classes(labels, average, positive)
    total = averages.average(_labels.count(labels, classes), average)
    table = dict(zip(labels.known, _labels.count(labels, labels.known), strict=True))
    details = {
        "precision": total.precision,
        "recall": total.recall,
        "f1": total.f1,
        "lines": len(labels.right),
        "classes": len(labels.known),
        "by_class": {
            name: {**averages.part(c)._asdict(), "support": c.right, "predicted": c.predicted}
            for name, c in table.items()
        },
        "warnings": [*_labels.warnings(labels), *averages.undefined(table)],
    }
    verbose = (
        f"P {total.precision:.4f} R {total.recall:.4f} {number_of(len(labels.right), 'lines')}"
    )
    if per_class:
        verbose += "\n" + averages.rows(table)
    signature = f"avg:{average}|classes:{len(labels.known)}|zero:0"
    if average == "binary":
        signature += f"|positive:{positive}"
    return Score("F1", total.f1, signature, verbose, details, percent=False)


def statistics(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    average: str = "macro",
    positive: str = "1",
    per_class: bool = False,
) -> Iterator[tuple[int, ...]]:
    """Yield for each line three numbers for every averaged class (see `_labels.rows`)."""
    labels = _labels.read(hypotheses, references)
    return _labels.rows(labels, _classes(labels, average, positive))


def from_sums(sums: Sequence[int], *, average: str = "macro", **_options: object) -> float:
    """Return F1; the average leaves out classes that do not occur in the resample."""
    return averages.average(_labels.from_row(sums), average).f1


def _classes(labels: Labels, average: str, positive: str) -> list[str]:
    if average != "binary":
        return labels.known
    if len(labels.known) > 2:
        count = f"average binary needs two classes, there are {len(labels.known)}"
        raise UsageError(f"{count}: choose macro, micro or weighted")
    if positive not in labels.known:
        known = ", ".join(labels.known)
        raise UsageError(f"the positive label {positive!r} is in neither file; labels: {known}")
    return [positive]
