"""Perplexity per token from a file of log-probabilities, or per word or character of a text.

A line has the log-probabilities of its tokens, with white space between them; it may be empty. The
score is exp(-mean), 1 or more; lower is better. The text with the same lines can be given as
reference. Then there are also perplexities per word and character, and bits per character and byte.
These are comparable between models with different vocabularies. All tokens in the file count: the
file decides if the ends of sentences are scored. A probability of 0 (-inf) makes the score
infinite.
"""

import math
import re
from array import array
from collections.abc import Iterator

from nlpkit.contracts.metric import BadLine, Lines, Option, References, Score
from nlpkit.errors import DataError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.score.counts.numbers import NUMBER

BASES = {"e": 1.0, "2": math.log(2), "10": math.log(10)}  # nats in one unit
NORMS = ("token", "word", "character")
REFERENCES = (0, 1)
LOWER_IS_BETTER = True
OPTIONS = (
    Option("base", "e", "base of the logarithms in the file", choices=tuple(BASES)),
    Option("per", "token",
           "unit of the score: token, or word (between white space) or character of the text "
           "that is given as reference", choices=NORMS),
    Option("count_ends", False,
           "count the end of each line as a word, character and byte; for models that score it",
           type=bool),
)  # fmt: skip
# In float32, the log-softmax of a token with probability 1 may be slightly above 0.
_ROUNDING = 1e-6
_INFINITY = re.compile(r"-inf(inity)?", re.IGNORECASE)


def score(
    hypotheses: Lines,
    references: References = (),
    *,
    base: str = "e",
    per: str = "token",
    count_ends: bool = False,
) -> Score:
    """Return exp(-sum / count); `details` has the perplexity for every unit.

    Raise `BadLine` for a value that is no log-probability (positive, nan, text), `DataError` if
    there is no token, or no word or character, `UsageError` if `per` or `count_ends` needs a text.
    """
    if not references and (per != "token" or count_ends):
        option = "--count-ends" if per == "token" else f"--per {per}"
        raise UsageError(f"{option} needs the text as a second file")
    values, lines, empty = array("d"), 0, 0
    for line in hypotheses:
        row = _read(line, lines, base)
        values.extend(row)
        lines += 1
        empty += not row
    tokens, impossible = len(values), values.count(-math.inf)
    nats = 0.0 - math.fsum(values)  # never -0.0
    counts = {"token": tokens} | _count(references, count_ends)
    for name in ("token", per):
        if not counts[name]:
            file = "file" if name == "token" else "text"
            where = f"no {name} in the {file} ({number_of(lines, 'lines')})"
            raise DataError(f"the perplexity is undefined: there is {where}")
    details: JsonObject = {f"{name}s": count for name, count in counts.items()}
    details["lines"] = lines
    details["empty_lines"] = empty
    details["log_probability_nats"] = 0.0 - nats
    details["tokens_of_probability_0"] = impossible
    for name, count in counts.items():
        if count:
            details[f"bits_per_{name}"] = nats / count / math.log(2)
            details[f"perplexity_per_{name}"] = _exp(nats / count)
    details["warnings"] = list(_warnings(nats, tokens, impossible))
    verbose = ", ".join(f"{count} {name}s" for name, count in counts.items())
    verbose += f", {details[f'bits_per_{per}']:.4f} bits per {per}"
    ends = f"|ends:{'yes' if count_ends else 'no'}" if references else ""
    signature = f"base:{base}|per:{per}{ends}"
    return Score("perplexity", _exp(nats / counts[per]), signature, verbose, details, False)


def _read(line: str, index: int, base: str) -> list[float]:
    values = []
    for field in line.split():
        if _INFINITY.fullmatch(field):
            values.append(-math.inf)
            continue
        value = float(field) if NUMBER.fullmatch(field) else math.nan
        if not math.isfinite(value):
            raise BadLine(0, index, f"{field[:40]!r} is not a log-probability")
        if value > _ROUNDING:
            what = f"{field} is positive, a log-probability is at most 0 (change the sign of "
            what += "negative log-likelihoods; take the logarithm of probabilities)"
            raise BadLine(0, index, what)
        values.append(value * BASES[base])
    return values


def _count(references: References, count_ends: bool) -> dict[str, int]:
    if not references:
        return {}
    text = references[0]
    ends = len(text) * count_ends
    return {
        "word": sum(len(line.split()) for line in text) + ends,
        "character": sum(map(len, text)) + ends,
        "byte": sum(len(line.encode()) for line in text) + ends,
    }


def _warnings(nats: float, tokens: int, impossible: int) -> Iterator[str]:
    if impossible:
        yield f"the perplexity is infinite: {number_of(impossible, 'tokens have')} probability 0"
    if tokens and not nats:
        yield "every log-probability is 0"


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
