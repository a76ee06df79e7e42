"""The page of scores: what each is, its range, what it reads, its papers, and its proof."""

import re
from typing import cast

from nlpkit import registry
from nlpkit.contracts.metric import Metric, Tool, is_metric
from nlpkit.contracts.task import Task

# The range, and the library or script with which a test compares it, by score. All else is read
# from the code; tests/docs/test_scores_page.py tries the ranges and looks for the libraries.
FACTS = {
    "accuracy": ("0 … 1", "scikit-learn"),
    "bleu": ("0 … 100", "sacrebleu"),
    "bm25": ("", "bm25s"),
    "cer": ("0 …", "jiwer"),
    "chrf": ("0 … 100", "sacrebleu"),
    "distinct": ("0 … 1", ""),
    "entity_f1": ("0 … 1", "seqeval 1.2.2, its numbers recorded"),
    "exact_match": ("0 … 1", ""),
    "f1": ("0 … 1", "scikit-learn"),
    "ir": ("0 … 1", "ir_measures"),
    "mcc": ("-1 … 1", "scikit-learn"),
    "pearson": ("-1 … 1", "scipy"),
    "perplexity": ("1 …", ""),
    "rouge": ("0 … 1", "rouge_score"),
    "spearman": ("-1 … 1", "scipy"),
    "squad_f1": ("0 … 1", ""),
    "tag_accuracy": ("0 … 1", ""),
    "ter": ("0 …", "sacrebleu"),
    "tfidf": ("", "scikit-learn"),
    "wer": ("0 …", "jiwer"),
}
_NAME = r"(?:[A-Z]\w+ ){0,2}[A-Z]\w+"
_PAPER = re.compile(rf"{_NAME}(?: et al\.| and {_NAME})? \d{{4}}(?: and \d{{4}})?")
# These read files of their own kind.
_TOOL_INPUT = {
    "bm25": "documents, queries", "ir": "judgements, rankings", "tfidf": "documents, queries",
}  # fmt: skip


def _input(name: str, score: Metric | Tool) -> str:
    if not is_metric(score):
        return _TOOL_INPUT[name]
    fewest, most = score.REFERENCES
    return {
        (0, 0): "lines",
        (0, 1): "lines, perhaps their text",
        (1, 1): "lines, one reference each",
        (1, None): "lines, one or more references each",
    }[fewest, most]


def _row(name: str) -> str:
    score = cast("Metric | Tool", registry.load("score/metrics", name))
    text = " ".join((score.__doc__ or "").split())
    extent, library = FACTS[name]
    lower = is_metric(score) and score.LOWER_IS_BETTER
    better = f"{extent}, {'lower' if lower else 'higher'} is better" if extent else ""
    papers = ", ".join(dict.fromkeys(_PAPER.findall(text)))
    about = registry.about("score/metrics", name)
    cells = (f"`{name}`", about, better, _input(name, score), papers, library)
    return f"| {' | '.join(cells)} |"


def _options(name: str) -> str:
    """Return a row with the options and their defaults, or nothing for a score without any."""
    score = cast("Metric | Tool", registry.load("score/metrics", name))
    found = score.OPTIONS if is_metric(score) else ()
    shown = [f"`{option.name}={_write(option.default)}`" for option in found]
    return f"| `{name}` | {', '.join(shown)} |" if shown else ""


def _write(value: object) -> str:
    """Return a default as a recipe writes it."""
    return str(value).lower() if isinstance(value, bool) else "…" if value is None else str(value)


def _own_scores(name: str) -> tuple[str, ...]:
    objective = registry.load("objectives", name).Objective
    metrics = objective.metrics if issubclass(objective, Task) else ()
    # `scores` may be a property of an objective that exists.
    return metrics + (objective.scores if isinstance(objective.scores, tuple) else ())


def write_scores() -> str:
    """Return the page without the line that says who made it."""
    heads = "name | what | range | input | papers | equal in tests to"
    rows = [f"| {heads} |", "|---|---|---|---|---|---|"]
    rows += [_row(name) for name in registry.names("score/metrics")]
    options = ["| name | options, with their defaults |", "|---|---|"]
    options += filter(None, map(_options, registry.names("score/metrics")))
    tasks = ["| objective | scores of its evaluations |", "|---|---|"]
    for name in registry.names("objectives"):
        if scores := _own_scores(name):
            tasks.append(f"| `{name}` | {', '.join(f'`{score}`' for score in scores)} |")
    return "\n".join(
        [
            "# Scores\n",
            "`nlpkit score NAME HYP REF…`, and `eval.metrics: [NAME, …]` in a recipe whose rows",
            "have answers. How to use them, and their defaults: [using scores](../score.md).",
            "The losses of a run, which are no scores: [files of a run](files.md).\n",
            "## Every score\n",
            *rows,
            "\nWithout a library in the last column, the expected values in the tests come from",
            "the paper's script or from hand arithmetic; *recorded*: the library itself does not",
            "run in the tests.\n",
            "## Options\n",
            "On the command line `--tokenize zh`; in a recipe `rouge:tokenize=zh`. `bm25`, `ir`",
            "and `tfidf` have theirs in `nlpkit score NAME --help`.\n",
            *options,
            "\n## Scores of tasks\n",
            "Without `eval.metrics` an objective has these. A name that the settings decide",
            "(the scheme of tags, regression instead of classes) is that of the defaults.\n",
            *tasks,
        ]
    ) + "\n"  # fmt: skip
