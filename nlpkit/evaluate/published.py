"""What a published script prints for minimal pairs, beside our accuracy, and why they differ.

The scripts, their commits and the models that they open are in `published_scores`. BLiMP's own
repository (alexwarstadt/blimp, commit 0ee32bcd, result_processing/process_simplelm.py) has no code
that scores sentences: `blimp` is its rule over our scores. Imports no torch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nlpkit.errors import DataError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.runs.pairs import Pair, Scores, format_table

if TYPE_CHECKING:
    from nlpkit.runs.likelihood import Likelihood


@dataclass(frozen=True)
class Script:
    """How a script counts; its figures are printed times `scale` with `digits`."""

    methods: tuple[str, ...]  # of our scores beside which it can stand
    tie: float  # what a pair with equal scores counts
    of_paradigms: bool  # whether the mean is over the paradigms, or over all pairs
    groups: tuple[str, ...]  # columns whose accuracies it prints, too
    scale: float
    digits: int


SCRIPTS = {
    "babylm-2026": Script(
        ("log-probability", "pll"), 1.0, True, ("field", "linguistics_term"), 100.0, 2
    ),
    "zhoblimp": Script(("log-probability",), 0.0, False, (), 1.0, 4),
    "blimp": Script(("log-probability", "pll"), 0.0, True, ("linguistics_term",), 1.0, 4),
}


# The scores (P, 2) of a script, good and bad; dtype, begin_token, and more figures that it prints.
Scored = tuple[np.ndarray, JsonObject]


def score(
    name: str, pairs: Sequence[Pair], likelihood: "Likelihood", stop: Callable[[], None]
) -> Scored | None:
    """Return the scores that the script computes from the checkpoint's files; None: it has none.

    Raises:
        DataError, UsageError: the script would fail, on a pair or on the checkpoint.
    """
    methods = SCRIPTS[name].methods
    if likelihood.method not in methods:
        raise UsageError(
            f"--as {name}: the script scores by {' or '.join(methods)}, not {likelihood.method}"
        )
    for pair in pairs:
        _label(name, pair)
    if name == "blimp":
        return None
    import torch

    from nlpkit.evaluate import published_scores as scores

    folder, device = Path(likelihood.opened.path), next(likelihood.opened.model.parameters()).device
    causal = likelihood.method == "log-probability"
    half = torch.float16 if name == "zhoblimp" else None
    auto = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
    opened = scores.open_checkpoint(auto, folder, device, half, stop)
    compute = scores.score_babylm_causal if causal else scores.score_babylm_masked
    values = (scores.score_zhoblimp if name == "zhoblimp" else compute)(opened, pairs)
    return values, {"dtype": str(opened.model.dtype).removeprefix("torch."), **opened.seen}


def compute_figures(
    name: str, pairs: Sequence[Pair], scored: Scored | None, scores: Scores
) -> JsonObject:
    """Return the script's figures, and by what they differ from ours, as accuracies in steps."""
    script = SCRIPTS[name]
    labels = [_label(name, pair) for pair in pairs]
    ours = scores.sums().reshape(-1, 2)
    theirs, seen = (ours, {}) if scored is None else scored
    our_gap, gap = (values[:, 0] - values[:, 1] for values in (ours, theirs))
    firsts = [text.ids[0] for text in scores.encoded]
    # What each pair counts: 1, 0, or that of a tie.
    own, credit = (np.where(each == 0, script.tie, each > 0) for each in (our_gap, gap))
    half = scores.credit()
    uids = [each["UID"] for each in labels]
    average = _average(credit, uids, script)
    groups = {
        key: _mean_by(credit, [each[key] for each in labels], uids if name == "blimp" else None)
        for key in script.groups
    }
    return {
        "name": name,
        "accuracy": average,
        "paradigms": _mean_by(credit, uids),
        "groups": groups,
        "ties": int(np.sum(gap == 0)),
        "our_ties": int(np.sum(our_gap == 0)),
        "decided_otherwise": int(np.sum(np.sign(our_gap) != np.sign(gap))),
        "first_token_differs": int(np.not_equal(firsts[::2], firsts[1::2]).sum()),
        "steps": {
            "ours": float(half.mean()),
            "average": _average(half, uids, script),
            "ties": _average(own, uids, script),
            "scores": average,
        },
        **seen,
    }


