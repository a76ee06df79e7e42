"""The rows of a task as prompts with examples, from its recipe. Imports no torch.

A prompt is K training rows with their right answers, then the row itself, `separator` between them.
Each row has examples of its own, drawn by (seed, index of the row), as in Brown et al. 2020
(arXiv:2005.14165), sec. 2.4.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from nlpkit import recipe
from nlpkit.config import FrozenConfig
from nlpkit.contracts.reader import Bad, Counts, LeftOut, RowError
from nlpkit.contracts.task import Prompted, Question, Task
from nlpkit.data import template
from nlpkit.data.cache import cache_directory
from nlpkit.data.files import Input, find_inputs
from nlpkit.data.given import list_sources
from nlpkit.data.items import Row, read_rows
from nlpkit.data.settings import Config as DataConfig
from nlpkit.data.settings import Part
from nlpkit.errors import DataError, UsageError
from nlpkit.evaluate import list_left_out
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.score.settings import Prompt


@dataclass(frozen=True)
class PromptRow(Question):
    """A row as text: its prompt, and the answers to choose from, each with the prefix."""

    prompt: str
    place: str


@dataclass(frozen=True)
class Rows:
    """The rows of a task's recipe as text, and the settings that made them."""

    name: str
    seed: int
    metrics: tuple[str, ...]
    settings: Prompt  # every setting given
    rows: list[PromptRow]
    train: list[PromptRow]  # empty if no examples are needed
    counts: Counts = field(default_factory=Counts)  # what was left out of the rows
    locate: Callable[[str], str] = str  # adds the place of a setting in the recipe to a message

    def draw_examples(self, shots: int, seed: int, number: int) -> list[PromptRow]:
        """Return the examples of a row: training rows, but never the row itself."""
        if not shots:
            return []
        drawn = np.random.default_rng([seed, number]).permutation(len(self.train))
        row = self.rows[number]
        own = (row.prompt, row.right)
        others = (self.train[index] for index in drawn)
        return list(islice((each for each in others if (each.prompt, each.right) != own), shots))

    def check_examples(self, shots: int) -> None:
        """Raise `UsageError` if a row has fewer examples than this."""
        same = Counter((each.prompt, each.right) for each in self.train)
        row = max(self.rows, key=lambda row: same[row.prompt, row.right])
        if shots > (others := len(self.train) - same[row.prompt, row.right]):
            all_rows = number_of(len(self.train), "training rows")
            raise UsageError(
                f"--shots {shots}: {row.place}: {others:,} of {all_rows} can be its examples; the "
                "rest are this row itself"
            )

    def write_prompt(self, examples: Sequence[PromptRow], row: PromptRow) -> str:
        """Return the prompt of a row behind its examples."""
        parts = [each.prompt + each.right for each in examples]
        return str(self.settings.separator).join([*parts, row.prompt])


