"""Entity F1 of tagging, as conlleval and seqeval: an entity is right as a whole or not at all.

0...1. A line has the tags of a sentence with white space between them, as many as the reference. An
entity is right if its first word, its last word and its type are. The default scheme is the rule of
conlleval (Tjong Kim Sang and Buchholz 2000), which reads IOB1, IOB2, BIOES, BMES and BILOU, and
equals seqeval's default; the other schemes are strict, as seqeval with `mode="strict"`. Tags
without types (B, M, E, S) are word segmentation.
"""

from collections.abc import Iterator

from nlpkit.contracts.metric import BadLine, Lines, Option, References, Score
from nlpkit.plural import number_of
from nlpkit.score.counts import labels
from nlpkit.score.counts.tags import SCHEMES, Entity, WrongTag, find_entities, read

AVERAGES = ("micro", "macro", "weighted")
OPTIONS = (
    Option("scheme", "conll",
           "conll: any scheme, read by the rules of conlleval; the others: entities that the "
           "scheme allows, nothing else", choices=SCHEMES),
    Option("average", "micro",
           "micro: every entity counts the same, as in conlleval; macro: every type; weighted: "
           "each type by its entities", choices=AVERAGES),
    Option("per_type", False, "show a row for every type", type=bool),
)  # fmt: skip

from_sums = labels.from_sums


def score(
    hypotheses: Lines,
    references: References,
    *,
    scheme: str = "conll",
    average: str = "micro",
    per_type: bool = False,
) -> Score:
    """Return F1; `details` has precision, recall, and the same with support for each type."""
    lines = _read(hypotheses, references, scheme)
    types = _types(lines)
    counts = labels.read_row([sum(column) for column in zip(*_rows(lines, types), strict=True)])
    table = dict(zip(types, counts, strict=True))
    total = labels.compute_average(counts, average)
    predicted, right = (sum(len(line[side]) for line in lines) for side in (0, 1))
    details = {
        **total._asdict(),
        "lines": len(lines),
        "entities": right,
        "predicted": predicted,
        "by_type": labels.make_details(table),
        "warnings": labels.find_never_predicted(table) if types else ["neither file has an entity"],
    }
    verbose = f"P {total.precision:.4f} R {total.recall:.4f} {number_of(right, 'entities')}"
    if per_type and types:
        verbose += "\n" + labels.format_table(table)
    signature = f"scheme:{scheme}|avg:{average}|types:{len(types)}|zero:0"
    return Score("entity-F1", total.f1, signature, verbose, details, percent=False)


def statistics(
    hypotheses: Lines, references: References, *, scheme: str = "conll", **_options: object
) -> Iterator[tuple[int, ...]]:
    """Yield for each line three numbers for every type: right and predicted, predicted, right."""
    lines = _read(hypotheses, references, scheme)
    return _rows(lines, _types(lines))


_Line = tuple[set[Entity], set[Entity]]  # predicted, right


def _read(hypotheses: Lines, references: References, scheme: str) -> list[_Line]:
    lines = []
    for index, pair in enumerate(read(hypotheses, references)):
        found = []
        for file, tags in enumerate(pair):
            try:
                found.append(set(find_entities(tags, scheme)))
            except WrongTag as error:
                raise BadLine(file, index, str(error)) from error
        lines.append((found[0], found[1]))
    return lines


def _types(lines: list[_Line]) -> list[str]:
    return sorted({entity.type for line in lines for side in line for entity in side})


def _rows(lines: list[_Line], types: list[str]) -> Iterator[tuple[int, ...]]:
    for ours, theirs in lines:
        sides = (ours & theirs, ours, theirs)
        yield tuple(sum(e.type == kind for e in side) for kind in types for side in sides)