def _average(credit: np.ndarray, uids: Sequence[str], script: Script) -> float:
    if not script.of_paradigms:
        return float(credit.mean())
    means = _mean_by(credit, uids)
    return sum(means.values()) / len(means)


def _mean_by(
    credit: np.ndarray, names: Sequence[str], within: Sequence[str] | None = None
) -> dict[str, float]:
    """Return the mean of each name, over its pairs, or over the means of the `within` names."""
    array = np.array(names)
    own = {name: array == name for name in dict.fromkeys(names)}
    if within is None:
        return {name: float(credit[pairs].mean()) for name, pairs in own.items()}
    others = np.array(within)
    inner = {name: _mean_by(credit[pairs], others[pairs].tolist()) for name, pairs in own.items()}
    return {name: sum(means.values()) / len(means) for name, means in inner.items()}


def _label(name: str, pair: Pair) -> Mapping[str, str]:
    """Return the names under which a script counts a pair, as its reader makes them."""
    groups = pair.groups
    if name == "babylm-2026":
        # The Chinese pipeline has `phenomenon` alone; the supplement's files have none of them.
        if "field" not in groups:
            other = groups.get("phenomenon", "supplement")
            return {"UID": pair.paradigm, "field": other, "linguistics_term": other}
        if "linguistics_term" not in groups:
            raise DataError(f'{pair.place}: "field" without "linguistics_term"')
        named = groups["field"].replace("syntax_semantics", "syntax/semantics")
        return {**groups, "UID": pair.paradigm, "field": named}
    if name == "blimp" and "linguistics_term" not in groups:
        raise DataError(f'{pair.place}: no "linguistics_term", by which BLiMP\'s script counts')
    return {**groups, "UID": pair.paradigm}


def format_report(result: JsonObject, figures: JsonObject) -> str:
    """Return the table with the script's column, its other figures, and what makes the difference.

    `figures` are those of `compute_figures`, `result` ours.
    """
    name = figures["name"]
    script = SCRIPTS[name]

    def show(value: float) -> str:
        return f"{script.scale * value:.{script.digits}f}"

    values = [*(figures["paradigms"][key] for key in result["paradigms"]), figures["accuracy"]]
    column = [name, *map(show, values)]
    lines = [format_table(result, column), ""]
    for key, values in figures["groups"].items():
        lines += [f"{name} {key} {group}: {show(value)}" for group, value in values.items()]
    for key in [key for key in ("meanLP", "PPL") if key in figures]:
        lines.append(f"{name} {key}: {math.inf if figures[key] is None else figures[key]:.4f}")
    own = f"{show(figures['steps']['ours'])} ± {show(result['half_width'])}"
    lines.append(f"{name} {show(figures['accuracy'])}, ours {own}; from ours to {name}:")
    return "\n".join([*lines, *_explain(script, figures, result, show)])


def _explain(
    script: Script, figures: JsonObject, result: JsonObject, show: Callable[[float], str]
) -> list[str]:
    """Return a line for each step from our accuracy to the script's."""
    steps = figures["steps"]
    pairs = number_of(result["pairs"], "pairs")
    paradigms = number_of(len(figures["paradigms"]), "paradigms")
    lines = []
    if script.of_paradigms:
        lines.append(f"  mean of {paradigms}, not of {pairs}: {show(steps['average'])}")
    word = "right" if script.tie else "wrong"
    lines.append(
        f"  a tie counts as {word}, not as half: {show(steps['ties'])} "
        f"({number_of(figures['our_ties'], 'ties')} of ours)"
    )
    if figures["name"] == "blimp":
        return [*lines, "  the repository has no code that scores sentences: ours, in float32"]
    begin = "the text begins with a special token, which is not scored"
    if not figures.get("begin_token", True):
        begin = (
            "nothing stands before a text, whose first token has no score: "
            f"{number_of(figures['first_token_differs'], 'pairs differ')} in it"
        )
    lines.append(
        f"  its scores: {show(steps['scores'])} ({figures['dtype']}; {begin}; "
        f"{number_of(figures['decided_otherwise'], 'pairs')} decided otherwise, "
        f"{number_of(figures['ties'], 'ties')})"
    )
    lines.append("  no sentence is cut and no pair left out: the script does neither")
    return lines
