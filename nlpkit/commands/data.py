"""Look into data: find evaluation text in training text."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlpkit import completion
from nlpkit.commands._options import Common, argument, option, shared
from nlpkit.errors import UsageError
from nlpkit.plural import number_of
from nlpkit.text_table import aligned
from nlpkit.verbs import Verb

if TYPE_CHECKING:
    from nlpkit.data.documents import Document
    from nlpkit.data.overlap import Found, Note

_RECIPES = (".yaml", ".yml")

command = typer.Typer(no_args_is_help=True, callback=lambda: None)  # a group also with one verb

Files = Annotated[list[str], argument("FILE...", "evaluation text: files or globs")]


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
    from nlpkit.data import overlap
    from nlpkit.data.lines import name_first
    from nlpkit.data.template import check_option
    from nlpkit.runs import text_keys

    check_option("--text-key", common.text_key)
    if not asked.training or "" in files + asked.training:
        raise UsageError("--in: name the training text: a recipe, or files; no name is empty")
    if "-" in files and "-" in asked.training:
        raise UsageError("--in: stdin is FILE already, and can be read only once")
    log = common.open_log()
    with tempfile.TemporaryDirectory() as copies:
        named = overlap.find_files(files, Path(copies), log.info)
        read = [file for _, source in named for file in source.files]
        if common.text_key is not None and (why := text_keys.find_keyless(read)):
            log.warn(f"--text-key: has no effect {why}")
        training = _read_training(asked.training, Path(copies), log.info)
        hashed = {}
        for name, source in named:
            rows = overlap.read_file(source, common.text_key)
            hashed[name] = overlap.hash_file(name, rows, asked.words)
        text = overlap.Training(hashed.values(), chain.from_iterable(training), asked.words)
    found = [
        overlap.count_found(name, file, text.places, asked.words, asked.examples)
        for name, file in hashed.items()
    ]
    log.info(
        f"searched {number_of(text.rows, 'rows')} of training text, "
        f"{number_of(text.words, 'words')}, for {asked.words} words in a row"
    )
    if short := [each.name for each in found if each.short == each.rows]:
        log.warn(
            f"{name_first(short)}: no row has {asked.words} words in a row, so none can be found; "
            "--words N looks for fewer"
        )
    values = {"words": asked.words, "training_rows": text.rows, "training_words": text.words}
    common.print_result(_format(found), **values, files=[asdict(each) for each in found])


def _read_training(names: list[str], copies: Path, note: "Note") -> "list[Iterator[Document]]":
    """Return the rows of recipes and files; all are found before the first one is read."""
    from nlpkit import recipe
    from nlpkit.contracts.task import Task
    from nlpkit.data import files, overlap

    rows = []
    recipes = [each for each in names if each.endswith(_RECIPES) or each in recipe.packaged()]
    for each in recipes:
        loaded = recipe.load(each)
        config, first = loaded.recipe.data, loaded.recipe.objective[0]
        objective = first.objective
        columns = objective.named_columns(first.config) if issubclass(objective, Task) else None
        inputs, _ = files.find_inputs(config, loaded.base, copies)
        rows.append(overlap.read_inputs(inputs, config, columns))
    others = [each for each in names if each not in recipes]
    sources = overlap.find_files(others, copies, note) if others else []
    return rows + [overlap.read_file(source) for _, source in sources]


def _format(found: Sequence["Found"]) -> str:
    """Return a table with a line for each file, and where the examples are."""
    rows = [["", "rows", "found", "", "words", "in those found", "", "too short"]]
    for each in found:
        shares = f"{each.found / each.rows:.1%}", f"{each.covered / each.words:.1%}"
        cells = [f"{n:,}" for n in (each.rows, each.found, each.words, each.covered, each.short)]
        rows.append([each.name, *cells[:2], shares[0], *cells[2:4], shares[1], cells[4]])
    lines = aligned(rows)
    for each in found:
        for example in each.examples:
            place = f"{example['file']}:{example['training_line']}"
            lines.append(f"{each.name}:{example['line']} is in {place}: {example['words']}")
    return "\n".join(lines)
