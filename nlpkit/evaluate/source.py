"""Finds the held-out data of a checkpoint, files or those of its run, and what its rows lack."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nlpkit import recipe
from nlpkit.checkpoints.run_directory import DATA_FILES, RECIPE
from nlpkit.contracts.abilities import AnswersUnlabelled, Generative
from nlpkit.contracts.reader import Counts, RowError, TextFile
from nlpkit.contracts.task import Task
from nlpkit.data.cache import cache_directory, content_hash
from nlpkit.data.files import Input, find_inputs
from nlpkit.data.formats import TEXT_FORMATS, find_format
from nlpkit.data.given import list_sources
from nlpkit.data.items import Row, read_rows
from nlpkit.data.lines import name_first
from nlpkit.data.settings import Config as DataConfig
from nlpkit.data.settings import Part
from nlpkit.data.store import Callbacks
from nlpkit.disk import read_json
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.outside_parts import check_named_by
from nlpkit.recipe import sections, yaml
from nlpkit.recipe.places import flatten
from nlpkit.runs.open_checkpoint import Opened
from nlpkit.runs.text_keys import find_keyless
from nlpkit.score.settings import Config as ScoreConfig
from nlpkit.train.log import Log
from nlpkit.train.settings import Optimizer


@dataclass(frozen=True)
class Source:
    """The held-out text, and the settings for reading it."""

    inputs: list[Input]
    config: DataConfig
    part: Part
    cache: Path
    seed: int  # of the held-out examples in the run
    scored: ScoreConfig  # the section `eval` of the run's recipe


def find_data(
    opened: Opened, files: Sequence[str], text_key: str | None, log: Log, callbacks: Callbacks
) -> Source:
    """Return the held-out data: `files`, or else those of the checkpoint's run.

    The result also has the settings of `eval` in the run's recipe.

    Raises:
        UsageError: the checkpoint belongs to no run, or its recipe names no held-out data.
    """
    recipe_path = opened.path.parent.parent / RECIPE
    resolved = load_run_recipe(recipe_path) if recipe_path.is_file() else None
    base = resolved.base if resolved else Path.cwd()
    settings: JsonObject = {}
    if resolved is not None:
        settings = resolved.recipe.data.model_dump(exclude={"train", "valid", "valid_fraction"})
    form = settings.get("format", "auto")
    lines = (*TEXT_FORMATS, "parallel")
    if form in lines and any(find_format(file) not in ("", "text") for file in files):
        settings["format"] = form = "auto"  # that of the run's own files
    settings["train"] = list_sources(files, form, isinstance(opened.objective, Task))
    if text_key is not None:
        settings["text_key"] = text_key
    part: Part = "all"
    if not files:
        if resolved is None:
            raise UsageError(f"{opened.path} belongs to no run; name the data: --data FILE")
        data = resolved.recipe.data
        if not data.valid and not data.valid_fraction:
            raise UsageError(f"{recipe_path} names no held-out data; name them: --data FILE")
        part = "all" if data.valid else "valid"
        settings["train"] = _find_files(recipe_path.parent, resolved, log, callbacks.should_stop)
        settings["valid_fraction"] = 0.0 if data.valid else data.valid_fraction
    config = DataConfig.model_validate(settings)
    cache = cache_directory(config.cache, None, callbacks.note)
    inputs, _ = find_inputs(config, base, cache, callbacks.should_stop)
    if text_key is not None:
        named = [file for entry in inputs for file in entry.files if not file.text_key]
        is_task = isinstance(opened.objective, Task)
        why = "here: a task reads the columns of its objective" if is_task else find_keyless(named)
        if why:
            log.warn(f"--text-key: has no effect {why}")
    # A copy of stdin in the cache is called by its name.
    read = [
        f"{each.name}, read as {each.format}" if Path(each.path).parent == cache else each.path
        for entry in inputs
        for file in entry.files
        for each in file.parts
    ]
    log.info(f"held-out data: {name_first(read)}")
    if resolved is None:
        return Source(inputs, config, part, cache, int(opened.notes.get("seed", 0)), ScoreConfig())
    return Source(inputs, config, part, cache, resolved.recipe.seed, resolved.recipe.eval)


def _find_files(
    run: Path, resolved: recipe.Resolved, log: Log, stop: Callable[[], None]
) -> list[JsonObject]:
    data, otherwise = resolved.recipe.data, ", or choose another: --data FILE"
    entries = [entry.model_dump() for entry in data.valid or data.train]
    part = "valid" if data.valid else "train"
    sources = find_recorded(run, resolved.base, part, stop, otherwise)
    if sources is None or len(sources) != len(entries):  # an older version, or another recipe
        log.warn(
            f"{run} has no record of the files that its {RECIPE} names; they are looked up by "
            "name, and may have changed"
        )
        return entries
    # The record has the files of a data set, too.
    by_file = {"hf": None, "split": None}
    return [entry | by_file | files for entry, files in zip(entries, sources, strict=True)]


def find_recorded(
    run: Path, base: Path, part: str, stop: Callable[[], None], otherwise: str = ""
) -> list[JsonObject] | None:
    """Return the `files` and the `format` of each source of `part` (train or valid) of a run.

    A file that was moved is searched by its path relative to the run's directory, and by its name
    in the working directory and in `base`; its content must be the same. Returns None for a run of
    an older version, which recorded no files. An error ends with `otherwise`.

    Raises:
        DataError: the content of a file has changed.
        FileError: a file does not exist any more.
    """
    if not (run / DATA_FILES).is_file():
        return None
    recorded = read_json(run / DATA_FILES)
    sources = []
    try:
        for files in recorded[part]:
            paths = []
            for file in files:
                moved = run.absolute() / os.path.relpath(file["path"], recorded["directory"])
                named = [Path.cwd() / file["name"], base / file["name"]]
                candidates = [Path(file["path"]), moved, *named]
                paths.append(_find_unchanged(file, candidates, run, stop, otherwise))
            forms = {file["format"] for file in files}
            # Those of a directory may have several formats, which their endings tell.
            sources.append({"files": paths, "format": forms.pop() if len(forms) == 1 else None})
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{run / DATA_FILES}: not a record of files: {error!r}") from error
    return sources


def _find_unchanged(
    file: dict[str, str],
    candidates: Sequence[Path],
    run: Path,
    stop: Callable[[], None],
    otherwise: str,
) -> str:
    """Return the first of the candidates whose content has the recorded hash."""
    paths = dict.fromkeys(os.path.normpath(path) for path in candidates)
    existing = [path for path in paths if os.path.isfile(path)]
    for path in existing:
        if content_hash(TextFile(path, path, file["format"]), stop) == file["sha256"]:
            return path
    if existing:
        raise DataError(
            f"{existing[0]}: not the text that {run} has read (its hash is not that in "
            f"{DATA_FILES}); restore the file{otherwise}"
        )
    raise FileError(f"{file['path']}: no such file, and {run} has read it; restore it{otherwise}")


def load_run_recipe(path: Path) -> recipe.Resolved:
    """Return the recipe of a run; the names of its parts are checked before their import."""
    data = yaml.read(path.read_bytes(), str(path)).data  # which may be malformed
    parts = (sections.Model, sections.Objective, sections.Tokenizer, sections.Attention, Optimizer)
    keys = {part.KEY for part in parts} | {"optimizer", "backend"}
    for place, name in flatten(data):
        if len(place) > 1 and place[-1] in keys and isinstance(name, str):
            check_named_by(path, name, "run nlpkit where it lies")
    return recipe.load(str(path))


@dataclass(frozen=True)
class Unlabelled:
    """The first row has no label: what is missing, and a function that adds a label to a row."""

    problem: str
    add_label: Callable[[Row], Row]


def find_unlabelled(source: Source, objective: Task) -> Unlabelled | None:
    """Return what is missing if the first row of the data has no label, else None.

    Rows then get a valid label each, which nothing that is reported reads.

    Raises:
        DataError: it has none, and this task is answered in another way.
    """
    config = objective.config
    rows = read_rows(source.inputs, source.config, objective.columns, Counts(), source.part)
    row = next(rows, None)
    if row is None:
        return None
    try:
        objective.check_columns(config, row)
        return None
    except RowError as error:
        problem = f"{row.file}:{row.line}: {error.what}"
    if isinstance(objective, Generative):
        raise DataError(f"{problem}; nlpkit generate answers rows that have no right answer")
    if not isinstance(objective, AnswersUnlabelled):
        return None

    def add_label(row: Row) -> Row:
        try:
            return replace(row, values=row.values | objective.stand_in(row))
        except RowError:  # it lacks more, which the task reports
            return row

    try:
        objective.check_columns(config, add_label(row))
    except RowError:
        return None
    return Unlabelled(problem, add_label)
