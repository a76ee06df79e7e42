"""F1, with precision and recall: macro, micro or weighted over the classes, or of one class.

Each line has one label. The score is 0...1, as `precision_recall_fscore_support` of scikit-learn
with `zero_division=0`: precision is 0 for a class that is never predicted, and recall is 0 for a
class that is never right. The classes of both files count. Macro averages the F1 of the classes.
"""

from collections.abc import Iterator

from nlpkit.contracts.metric import Lines, Option, References, Score
from nlpkit.errors import DataError, UsageError
from nlpkit.plural import number_of
from nlpkit.score.counts import labels
from nlpkit.score.counts.labels import Labels

AVERAGES = ("macro", "micro", "weighted", "binary")
OPTIONS = (
    Option("average", "macro",
           "macro: every class counts the same; micro: every line counts the same (equal to "
           "accuracy); weighted: each class counts by its lines; binary: only --positive",
           choices=AVERAGES),
    Option("positive", None, "the class that --average binary scores: 1 by default",
           metavar="LABEL"),
    Option("per_class", False, "show a row for every class", type=bool),
)  # fmt: skip

_POSITIVE = "1"

from_sums = labels.from_sums


def score(
    hypotheses: Lines,
    references: References,
    *,
    average: str = "macro",
    positive: str | None = None,
    per_class: bool = False,
) -> Score:
    """Return F1; `details` has precision, recall, and the same with support for each class.

    Raise `UsageError` if `average` is `binary` and there are more than two classes, or `positive`
    is in neither file; `DataError` if there is a single class and it is not `positive`.
    """
    read = labels.read(hypotheses, references)
    total = labels.compute_average(labels.count(read, _classes(read, average, positive)), average)
    table = dict(zip(read.known, labels.count(read, read.known), strict=True))
    details = {
        **total._asdict(),
        "lines": len(read.right),
        "classes": len(read.known),
        "by_class": labels.make_details(table),
        "warnings": [*labels.find_never_right(read), *labels.find_never_predicted(table)],
    }
    if positive is not None and average != "binary":
        details["warnings"].append(f"the positive label has no effect with average {average}")
    lines = number_of(len(read.right), "lines")
    verbose = f"P {total.precision:.4f} R {total.recall:.4f} {lines}"
    if per_class:
        verbose += "\n" + labels.format_table(table)
    signature = f"avg:{average}|classes:{len(read.known)}|zero:0"
    if average == "binary":
        signature += f"|positive:{_POSITIVE if positive is None else positive}"
    return Score("F1", total.f1, signature, verbose, details, percent=False)


def statistics(
    hypotheses: Lines,
    references: References,
    *,
    average: str = "macro",
    positive: str | None = None,
    per_class: bool = False,
) -> Iterator[tuple[int, ...]]:
    """Yield for each line three numbers for every averaged class (see `labels.make_rows`)."""
    read = labels.read(hypotheses, references)
    return labels.make_rows(read, _classes(read, average, positive))


def _classes(read: Labels, average: str, positive: str | None) -> list[str]:
    positive = _POSITIVE if positive is None else positive
    if average != "binary":
        return read.known
    if len(read.known) > 2:
        count = f"average binary needs two classes, there are {len(read.known)}"
        raise UsageError(f"{count}: choose macro, micro or weighted")
    if positive not in read.known:
        what = f"the positive label {positive!r} is in neither file; labels: "
        # Of a single class, the score is undefined: a held-out file may have no positive line.
        raise (UsageError if len(read.known) > 1 else DataError)(what + ", ".join(read.known))
    return [positive]