def load(name: str, overrides: Sequence[str], files: Sequence[str], shots: int) -> Rows:
    """Return the rows of a recipe: those of `files`, or else its held-out rows.

    Raises:
        RecipeError: a mistake in the recipe.
        UsageError: the recipe is of no task, or has too few training rows for `shots` examples.
        DataError: `file:line: what` is wrong with a row.
    """
    # Nothing is trained, so `eval.metrics` may be without the recipe's `best_by`.
    resolved = recipe.load(name, ["train.best_by=loss", *overrides])
    first = resolved.recipe.objective[0]
    task = first.objective
    if not (issubclass(task, Task) and isinstance(task, Prompted)):
        raise UsageError(f"{name}: objective {first.name} is no task whose rows can be prompts")
    data = resolved.recipe.data
    if not files and not data.valid and not data.valid_fraction:
        raise UsageError(f"{name} names no held-out data; name them: --data FILE")
    cache = cache_directory(data.cache, None, lambda _: None)
    train, valid = find_inputs(data, resolved.base, cache)
    part: Part = "train" if data.valid_fraction else "all"
    shown = resolved.recipe.eval.prompt.template or task.wording(first.config).template
    # Else all rows would have the same prompt.
    wrong = template.problem(shown) if template.is_template(shown) else "it has no {COLUMN}"
    if wrong:
        raise UsageError(resolved.document.locate(f"eval.prompt.template: {wrong}"))
    # If all of them are numbers, the file has no header.
    columns = (*task.named_columns(first.config), *template.columns(shown))

    counts = Counts()

    def read(inputs: Sequence[Input], which: Part, into: Counts) -> list[Row]:
        return list(read_rows(inputs, data, columns, into, which))

    labelled = hasattr(first.config, "labels") and first.config.labels is None
    known = read(train, part, Counts()) if shots or labelled else []
    config = task.complete(first.config, known)
    settings = _complete_settings(resolved, task, config)
    if files:
        sources = list_sources(files, data.format, are_rows=True)
        settings_of_files = data.model_dump(exclude={"valid", "valid_fraction"})
        chosen = DataConfig.model_validate({**settings_of_files, "train": sources})
        rows = read(find_inputs(chosen, resolved.base, cache)[0], "all", counts)
    elif data.valid:
        rows = read(valid, "all", counts)
    else:
        rows = read(train, "valid", counts)
    skip = data.on_error == "skip"
    asked = _show_all(rows, task, config, settings, counts, skip)
    examples = _show_all(known, task, config, settings, Counts(), skip) if shots else []
    if not asked:
        raise DataError("; ".join([f"{name}: no rows to score", *list_left_out(counts)[:1]]))
    if shots > len(examples):
        raise UsageError(f"--shots {shots}: {name} has {number_of(len(examples), 'training rows')}")
    metrics = tuple(resolved.recipe.eval.metrics or task.metrics)
    name, seed, locate = resolved.recipe.name, resolved.recipe.seed, resolved.document.locate
    return Rows(name, seed, metrics, settings, asked, examples, counts, locate)


def _complete_settings(resolved: Resolved, task: Prompted, config: FrozenConfig) -> Prompt:
    """Return the recipe's settings, the task's where it has none."""
    given, usual = resolved.recipe.eval.prompt, task.wording(config)
    labels = given.labels or {}
    classes = config.setting("labels")
    wrong = [name for name in labels if name not in (classes or ())]
    if wrong:
        known = f"the classes are {', '.join(classes)}" if classes else "the task has no classes"
        what = f"eval.prompt.labels: no class {wrong[0]!r}; {known}"
        raise UsageError(resolved.document.locate(what))
    texts = [labels.get(name, name) for name in classes or ()]
    if twice := [text for text in texts if texts.count(text) > 1]:
        what = f"eval.prompt.labels: several classes are {twice[0]!r}; give each its own text"
        raise UsageError(resolved.document.locate(what))
    names = ("template", "answer_prefix", "separator", "neutral")
    lacking = [name for name in names if getattr(given, name) is None]
    return given.model_copy(update={name: getattr(usual, name) for name in lacking})


def _show_all(
    rows: Sequence[Row],
    task: Prompted,
    config: FrozenConfig,
    settings: Prompt,
    counts: Counts,
    skip: bool,
) -> list[PromptRow]:
    found = []
    for row in rows:
        try:
            found.append(_show(row, task, config, settings))
        except LeftOut:
            counts.left_out += 1
        except RowError as error:
            if not skip:
                raise DataError(f"{row.file}:{row.line}: {error.what}") from error
            counts.add_bad(Bad(row.file, row.line, error.what))
    return found


def _show(row: Row, task: Prompted, config: FrozenConfig, settings: Prompt) -> PromptRow:
    question = task.question(config, row)
    prompt = fill(str(settings.template), row)
    prefix, labels = str(settings.answer_prefix), settings.labels or {}

    def answer(name: str) -> str:
        return prefix + labels.get(name, name)

    answers, right = tuple(map(answer, question.answers)), answer(question.right)
    place = f"{row.file}:{row.line}"
    return PromptRow(answers, question.names, right, question.label, prompt, place)


def fill(text: str, row: Row) -> str:
    """Return the template with the row's values; `{{` and `}}` are braces.

    Raises:
        RowError: the row has no such column, or it holds neither text nor a number.
    """
    try:
        return template.fill(text, row.values, _to_text)
    except RowError as error:
        raise RowError(f"eval.prompt.template: {error.what}") from error


def _to_text(content: object, column: str) -> str:
    """Return a value as text; a number as it is in the row, also 2.0."""
    if isinstance(content, bool) or not isinstance(content, (str, int, float)):
        raise RowError(f'"{column}" is neither text nor a number')
    return str(content)
