"""BLEU: geometric mean of clipped n-gram precisions times the brevity penalty, 0 … 100.

Papineni et al. 2002. Counts, score and signature are equal to those of sacrebleu 2.6.0.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nlpkit.contracts.metric import Lines, Option, Score
from nlpkit.errors import UsageError
from nlpkit.plural import number_of
from nlpkit.score.counts.bleu_counts import ORDER, row_of, sum_rows
from nlpkit.score.counts.bleu_tokens import BORROWED, OWN, Tokenizer, tokenizer
from nlpkit.score.counts.references import OptionalReferences as References
from nlpkit.score.counts.references import lines_with_references, references_a_line

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
    """The options of `score`, with their defaults."""

    tokenize: str = "13a"
    smooth_method: str = "exp"
    smooth_value: float | None = None
    lowercase: bool = False
    force: bool = False
    variant: str = "standard"

    @property
    def k(self) -> float:
        """The number that the smoothing adds."""
        default = SMOOTHING[self.smooth_method]
        return (default or 0) if self.smooth_value is None else self.smooth_value


class Sums(NamedTuple):
    """BLEU computed from summed counts: score, brevity penalty, precisions in per cent."""

    score: float
    bp: float
    precisions: list[float]


def score(hypotheses: Lines, references: References, **options: Any) -> Score:
    """Return BLEU of the corpus.

    `references[k][i]` is the k-th reference of line i, None if there is none. `details` has
    `counts` and `totals` of 1- … 4-grams (before smoothing), `precisions` (per cent), `bp`,
    `sys_len`, `ref_len`, `ratio`, and `warnings`. Raise `DataError` if numbers of lines differ,
    `BadLine` for a line without a reference, `UsageError` for a wrong option.
    """
    settings = _settings(options)
    split = tokenizer(settings.tokenize)
    sums = sum_rows(_rows(hypotheses, references, settings, split))
    result = _compute(sums, settings, effective_order=False)
    signature = _signature(settings, split, references_a_line(references), effective_order=False)
    return _score(result, sums, signature, settings, _warnings(hypotheses, references, settings))


def sentences(hypotheses: Lines, references: References, **options: Any) -> Iterator[Score]:
    """Yield BLEU of each line, over the n-gram orders of the line (effective order)."""
    settings = _settings(options)
    split = tokenizer(settings.tokenize)
    for line, answers in lines_with_references(hypotheses, references):
        row = list(_row(line, answers, settings, split))
        signature = _signature(settings, split, len(answers), effective_order=True)
        yield _score(_compute(row, settings, effective_order=True), row, signature, settings, [])


def statistics(
    hypotheses: Lines, references: References, **options: Any
) -> Iterator[tuple[int, ...]]:
    """Yield each line's length, closest reference length, matches and totals of 1- … 4-grams."""
    settings = _settings(options)
    return _rows(hypotheses, references, settings, tokenizer(settings.tokenize))


def from_sums(sums: Sequence[int], **options: Any) -> float:
    """Return BLEU computed from the sums of the rows of `statistics`."""
    return _compute(sums, _settings(options), effective_order=False).score


def _settings(options: dict[str, Any]) -> Settings:
    settings = Settings(**options)
    if settings.k < 0 or not math.isfinite(settings.k):
        raise UsageError(f"smooth_value is {settings.k}, must be a number of 0 or more")
    return settings


def _rows(
    hypotheses: Lines, references: References, settings: Settings, split: Tokenizer
) -> Iterator[tuple[int, ...]]:
    for line, answers in lines_with_references(hypotheses, references):
        yield _row(line, answers, settings, split)


def _row(line: str, references: list[str], settings: Settings, split: Tokenizer) -> tuple[int, ...]:
    if settings.lowercase:
        line, references = line.lower(), [reference.lower() for reference in references]
    return row_of(split.tokens(line), [split.tokens(reference) for reference in references])


def _compute(sums: Sequence[int], settings: Settings, effective_order: bool) -> Sums:
    """Return the score of summed counts, with the same order of operations as sacrebleu."""
    length, closest = sums[:2]
    counts, totals = sums[2 : 2 + ORDER], sums[2 + ORDER :]
    if settings.variant == "document":
        pairs = zip(counts, totals, strict=True)
        shares = [count / total if total else 0.0 for count, total in pairs]
        return Sums(math.exp(math.fsum(shares)), 1.0, [100.0 * share for share in shares])
    bp = 1.0
    if length < closest:
        bp = math.exp(1 - closest / length) if length > 0 else 0.0
    precisions = [0.0] * ORDER
    if not any(counts):
        return Sums(0.0, bp, precisions)
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
    return Sums(bp * math.exp(sum(logarithms) / orders), bp, precisions)


def _signature(
    settings: Settings, split: Tokenizer, references: int | str, effective_order: bool
) -> str:
    smoothing = "none" if settings.variant == "document" else settings.smooth_method
    if SMOOTHING[smoothing] is not None:
        smoothing += f"[{settings.k:.2f}]"
    return "|".join(
        (
            f"nrefs:{references}",
            f"case:{'lc' if settings.lowercase else 'mixed'}",
            f"eff:{'yes' if effective_order else 'no'}",
            f"tok:{split.name}",
            f"smooth:{smoothing}",
            *(["variant:document"] if settings.variant == "document" else []),
            f"version:{split.version}",
        )
    )


def _score(
    result: Sums, sums: list[int], signature: str, settings: Settings, warnings: list[str]
) -> Score:
    length, closest = sums[:2]
    ratio = length / closest if closest else 0.0
    name = "BLEU" if settings.variant == "standard" else "BLEU-document"
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
        "warnings": warnings,
    }
    return Score(name, result.score, signature, verbose, details)


def _warnings(hypotheses: Lines, references: References, settings: Settings) -> list[str]:
    warnings = []
    ends = 0 if settings.force else sum(line.rstrip().endswith(" .") for line in hypotheses)
    if ends >= _TOKENIZED:
        warnings.append(
            f"{number_of(ends, 'lines end')} in a full stop with a space before it: BLEU is "
            "for detokenized text,"
            " tokenized text may score lower (--force: it is meant so)"
        )
    if settings.tokenize == "13a" and _mostly_chinese(hypotheses, *references):
        warnings.append(
            "the text is mostly Chinese, which 13a does not split into words or characters:"
            " --tokenize zh"
        )
    if settings.smooth_value is not None and SMOOTHING[settings.smooth_method] is None:
        warnings.append(f"the smooth value has no effect with {settings.smooth_method}")
    if settings.variant == "document":
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
