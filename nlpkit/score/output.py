"""Scores as text lines, tables and JSON, as sacrebleu prints them; and in full, unrounded."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nlpkit import text_table
from nlpkit.contracts.metric import Score

# sacrebleu's short signatures (Signature._abbr); what is not here stays as it is.
_SHORT = {"version": "v", "nrefs": "#", "seed": "rs", "case": "c", "eff": "e", "smooth": "s"}
_SHORT_OF = {
    "chrF": {"space": "s"},
    "TER": {"tok": "t", "norm": "nr", "punct": "pn", "asian": "as"},
}
_SIGNIFICANT = 0.05


class Result(NamedTuple):
    """One score of one system; without a test, its mean, interval and p-value are None."""

    metric: str
    system: str
    score: Score
    signature: str
    mean: float | None = None
    half_width: float | None = None  # of the 95 % interval
    p_value: float | None = None


def shorten(name: str, signature: str) -> str:
    """Return the signature with sacrebleu's short keys."""
    own = next((keys for start, keys in _SHORT_OF.items() if name.startswith(start)), {})
    parts = [part.partition(":") for part in signature.split("|")]
    return "|".join(f"{(_SHORT | own).get(key, key)}{sep}{value}" for key, sep, value in parts)


def round_score(score: Score, value: float, width: int | None) -> str:
    """Return a number with `width` decimals; without it 1 of 0…100, 4 of other scores."""
    return f"{value:.{(1 if score.percent else 4) if width is None else width}f}"


def format_number(result: Result, width: int | None) -> str:
    """Return the score alone, as `-b` prints it, with the interval if there is one."""
    text = round_score(result.score, result.score.score, width)
    return f"{text} ({interval})" if (interval := _format_interval(result, width)) else text


def _format_interval(result: Result, width: int | None) -> str:
    """Return the interval as text; "" without a test."""
    if result.mean is None or result.half_width is None:
        return ""
    mean, half = (round_score(result.score, x, width) for x in (result.mean, result.half_width))
    return f"μ = {mean} ± {half}"


def format_line(result: Result, width: int | None, short: bool) -> str:
    """Return `BLEU|signature = 36.3 …`."""
    number = format_number(result, width)
    return f"{_format_name(result, short)} = {number} {result.score.verbose}".rstrip()


def _format_name(result: Result, short: bool) -> str:
    name, signature = result.score.name, result.signature
    return f"{name}|{shorten(name, signature) if short else signature}" if signature else name


def align_equals(lines: Sequence[str]) -> list[str]:
    """Return the lines with their first `=` below each other, as sacrebleu prints several."""
    if len(lines) == 1 or not all("=" in line for line in lines):
        return list(lines)
    width = max(line.index("=") for line in lines)
    return [" " * (width - line.index("=")) + line for line in lines]


def to_sacrebleu(result: Result, width: int | None) -> dict[str, object]:
    """Return sacrebleu's JSON object of a single system."""
    score = result.score

    def round_(value: float) -> float:
        return float(round_score(score, value, width))

    found: dict[str, object] = {"name": score.name, "score": round_(score.score)}
    found["signature"] = result.signature
    if result.mean is not None and result.half_width is not None:
        found["confidence_mean"] = round_(result.mean)
        found["confidence_var"] = round_(result.half_width)
        found["confidence"] = _format_interval(result, width)
    if score.verbose:
        found["verbose_score"] = score.verbose
    parts = [part.partition(":") for part in result.signature.split("|") if part]
    return found | {key: value for key, _, value in parts}


def systems_to_sacrebleu(
    rows: Sequence[Sequence[Result]], width: int | None, paired: bool
) -> list[dict[str, object]]:
    """Return sacrebleu's JSON of several systems: a rounded string each, or a test's numbers."""
    found = []
    for index, row in enumerate(rows):
        values: dict[str, object] = {"system": _name_system(row[0], index, paired)}
        for each in row:
            value = each.score.score
            tested = {"score": value, "p_value": each.p_value}
            tested |= {"mean": each.mean, "ci": each.half_width}
            values[each.score.name] = tested if paired else round_score(each.score, value, width)
        found.append(values)
    return found


def to_object(result: Result, sources: Sequence[str], lines: int) -> dict[str, object]:
    """Return all values, unrounded."""
    score = result.score
    found: dict[str, object] = {
        "metric": result.metric, "name": score.name, "score": score.score,
        "signature": result.signature, "verbose": score.verbose,
        "hypotheses": result.system, "references": list(sources), "lines": lines,
    }  # fmt: skip
    tested = {"mean": result.mean, "half_width": result.half_width, "p_value": result.p_value}
    found |= {key: value for key, value in tested.items() if value is not None}
    return found | {"details": score.details}


def format_table(
    rows: Sequence[Sequence[Result]], width: int | None, short: bool, paired: bool
) -> str:
    """Return a line for each system and a column for each metric, then the signatures."""
    what = "" if rows[0][0].mean is None else " (μ ± 95% CI)"
    cells = [["System", *(f"{each.score.name}{what}" for each in rows[0])]]
    for index, row in enumerate(rows):
        values = [_format_cell(each, width) for each in row]
        cells.append([_name_system(row[0], index, paired), *values])
    lines = [*text_table.aligned(cells, numbers=False), ""]
    if paired:
        lines.append(f"p: of the difference to the baseline; *: at most {_SIGNIFICANT}")
    lines += [_format_name(each, short) for each in rows[0]]
    for each in (each for row in rows for each in row):
        if table := each.score.verbose.partition("\n")[2]:  # of each class
            lines += ["", f"{each.system}: {each.score.name}", table]
    return "\n".join(lines)


def _format_cell(result: Result, width: int | None) -> str:
    text = format_number(result, width).replace("μ = ", "")
    if result.p_value is not None:
        text += f" (p = {result.p_value:.4f}){'*' if result.p_value <= _SIGNIFICANT else ''}"
    return text


def _name_system(result: Result, index: int, paired: bool) -> str:
    return f"Baseline: {result.system}" if paired and index == 0 else result.system


def to_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON; numbers that are not finite are null."""
    import json

    return json.dumps(_make_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _make_finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _make_finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_make_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
