"""The table of a suite: the scores of each task's runs, beside what needs no model. No torch.

Scores are those of the evaluation after the last step, so nothing is chosen by held-out rows.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from nlpkit import registry
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.contracts.task import Prompted, Task
from nlpkit.disk import write_text
from nlpkit.errors import UsageError
from nlpkit.evaluate import baselines, prompts
from nlpkit.json_types import JsonObject
from nlpkit.recipe import Resolved
from nlpkit.report import history, seeds
from nlpkit.text_table import aligned
from nlpkit.train.scores import scores
from nlpkit.train.state import LOSS

PRETRAINED, NOTHING = "pretrained", "from_nothing"
_WORDS, _COMMONEST = "counted_words", "commonest_answer"
_LEGEND = "*: a seed has the score of the commonest answer, or none that is defined"


def start_row(resolved: Resolved, sets: Sequence[str], recipe: str) -> JsonObject:
    """Return the name of a task, its score, and what counted words and the commonest answer have.

    The score is the first of eval.metrics, or train.best_by, or the first of the task's own. Both
    figures are None if there are no answers to choose from.

    Raises:
        DataError: a row of the task is wrong.
        UsageError: the recipe is of no task.
    """
    settings, objective = resolved.recipe, resolved.recipe.objective[0]
    task = registry.load("objectives", objective.name).Objective
    if not issubclass(task, Task):
        raise UsageError(f"{recipe}: objective {objective.name} is of no task")
    best_by = [settings.train.best_by] if settings.train.best_by != LOSS else []
    score = [*(settings.eval.metrics or ()), *best_by, *task.metrics, LOSS][0]
    row: JsonObject = {"task": settings.name, "score": score, _WORDS: None, _COMMONEST: None}
    if not isinstance(task, Prompted) or objective.config.setting("regression"):
        return row
    found = prompts.load(recipe, sets, (), 1)
    right = [each.label for each in found.rows]
    if found.train[0].answers:
        for name, choose in (
            (_WORDS, baselines.count_words),
            (_COMMONEST, baselines.choose_commonest),
        ):
            chosen = choose(found.train, found.rows)
            row |= {name: scores([score], list(zip(chosen, right, strict=True)))[score]}
    return row


def add_scores(row: JsonObject, runs: Mapping[str, Sequence[Path]]) -> JsonObject:
    """Return a row with the scores of its finished runs, and whether the two sides differ."""
    score, row = row["score"], dict(row)
    for side, paths in runs.items():
        values = [_read_score(path, score) for path in paths if RunDirectory(path).finished()]
        figures = seeds.summary([], [{score: value} for value in values])["figures"]
        row[side] = figures.get(score, {"mean": None, "std": None, "values": []})
        row[side]["commonest"] = sum(_is_commonest(value, row[_COMMONEST]) for value in values)
    first, other = row[NOTHING]["values"], row[PRETRAINED]["values"]
    known = first and other and None not in (*first, *other)
    return row | {"difference": seeds.compare(first, other).verdict if known else None}


def _read_score(run: Path, score: str) -> float | None:
    evaluations = history.read(run, str(run)).evaluations
    last = evaluations[max(evaluations)] if evaluations else {LOSS: None, "metrics": {}}
    return last[LOSS] if score == LOSS else last["metrics"].get(score)


def _is_commonest(value: float | None, commonest: float | None) -> bool:
    if value is None or commonest is None:
        return value is None
    return math.isclose(value, commonest, abs_tol=1e-9)


def write(rows: Sequence[JsonObject], title: str, file: Path) -> str:
    """Write the table as Markdown; return it as text."""
    columns = ("task", "score", PRETRAINED, NOTHING, "difference", _WORDS, _COMMONEST)
    cells = [
        [name.replace("_", " ") for name in columns],
        *([_format(row[column]) for column in columns] for row in rows),
    ]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    lines.insert(1, "|---" * len(columns) + "|")
    note = [_LEGEND] if any(" *" in cell for row in cells for cell in row) else []
    text = "\n".join([f"# {title}", "", *lines, "", *note]).rstrip() + "\n"
    write_text(file, text)
    return "\n".join([*aligned(cells, numbers=False), *note])


def _format(value: object) -> str:
    if isinstance(value, dict):  # of seeds
        deviation = "" if value["std"] is None else f" ± {value['std']:.3f}"
        return f"{_format(value['mean'])}{deviation}{' *' if value['commonest'] else ''}"
    return f"{value:.3f}" if isinstance(value, float) else str(value or "–")
