"""Look into data: find evaluation text in training text."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlpkit import completion, registry
from nlpkit.commands._options import Common, argument, option, shared
from nlpkit.errors import UsageError
from nlpkit.plural import number_of
from nlpkit.text_table import aligned
from nlpkit.verbs import Verb

if TYPE_CHECKING:
    from nlpkit.data.overlap import Found, Row
    from nlpkit.recipe import Resolved

_RECIPES = (".yaml", ".yml")

command = typer.Typer(no_args_is_help=True)

Files = Annotated[list[str], argument("FILE...", "evaluation text: files or globs")]


@command.callback()
def _group() -> None:  # a group also with one verb
    pass


@dataclass(frozen=True)
class Asked:
    """Where the text is looked for, and how."""

    training: list[str] | None = option(
        "--in TRAINING",
        "a recipe, whose data.train is searched, or a file or glob; repeatable",
        autocompletion=completion.list_recipes,
    )
    words: int = option(
        "--words N", "words in a row that must agree, or Chinese characters", default=13, min=2
    )
    examples: int = option("--examples N", "rows shown of each FILE", default=3, min=0)


@command.command("contains", cls=Verb)
@shared("text_key")
def contains(files: Files, common: Common, asked: Asked) -> None:
    """Count the rows of each FILE that are in training text, and show where.

    A row, or the line of a text file, is found if 13 of its words stand in a row in the training
    text; case and punctuation do not count (Brown et al. 2020, appendix C). Characters of Chinese
    and Japanese are words. All texts of a row are looked for, or --text-key. Rows of fewer words
    than that cannot be found, and are counted.
    """
    from nlpkit.data import overlap, overlap_files
    from nlpkit.data.lines import name_first

    if not asked.training:
        raise UsageError("--in: name the training text: a recipe, or files")
    log = common.open_log()
    with tempfile.TemporaryDirectory() as copies:
        named = overlap_files.find_files(files, Path(copies))
        search = overlap.Overlap(asked.words)
        rows = _read_training(asked.training, Path(copies))
        for name, source in named:
            search.add(name, overlap_files.read_file(source, common.text_key))
        search.search(rows)
    found = search.results(asked.examples)
    log.info(
        f"searched {number_of(search.rows, 'rows')} of training text, "
        f"{number_of(search.searched, 'words')}, for {asked.words} words in a row"
    )
    if short := [each.name for each in found if each.short == each.rows]:
        log.warn(
            f"{name_first(short)}: no row has {asked.words} words in a row, so none can be found; "
            "--words N looks for fewer"
        )
    values = {"words": asked.words, "training_rows": search.rows, "training_words": search.searched}
    common.print_result(_format(found), **values, files=[asdict(each) for each in found])


def _read_training(names: list[str], copies: Path) -> "Iterator[Row]":
    """Return the rows of recipes and files; all are found before the first one is read."""
    from nlpkit import recipe
    from nlpkit.data import files, overlap_files

    recipes = [each for each in names if each.endswith(_RECIPES) or each in recipe.packaged()]
    loaded = [recipe.load(each) for each in recipes]
    inputs = [files.find_inputs(each.recipe.data, each.base, copies)[0] for each in loaded]
    others = [each for each in names if each not in recipes]
    sources = overlap_files.find_files(others, copies) if others else []

    def read() -> "Iterator[Row]":
        for resolved, found in zip(loaded, inputs, strict=True):
            is_task = _is_task(resolved)
            yield from overlap_files.read_training(found, resolved.recipe.data, is_task)
        for _, source in sources:
            yield from overlap_files.read_file(source)

    return read()


def _is_task(resolved: "Resolved") -> bool:
    from nlpkit.contracts.task import Task

    name = resolved.recipe.objective[0].name
    return issubclass(registry.load("objectives", name).Objective, Task)


def _format(found: Sequence["Found"]) -> str:
    """Return a table with a line for each file, and where the examples are."""
    rows = [["", "rows", "found", "", "words", "in those found", "", "too short"]]
    rows += [
        [
            each.name,
            f"{each.rows:,}",
            f"{each.found:,}",
            f"{each.found / each.rows:.1%}",
            f"{each.words:,}",
            f"{each.covered:,}",
            f"{each.covered / each.words:.1%}",
            f"{each.short:,}",
        ]
        for each in found
    ]
    lines = aligned(rows)
    for each in found:
        for example in each.examples:
            places = f"{each.name}:{example.line} is in {example.file}:{example.training_line}"
            lines.append(f"{places}: {example.words}")
    return "\n".join(lines)
