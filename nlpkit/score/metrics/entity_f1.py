"""Entity F1 of tagging, as conlleval and seqeval: an entity is right as a whole or not at all.

0...1. A line has the tags of a sentence with white space between them, as many as the reference. An
entity is right if its first word, its last word and its type are. The default scheme is the rule of
conlleval (Tjong Kim Sang and Buchholz 2000), which reads IOB1, IOB2, BIOES, BMES and BILOU, and
equals seqeval's default; the other schemes are strict, as seqeval with `mode="strict"`. Tags
without types (B, M, E, S) are word segmentation.
"""

from collections.abc import Iterator, Sequence

from nlpkit.plural import number_of
from nlpkit.score.contract import BadLine, Option, Score
from nlpkit.score.metrics import _averages as averages
from nlpkit.score.metrics import _labels, _tags
from nlpkit.score.metrics._entities import SCHEMES, Entity, WrongTag, entities

AVERAGES = ("micro", "macro", "weighted")
REFERENCES = (1, 1)
OPTIONS = (
    Option(
        "scheme",
        "conll",
        "conll: any scheme, read by the rules of conlleval; the others: entities that the scheme "
        "allows, nothing else",
        choices=SCHEMES,
    ),
    Option(
        "average",
        "micro",
        "micro: every entity counts the same, as in conlleval; macro: every type; weighted: each "
        "type by its entities",
        choices=AVERAGES,
    ),
    Option("per_type", False, "show a row for every type", type=bool),
)


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    scheme: str = "conll",
    average: str = "micro",
    per_type: bool = False,
) -> Score:
    """Return F1; `details` has precision, recall, and the same with support for each type."""
    lines = _read(hypotheses, references, scheme)
    types = _types(lines)
    counts = [_labels.Counts(*map(sum, zip(*column, strict=True))) for column in _columns(lines)]
    table = dict(zip(types, counts, strict=True))
    total = averages.average(counts, average)
    found = [sum(len(side[k]) for side in lines) for k in range(2)]
    warnings = averages.undefined(table) if types else ["neither file has an entity"]
    details = {
        "precision": total.precision,
        "recall": total.recall,
        "f1": total.f1,
        "lines": len(lines),
        "entities": found[1],
        "predicted": found[0],
        "by_type": {
            name: {**averages.part(c)._asdict(), "support": c.right, "predicted": c.predicted}
            for name, c in table.items()
        },
        "warnings": warnings,
    }
    verbose = f"P {total.precision:.4f} R {total.recall:.4f} {number_of(found[1], 'entities')}"
    if per_type and types:
        verbose += "\n" + averages.rows(table)
    signature = f"scheme:{scheme}|avg:{average}|types:{len(types)}|zero:0"
    return Score("entity-F1", total.f1, signature, verbose, details, percent=False)


def statistics(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    scheme: str = "conll",
    average: str = "micro",
    per_type: bool = False,
) -> Iterator[tuple[int, ...]]:
    """Yield for each line three numbers for every type: right and predicted, predicted, right."""
    columns = _columns(_read(hypotheses, references, scheme))
    if not columns:
        yield from (() for _ in hypotheses)
        return
    for row in zip(*columns, strict=True):
        yield tuple(number for counts in row for number in counts)


def from_sums(sums: Sequence[int], *, average: str = "micro", **_options: object) -> float:
    """Return F1; averages leave out types that do not occur in the resample."""
    return averages.average(_labels.from_row(sums), average).f1


_Line = tuple[set[Entity], set[Entity]]  # predicted, right


def _read(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], scheme: str
) -> list[_Line]:
    """Return the entities of each line; raise `BadLine`."""
    lines = []
    for index, pair in enumerate(_tags.read(hypotheses, references)):
        found = []
        for file, tags in enumerate(pair):
            try:
                found.append(set(entities(tags, scheme)))
            except WrongTag as error:
                raise BadLine(file, index, str(error)) from error
        lines.append((found[0], found[1]))
    return lines


def _types(lines: Sequence[_Line]) -> list[str]:
    return sorted({entity.type for line in lines for side in line for entity in side})


def _columns(lines: Sequence[_Line]) -> list[list[tuple[int, ...]]]:
    """Return for each type the counts of each line: right and predicted, predicted, right."""
    return [
        [
            tuple(sum(e.type == kind for e in side) for side in (ours & theirs, ours, theirs))
            for ours, theirs in lines
        ]
        for kind in _types(lines)
    ]
