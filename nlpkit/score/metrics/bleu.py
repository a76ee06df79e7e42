"""BLEU: geometric mean of clipped n-gram precisions times the brevity penalty, 0 … 100.

Papineni et al. 2002. Counts, score and signature are equal to those of sacrebleu 2.6.0.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from nlpkit.contracts.metric import Lines, Option, References, Score, Sums
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.score.counts.bleu_tokens import BORROWED, OWN, Tokenizer, get_tokenizer
from nlpkit.score.counts.summed import SummedScore

SMOOTHING: dict[str, float | None] = {"exp": None, "floor": 0.1, "add-k": 1, "none": None}
VARIANTS = ("standard", "document")
OPTIONS = (
    Option("tokenize", "13a", "tokenizer of lines", ("-tok",), choices=(*OWN, *BORROWED)),
    Option("smooth_method", "exp", "how n-gram orders without a match are smoothed", ("-s",),
           choices=(*SMOOTHING,)),
    Option("smooth_value", None, "for floor (0.1) and add-k (1)", ("-sv",), float, metavar="X"),
    Option("lowercase", False, "compare without case", ("-lc",), bool),
    Option("force", False, "do not warn about text that seems to be tokenized", type=bool),
    Option("variant", "standard",
           "document: exp(p1 + p2 + p3 + p4), 1 … 54.6, no brevity penalty; not BLEU",
           choices=VARIANTS),
)  # fmt: skip
REFERENCES = (1, None)

ORDER = 4  # the length of the longest n-grams (Papineni et al. 2002, section 2.1.2)

_GRAMS: tuple[Callable[[list[str]], Iterable[object]], ...] = (
    lambda t: t,
    pairwise,
    lambda t: zip(t, t[1:], t[2:], strict=False),
    lambda t: zip(t, t[1:], t[2:], t[3:], strict=False),
)
_LOG_OF_ZERO = -9999999999.0  # as in sacrebleu
_TOKENIZED = 100  # with so many lines that end in " .", sacrebleu warns
_SAMPLE = 1000  # lines in which Chinese is searched
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")


class Settings(NamedTuple):
    """The options, and what follows from them."""

    split: Tokenizer
    smooth_method: str
    k: float  # the number that the smoothing adds
    lowercase: bool
    is_document: bool


class Bleu(NamedTuple):
    """BLEU computed from summed counts: score, brevity penalty, precisions in per cent."""

    score: float
    bp: float
    precisions: list[float]


def score(hypotheses: Lines, references: References, **options: Any) -> Score:
    """Return BLEU of the corpus.

    `details` has `counts` and `totals` of 1- … 4-grams (before smoothing), `precisions` (per cent),
    `bp`, `sys_len`, `ref_len`, `ratio`, and `warnings`. Raise `UsageError` for a wrong option.
    """
    found = _BLEU.score(hypotheses, references, **options)
    given: JsonObject = {each.name: each.default for each in OPTIONS} | options
    warnings = list(_warnings(hypotheses, references, given))
    return found._replace(details={**found.details, "warnings": warnings})


def _settings(
    *,
    tokenize: str = "13a",
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    lowercase: bool = False,
    force: bool = False,
    variant: str = "standard",
) -> Settings:
    k = (SMOOTHING[smooth_method] or 0) if smooth_value is None else smooth_value
    if k < 0 or not math.isfinite(k):
        raise UsageError(f"smooth_value is {k}, must be a number of 0 or more")
    return Settings(get_tokenizer(tokenize), smooth_method, k, lowercase, variant == "document")


def _row(line: str, references: Sequence[str], settings: Settings) -> tuple[int, ...]:
    """Return lengths of the line and the closest reference, matches and totals of 1- … 4-grams."""
    if settings.lowercase:
        line, references = line.lower(), [reference.lower() for reference in references]
    tokens = settings.split.tokens
    hypothesis, answers = tokens(line), [tokens(reference) for reference in references]
    length = len(hypothesis)
    closest = min((abs(length - len(answer)), len(answer)) for answer in answers)[1]
    totals = (length, max(length - 1, 0), max(length - 2, 0), max(length - 3, 0))
    return length, closest, *count_matches(hypothesis, answers), *totals


def count_matches(hypothesis: list[str], references: list[list[str]]) -> list[int]:
    """Return the clipped matches of 1- … 4-grams (Papineni et al. 2002, section 2.1)."""
    matched = [0] * ORDER
    repeats = True
    for order, grams in enumerate(_GRAMS):
        in_references = set().union(*map(grams, references))
        hits = list(filter(in_references.__contains__, grams(hypothesis)))
        if not hits:
            break
        matched[order] = len(hits)
        if repeats:
            distinct = set(hits)
            # An n-gram cannot repeat if no shorter one did.
            repeats = len(distinct) < len(hits)
            if repeats:
                matched[order] = len(distinct) + _count_repeats(hits, references, grams)
    return matched


def _count_repeats(
    hits: list[object], references: list[list[str]], grams: Callable[[list[str]], Iterable[object]]
) -> int:
    """Return the clipped matches in `hits` that repeat an earlier n-gram."""
    repeated = {gram: count for gram, count in Counter(hits).items() if count > 1}
    # One `list.count` for each n-gram would be quadratic in the length of the line.
    counts = [Counter(filter(repeated.__contains__, grams(line))) for line in references]
    return sum(
        min(count, max(reference[gram] for reference in counts)) - 1
        for gram, count in repeated.items()
    )


def _compute(sums: Sums, settings: Settings, effective_order: bool) -> Bleu:
    """Return the score of summed counts, with the same order of operations as sacrebleu."""
    length, closest = sums[:2]
    counts, totals = sums[2 : 2 + ORDER], sums[2 + ORDER :]
    if settings.is_document:
        pairs = zip(counts, totals, strict=True)
        shares = [count / total if total else 0.0 for count, total in pairs]
        return Bleu(math.exp(math.fsum(shares)), 1.0, [100.0 * share for share in shares])
    bp = 1.0
    if length < closest:
        bp = math.exp(1 - closest / length) if length > 0 else 0.0
    precisions = [0.0] * ORDER
    if not any(counts):
        return Bleu(0.0, bp, precisions)
    method, k = settings.smooth_method, settings.k
    halving = 1.0
    orders = ORDER
    for index, (count, total) in enumerate(zip(counts, totals, strict=True)):
        added = k if method == "add-k" and index else 0
        if total + added == 0:
            break
        if effective_order:
            orders = index + 1
        if count + added:
            precisions[index] = 100.0 * (count + added) / (total + added)
        elif method == "exp":
            halving *= 2
            precisions[index] = 100.0 / (halving * total)
        elif method == "floor":
            precisions[index] = 100.0 * k / total
    logarithms = [math.log(p) if p else _LOG_OF_ZERO for p in precisions[:orders]]
    return Bleu(bp * math.exp(sum(logarithms) / orders), bp, precisions)


def _value(sums: Sums, settings: Settings) -> float:
    return _compute(sums, settings, effective_order=False).score


def _result(sums: Sums, references: int, settings: Settings, is_line: bool) -> Score:
    """Return the score; that of a line is over its n-gram orders (effective order)."""
    result = _compute(sums, settings, effective_order=is_line)
    length, closest = sums[:2]
    ratio = length / closest if closest else 0.0
    shown = "/".join(f"{precision:.1f}" for precision in result.precisions)
    verbose = (
        f"{shown} (BP = {result.bp:.3f} ratio = {ratio:.3f} hyp_len = {length} ref_len = {closest})"
    )
    details = {
        "counts": sums[2 : 2 + ORDER],
        "totals": sums[2 + ORDER :],
        "precisions": result.precisions,
        "bp": result.bp,
        "sys_len": length,
        "ref_len": closest,
        "ratio": ratio if closest else None,  # sacrebleu's 0 would read as: too short
        "warnings": [],
    }
    name = "BLEU-document" if settings.is_document else "BLEU"
    signature = _signature(references, settings, is_line)
    return Score(name, result.score, signature, verbose, details)


def _signature(references: int, settings: Settings, effective_order: bool) -> str:
    smoothing = "none" if settings.is_document else settings.smooth_method
    if SMOOTHING[smoothing] is not None:
        smoothing += f"[{settings.k:.2f}]"
    document = "|variant:document" if settings.is_document else ""
    return (
        f"nrefs:{references}|case:{'lc' if settings.lowercase else 'mixed'}"
        f"|eff:{'yes' if effective_order else 'no'}|tok:{settings.split.name}|smooth:{smoothing}"
        f"{document}|version:{settings.split.version}"
    )


_BLEU = SummedScore(_settings, _row, _value, _result)
sentences, statistics, from_sums = _BLEU.sentences, _BLEU.statistics, _BLEU.from_sums


def _warnings(hypotheses: Lines, references: References, options: JsonObject) -> Iterator[str]:
    ends = 0 if options["force"] else sum(line.rstrip().endswith(" .") for line in hypotheses)
    if ends >= _TOKENIZED:
        yield (
            f"{number_of(ends, 'lines end')} in a full stop with a space before it: BLEU is for "
            "detokenized text, tokenized text may score lower (--force: it is meant so)"
        )
    if options["tokenize"] == "13a" and _mostly_chinese(hypotheses, *references):
        yield (
            "the text is mostly Chinese, which 13a does not split into words or characters:"
            " --tokenize zh"
        )
    method = options["smooth_method"]
    if options["smooth_value"] is not None and SMOOTHING[method] is None:
        yield f"the smooth value has no effect with {method}"
    if options["variant"] == "document":
        yield (
            "the document's formula exp(p1 + p2 + p3 + p4) is not BLEU: from 1 to 54.6, without"
            " brevity penalty; its numbers compare with no published ones"
        )


def _mostly_chinese(*files: Lines) -> bool:
    """Return whether most characters in the first lines of any file are Chinese."""
    for lines in files:
        text = "".join(lines[:_SAMPLE])
        if not text.isascii() and 2 * len(_HAN.findall(text)) > len("".join(text.split())):
            return True
    return False
