"""BLEU: geometric mean of clipped n-gram precisions times the brevity penalty, 0 … 100.

Papineni et al. 2002; integers, score and signature are those of sacrebleu 2.6.0.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nlpkit.errors import UsageError
from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics._bleu_counts import ORDER, row_of, sum_rows
from nlpkit.score.metrics._bleu_tokens import BORROWED, OWN, Tokenizer, tokenizer
from nlpkit.score.metrics._references import (
    References,
    check_lines,
    references_a_line,
    with_references,
)

SMOOTHING: dict[str, float | None] = {"exp": None, "floor": 0.1, "add-k": 1, "none": None}
VARIANTS = ("standard", "document")
OPTIONS = (
    Option("tokenize", "13a", "how lines become tokens", ("-tok",), choices=(*OWN, *BORROWED)),
    Option(
        "smooth_method", "exp", "what orders without a match get", ("-s",), choices=(*SMOOTHING,)
    ),
    Option(
        "smooth_value", None, "for floor (0.1) and add-k (1)", ("-sv",), type=float, metavar="X"
    ),
    Option("lowercase", False, "compare without case", ("-lc",), type=bool),
    Option("force", False, "say nothing of text that looks tokenized already", type=bool),
    Option(
        "variant",
        "standard",
        "document: exp(p1 + p2 + p3 + p4), 1 … 54.6, no brevity penalty; not BLEU",
        choices=VARIANTS,
    ),
)
REFERENCES = (1, None)

_LOG_OF_ZERO = -9999999999.0  # sacrebleu's
_TOKENIZED = 100  # lines that end in " ." make sacrebleu warn
_SAMPLE = 1000  # lines looked at for Chinese
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
        """Return what the smoothing adds."""
        default = SMOOTHING[self.smooth_method]
        return (default or 0) if self.smooth_value is None else self.smooth_value


class Sums(NamedTuple):
    """BLEU of summed counts: score, brevity penalty, precisions in per cent."""

    score: float
    bp: float
    precisions: list[float]


def score(hypotheses: Sequence[str], references: References, **options: Any) -> Score:
    """Return BLEU of the corpus.

    `references[k][i]` is the k-th reference of line i, None if there is none. `details` holds
    `counts` and `totals` of 1- … 4-grams (before smoothing), `precisions` (per cent), `bp`,
    `sys_len`, `ref_len`, `ratio`, and `warnings`. Raise `DataError` if numbers of lines differ,
    `BadLine` for a line without a reference, `UsageError` for an option that cannot be.
    """
    settings = _settings(options)
    split = tokenizer(settings.tokenize)
    sums = sum_rows(_rows(hypotheses, references, settings, split))
    found = _compute(sums, settings, effective_order=False)
    signature = _signature(settings, split, references_a_line(references), effective_order=False)
    return _score(found, sums, signature, settings, _warnings(hypotheses, references, settings))


def sentences(hypotheses: Sequence[str], references: References, **options: Any) -> Iterator[Score]:
    """Yield BLEU of each line by itself, over the orders that it has (effective order)."""
    settings = _settings(options)
    split = tokenizer(settings.tokenize)
    check_lines(hypotheses, references)
    for line, found in with_references(hypotheses, references):
        row = list(_row(line, found, settings, split))
        signature = _signature(settings, split, len(found), effective_order=True)
        yield _score(_compute(row, settings, effective_order=True), row, signature, settings, [])


def statistics(
    hypotheses: Sequence[str], references: References, **options: Any
) -> Iterator[tuple[int, ...]]:
    """Yield each line's length, closest reference length, matches and totals of 1- … 4-grams."""
    settings = _settings(options)
    return _rows(hypotheses, references, settings, tokenizer(settings.tokenize))


def from_sums(sums: Sequence[int], **options: Any) -> float:
    """Return the BLEU that the sums of the rows of `statistics` give."""
    return _compute(sums, _settings(options), effective_order=False).score


def _settings(options: dict[str, Any]) -> Settings:
    settings = Settings(**options)
    if settings.k < 0 or not math.isfinite(settings.k):
        raise UsageError(f"smooth_value is {settings.k}, must be a number of 0 or more")
    return settings


def _rows(
    hypotheses: Sequence[str], references: References, settings: Settings, split: Tokenizer
) -> Iterator[tuple[int, ...]]:
    check_lines(hypotheses, references)
    for line, found in with_references(hypotheses, references):
        yield _row(line, found, settings, split)


def _row(line: str, references: list[str], settings: Settings, split: Tokenizer) -> tuple[int, ...]:
    if settings.lowercase:
        line, references = line.lower(), [reference.lower() for reference in references]
    return row_of(split.tokens(line), [split.tokens(reference) for reference in references])


def _compute(sums: Sequence[int], settings: Settings, effective_order: bool) -> Sums:
    """Return the score of summed counts, rounded as sacrebleu's arithmetic rounds."""
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
    found: Sums, sums: list[int], signature: str, settings: Settings, warnings: list[str]
) -> Score:
    length, closest = sums[:2]
    ratio = length / closest if closest else 0.0
    name = "BLEU" if settings.variant == "standard" else "BLEU-document"
    shown = "/".join(f"{precision:.1f}" for precision in found.precisions)
    verbose = (
        f"{shown} (BP = {found.bp:.3f} ratio = {ratio:.3f} hyp_len = {length} ref_len = {closest})"
    )
    details = {
        "counts": sums[2 : 2 + ORDER],
        "totals": sums[2 + ORDER :],
        "precisions": found.precisions,
        "bp": found.bp,
        "sys_len": length,
        "ref_len": closest,
        "ratio": ratio,
        "warnings": warnings,
    }
    return Score(name, found.score, signature, verbose, details)


def _warnings(hypotheses: Sequence[str], references: References, settings: Settings) -> list[str]:
    found = []
    ends = 0 if settings.force else sum(line.rstrip().endswith(" .") for line in hypotheses)
    if ends >= _TOKENIZED:
        found.append(
            f"{ends} lines end in a full stop with a space before it: BLEU is for detokenized text,"
            " tokenized text may score lower (--force: it is meant so)"
        )
    if settings.tokenize == "13a" and _mostly_chinese(hypotheses, *references):
        found.append(
            "the text is mostly Chinese, which 13a does not split into words or characters:"
            " --tokenize zh"
        )
    if settings.smooth_value is not None and SMOOTHING[settings.smooth_method] is None:
        found.append(f"the smooth value has no effect with {settings.smooth_method}")
    if settings.variant == "document":
        found.append(
            "the document's formula exp(p1 + p2 + p3 + p4) is not BLEU: from 1 to 54.6, without"
            " brevity penalty; its numbers compare with no published ones"
        )
    return found


def _mostly_chinese(*files: Sequence[str | None]) -> bool:
    """Return whether Chinese characters are most of what the first lines of any file hold."""
    for lines in files:
        text = "".join(line for line in lines[:_SAMPLE] if line)
        if not text.isascii() and 2 * len(_HAN.findall(text)) > len("".join(text.split())):
            return True
    return False
