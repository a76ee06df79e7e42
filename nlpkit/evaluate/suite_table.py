"""The table of a suite: the scores of each task's runs, beside what needs no model. No torch.

Scores are those of the evaluation after the last step, so nothing is chosen by held-out rows.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.contracts.task import Prompted, Task
from nlpkit.disk import write_text
from nlpkit.errors import UsageError
from nlpkit.evaluate import baselines, prompts
from nlpkit.json_types import JsonObject
from nlpkit.recipe import Resolved
from nlpkit.report import history, seeds
from nlpkit.text_table import aligned, markdown
from nlpkit.train.scores import scores
from nlpkit.train.state import LOSS

PRETRAINED, NOTHING, RATES = "pretrained", "from_nothing", "rates"
_WORDS, _COMMONEST = "counted_words", "commonest_answer"
_TRIED = "of N: the number of rates tried, where the sides differ"
_END = "(end): the best rate is the lowest or highest one that was tried"
_LEGEND = "*: a seed has the score of the commonest answer, or none that is defined"


def start_row(resolved: Resolved, sets: Sequence[str], recipe: str) -> JsonObject:
    """Return the name of a task, its score, and what counted words and the commonest answer have.

    The score is the first of eval.metrics, or train.best_by, or the first of the task's own; the
    loss where text is to be written. Both figures are None if there are no answers to choose from.

    Raises:
        DataError: a row of the task is wrong.
        UsageError: the recipe is of no task, or names no held-out rows.
    """
    settings, objective = resolved.recipe, resolved.recipe.objective[0]
    task = objective.objective
    if not issubclass(task, Task):
        raise UsageError(f"recipe: {recipe}: objective {objective.name} is of no task")
    best_by = [settings.train.best_by] if settings.train.best_by != LOSS else []
    own = (*(settings.eval.metrics or ()), *best_by, *task.metrics)
    if not (settings.data.valid or settings.data.valid_fraction):
        raise UsageError("data.valid: needed: the score of a task is that of held-out rows")
    # Text is not written during training, so its scores are not known there.
    score = (*(own if task.predict is not Task.predict else ()), LOSS)[0]
    row: JsonObject = {"task": settings.name, "score": score, _WORDS: None, _COMMONEST: None}
    if not isinstance(task, Prompted) or objective.config.setting("regression"):
        return row
    found = prompts.load(recipe, sets, (), 1)
    if found.train[0].answers:
        right = [each.label for each in found.rows]
        ways = {_WORDS: baselines.count_words, _COMMONEST: baselines.choose_commonest}
        for name, choose in ways.items():
            answers = zip(choose(found.train, found.rows), right, strict=True)
            row[name] = scores([score], list(answers))[score]
    return row


def add_scores(row: JsonObject, runs: Mapping[str, Sequence[Path]]) -> JsonObject:
    """Return a row with the scores of its finished runs, and whether the two sides differ."""
    score, row = row["score"], dict(row)
    for side, paths in runs.items():
        finished = [path for path in paths if RunDirectory(path).finished()]
        values = [history.read(path, str(path)).final.get(score) for path in finished]
        row[side] = seeds.summarize(values)
        row[side]["commonest"] = sum(_is_commonest(value, row[_COMMONEST]) for value in values)
    first, other = row[NOTHING]["values"], row[PRETRAINED]["values"]
    known = first and other and None not in (*first, *other)
    return row | {"difference": seeds.compare(first, other).verdict if known else None}


def _is_commonest(value: float | None, commonest: float | None) -> bool:
    if value is None or commonest is None:
        return value is None
    return math.isclose(value, commonest, abs_tol=1e-9)


def write(rows: Sequence[JsonObject], title: str, file: Path) -> str:
    """Write the table as Markdown; return it as text."""
    rate = ["rate"] if any(RATES in row for row in rows) else []
    head = ["task", "score", "pretrained", *rate, "from nothing", *rate]
    head += ["difference", "counted words", "commonest answer"]
    cells = []
    for row in rows:
        sides = [cell for side in (PRETRAINED, NOTHING) for cell in _show_side(row, side)]
        without = ["–" if row[key] is None else f"{row[key]:.3f}" for key in (_WORDS, _COMMONEST)]
        cells.append([row["task"], row["score"], *sides, row["difference"] or "–", *without])
    marks = {" *": _LEGEND, " of ": _TRIED, " (end)": _END}
    notes = [said for mark, said in marks.items() if any(mark in c for row in cells for c in row)]
    text = "\n".join([f"# {title}", "", markdown(head, cells), "", *notes]).rstrip() + "\n"
    write_text(file, text)
    return "\n".join([*aligned([head, *cells], numbers=False), *notes])


def _show_side(row: JsonObject, side: str) -> list[str]:
    """Return the mean of a side, and its rate with what a reader has to know of the search."""
    mean = seeds.format_mean(row[side], 3) + (" *" if row[side]["commonest"] else "")
    if RATES not in row:
        return [mean]
    chosen, tried = row[RATES][side]["chosen"], row[RATES][side]["tried"]
    rate = "–" if chosen is None else f"{chosen:g}"
    rate += f" of {len(tried)}" if len({len(of["tried"]) for of in row[RATES].values()}) > 1 else ""
    ends = [min(map(float, tried)), max(map(float, tried))] if tried else []
    return [mean, rate + (" (end)" if chosen in ends else "")]
