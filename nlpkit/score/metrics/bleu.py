"""BLEU: geometric mean of clipped n-gram precisions times the brevity penalty, 0 … 100.

Papineni et al. 2002. Counts, score and signature are equal to those of sacrebleu 2.6.0.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from nlpkit.contracts.metric import Lines, Option, Score, Sums
from nlpkit.errors import UsageError
from nlpkit.plural import number_of
from nlpkit.score.counts.bleu_counts import ORDER, count_row
from nlpkit.score.counts.bleu_tokens import BORROWED, OWN, Tokenizer, get_tokenizer
from nlpkit.score.counts.references import OptionalReferences
from nlpkit.score.counts.summed import SummedScore

SMOOTHING: dict[str, float | None] = {"exp": None, "floor": 0.1, "add-k": 1, "none": None}
VARIANTS = ("standard", "document")
OPTIONS = (
    Option("tokenize", "13a", "tokenizer of lines", ("-tok",), choices=(*OWN, *BORROWED)),
    Option(
        "smooth_method",
        "exp",
        "how n-gram orders without a match are smoothed",
        ("-s",),
        choices=(*SMOOTHING,),
    ),
    Option(
        "smooth_value", None, "for floor (0.1) and add-k (1)", ("-sv",), type=float, metavar="X"
    ),
    Option("lowercase", False, "compare without case", ("-lc",), type=bool),
    Option("force", False, "do not warn about text that seems to be tokenized", type=bool),
    Option(
        "variant",
        "standard",
        "document: exp(p1 + p2 + p3 + p4), 1 … 54.6, no brevity penalty; not BLEU",
        choices=VARIANTS,
    ),
)
REFERENCES = (1, None)

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


def score(hypotheses: Lines, references: OptionalReferences, **options: Any) -> Score:
    """Return BLEU of the corpus.

    `references[k][i]` is the k-th reference of line i, None if there is none. `details` has
    `counts` and `totals` of 1- … 4-grams (before smoothing), `precisions` (per cent), `bp`,
    `sys_len`, `ref_len`, `ratio`, and `warnings`. Raise `DataError` if numbers of lines differ,
    `BadLine` for a line without a reference, `UsageError` for a wrong option.
    """
    found = _BLEU.score(hypotheses, references, **options)
    return found._replace(
        details={**found.details, "warnings": _warnings(hypotheses, references, **options)}
    )


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
    return count_row(tokens(line), [tokens(reference) for reference in references])


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


def _result(sums: Sums, references: int | str, settings: Settings, is_line: bool) -> Score:
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
        "ratio": ratio,
        "warnings": [],
    }
    name = "BLEU-document" if settings.is_document else "BLEU"
    signature = _signature(references, settings, is_line)
    return Score(name, result.score, signature, verbose, details)


def _signature(references: int | str, settings: Settings, effective_order: bool) -> str:
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


def _warnings(
    hypotheses: Lines,
    references: OptionalReferences,
    *,
    tokenize: str = "13a",
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    force: bool = False,
    variant: str = "standard",
    **_options: object,
) -> list[str]:
    warnings = []
    ends = 0 if force else sum(line.rstrip().endswith(" .") for line in hypotheses)
    if ends >= _TOKENIZED:
        warnings.append(
            f"{number_of(ends, 'lines end')} in a full stop with a space before it: BLEU is "
            "for detokenized text,"
            " tokenized text may score lower (--force: it is meant so)"
        )
    if tokenize == "13a" and _mostly_chinese(hypotheses, *references):
        warnings.append(
            "the text is mostly Chinese, which 13a does not split into words or characters:"
            " --tokenize zh"
        )
    if smooth_value is not None and SMOOTHING[smooth_method] is None:
        warnings.append(f"the smooth value has no effect with {smooth_method}")
    if variant == "document":
        warnings.append(
            "the document's formula exp(p1 + p2 + p3 + p4) is not BLEU: from 1 to 54.6, without"
            " brevity penalty; its numbers compare with no published ones"
        )
    return warnings


def _mostly_chinese(*files: Sequence[str | None]) -> bool:
    """Return whether most characters in the first lines of any file are Chinese."""
    for lines in files:
        text = "".join(line for line in lines[:_SAMPLE] if line)
        if not text.isascii() and 2 * len(_HAN.findall(text)) > len("".join(text.split())):
            return True
    return False
