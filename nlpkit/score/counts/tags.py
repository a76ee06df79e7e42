"""Lines of tags, a sentence each, and the entities in them, in the usual schemes.

`conll` is the rule of conlleval (CoNLL-2000), which reads all schemes and never refuses a sequence:
`I-X` after `O` begins an entity, as `B-X` does. The others are strict, as seqeval 1.2 with
`mode="strict"`: a sequence that the scheme does not allow is no entity. A tag is `O`, or a prefix
with a type (`B-PER`), or a prefix alone, as in word segmentation.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nlpkit.contracts.metric import BadLine, Lines, References
from nlpkit.errors import DataError
from nlpkit.plural import number_of

# Prefixes of each scheme. M (BMES) is I, L and U (BILOU) are E and S.
PREFIXES = {
    "conll": "OBIMELSU",
    "iob1": "OBI",
    "iob2": "OBI",
    "bioes": "OBIES",
    "bmes": "OBMES",
    "bilou": "OBILU",
}
SCHEMES = tuple(PREFIXES)
_SAME = str.maketrans("MLU", "IES")
_NO_TYPE = "_"


class Tag(NamedTuple):
    """The prefix of a tag, one of O, B, I, E and S, and its type."""

    prefix: str
    type: str


class Entity(NamedTuple):
    """An entity: words [start, stop) and a type."""

    start: int
    stop: int
    type: str


class WrongTag(ValueError):
    """Tag `index` (from 0) of a sequence does not belong to the scheme."""

    def __init__(self, index: int, tag: str, scheme: str):
        prefixes = [prefix for prefix in PREFIXES[scheme] if prefix != "O"]
        known = ", ".join(f"{prefix}-TYPE" for prefix in prefixes)
        super().__init__(f"tag {index + 1} is {tag!r}; in scheme {scheme} it is O, {known}")
        self.index = index


def read(hypotheses: Lines, references: References) -> list[tuple[list[str], list[str]]]:
    """Return the predicted and the right tags of each line.

    Raises:
        BadLine: a line has another number of tags than its reference.
        DataError: there is no tag.
    """
    found = []
    for index, (ours, theirs) in enumerate(zip(hypotheses, references[0], strict=True)):
        predicted, right = ours.split(), theirs.split()
        if len(predicted) != len(right):
            what = f"{number_of(len(predicted), 'tags')}; the reference has {len(right)}"
            raise BadLine(0, index, what)
        found.append((predicted, right))
    if not any(right for _, right in found):
        raise DataError("there is no tag to score")
    return found


def parse(tags: Sequence[str], scheme: str) -> list[Tag]:
    """Return the tags in parts; raise `WrongTag`."""
    found = []
    for index, tag in enumerate(tags):
        prefix, dash, kind = tag.partition("-")
        # A prefix may be alone, but for a dash without a type, and `O` has no type.
        is_known = len(prefix) == 1 and prefix in PREFIXES[scheme]
        if not is_known or bool(dash) != bool(kind) or (prefix == "O" and dash):
            raise WrongTag(index, tag, scheme)
        found.append(Tag(prefix.translate(_SAME), kind or _NO_TYPE))
    return found


def find_entities(tags: Sequence[str], scheme: str) -> list[Entity]:
    """Return the entities of a sentence, in order; raise `WrongTag`."""
    return _READERS[scheme]([*parse(tags, scheme), Tag("O", _NO_TYPE)])


def is_allowed(tags: Sequence[str], scheme: str) -> bool:
    """Return whether all tags but `O` are in entities that the scheme allows; raise `WrongTag`."""
    inside = sum(entity.stop - entity.start for entity in find_entities(tags, scheme))
    return inside == sum(tag != "O" for tag in tags)


def _find_lenient(tags: Sequence[Tag]) -> list[Entity]:
    """Return the entities by the rules of conlleval; the last tag is O."""
    found = []
    start, before = 0, Tag("O", _NO_TYPE)
    for index, tag in enumerate(tags):
        other = tag.type != before.type
        if before.prefix != "O" and (before.prefix in "ES" or tag.prefix in "OBS" or other):
            found.append(Entity(start, index, before.type))
        if tag.prefix != "O" and (tag.prefix in "BS" or before.prefix in "OES" or other):
            start = index
        before = tag
    return found


class _Strict:
    """A scheme as patterns of two neighbouring tags: `BI=` is B, I and the same type.

    `!` is another type, `*` anything. These are the tables of seqeval.
    """

    def __init__(self, start: str, inside: str, end: str):
        self.start, self.inside, self.end = start.split(), inside.split(), end.split()

    def __call__(self, tags: Sequence[Tag]) -> list[Entity]:
        found = []
        before, index = Tag("O", _NO_TYPE), 0
        while index < len(tags):
            first = index
            index += 1
            if _fits(self.start, before, tags[first]):
                while index < len(tags) and _fits(self.inside, tags[index - 1], tags[index]):
                    index += 1
                if index < len(tags) and _fits(self.end, tags[index - 1], tags[index]):
                    found.append(Entity(first, index, tags[first].type))
            before = tags[index - 1]
        return found


def _fits(patterns: Sequence[str], before: Tag, tag: Tag) -> bool:
    relation = "=" if before.type == tag.type else "!"
    return any(
        pattern[0] in ("*", before.prefix)
        and pattern[1] in ("*", tag.prefix)
        and pattern[2] in ("*", relation)
        for pattern in patterns
    )


_BIOES = _Strict("*B* *S*", "BI= BE= II= IE=", "S** E**")
_READERS: dict[str, Callable[[Sequence[Tag]], list[Entity]]] = {
    "conll": _find_lenient,
    "iob1": _Strict("OI* II! BI* IB= BB=", "BI= II=", "II! IO* IB* BO* BI! BB="),
    "iob2": _Strict("*B*", "BI= II=", "IO* II! IB* BO* BI! BB*"),
    "bioes": _BIOES,
    "bmes": _BIOES,
    "bilou": _BIOES,
}
