"""Tune a base on several tasks, beside the same model from nothing."""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nlpkit.commands._options import Common, RunOptions, argument, option, parse_by, shared
from nlpkit.disk import name_path_in_errors, user_path
from nlpkit.errors import FileError, RecipeError, RunsFailed, UsageError
from nlpkit.plural import number_of
from nlpkit.units import parse_duration

if TYPE_CHECKING:
    from nlpkit.commands._grid import GridRun
    from nlpkit.evaluate.suite import TaskEntry
    from nlpkit.json_types import JsonObject

SuiteName = Annotated[str, argument("SUITE", "a file, or shipped, glue or clue")]


@dataclass(frozen=True)
class Asked:
    """What is tuned, and where the data are."""

    start: str | None = option("--from CKPT", "the base; default: suite.from of SUITE")
    seeds: int | None = option("--seeds N", "runs of each; default: suite.seeds of SUITE", min=1)
    folder: str | None = option(
        "--folder DIR", "folder of the data; default: suite.folder of SUITE"
    )
    max_time: float | None = option(
        "--max-time TIME",
        "save and stop after TIME, with exit code 75; the same command goes on",
        parser=parse_by(parse_duration),
    )


@shared("overrides", "out", "device", "dry_run")
def command(common: Common, asked: Asked, suite: SuiteName = "shipped") -> None:
    """Tune a base on several tasks, beside the same model from nothing.

    SUITE names recipes of tasks; without it they are the English ones that nlpkit ships. --set
    changes all of them. Each is trained with several seeds from the base, and from nothing: the
    same model and tokenizer, random weights. Scores are those after the last step. Beside them
    stand whether the two differ, and what counted words and the commonest answer score.

    All is checked before the first run begins. A run that fails does not stop the others. The same
    command again does what is left. The table is also suite.md in --out, by default
    runs/SUITE-BASE.
    """
    from nlpkit.commands import _sweep
    from nlpkit.evaluate import suite as suites
    from nlpkit.evaluate import suite_table as table

    found, log = suites.load(suite), common.open_log()
    settings = found.suite
    start = asked.start or settings.start
    if start is None:
        raise UsageError(f"{suite}: names no base; give --from RUN")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("suite trains with one process; start it without a launcher")
    out = user_path(common.out or f"runs/{found.name}-{user_path(start).resolve().name}")
    sides = {table.PRETRAINED: (start, []), table.NOTHING: (None, _list_random(start))}
    rows: list[JsonObject] = []
    runs: list[dict[str, list[GridRun]]] = []
    for task in settings.tasks:
        folder = settings.folder if asked.folder is None else asked.folder
        changes = found.list_changes(task, folder, common.overrides or ())
        inside = {}
        for side, (base, more) in sides.items():
            own = replace(common, overrides=[*changes, *more], out=str(out / task.title / side))
            inside[side] = _list_runs(task, base, own, asked.seeds or settings.seeds)
        rows.append(table.start_row(inside[table.PRETRAINED][0].resolved, changes, task.recipe))
        runs.append(inside)
    every = [run for inside in runs for side in inside.values() for run in side]
    if common.device not in ("auto", "cpu"):
        _sweep.check_device(every[0])
    if common.dry_run:
        log.info(f"{number_of(len(every), 'runs')} in {out}")
        return
    with name_path_in_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    failed = _sweep.train_all(every, asked.max_time, log)
    for number, inside in enumerate(runs):
        paths = {side: [run.path for run in of_side] for side, of_side in inside.items()}
        rows[number] = table.add_scores(rows[number], paths)
    text = table.write(rows, f"{found.name}: {start}", out / "suite.md")
    common.print_result(text, suite=found.name, base=start, tasks=rows)
    if failed:
        raise RunsFailed(_sweep.describe_failures(failed, len(every)), failed.values())


def _list_runs(task: "TaskEntry", start: str | None, common: Common, seeds: int) -> list["GridRun"]:
    """Return the checked runs of a task from one start; None: from nothing."""
    from nlpkit.commands import _sweep, finetune, pretrain
    from nlpkit.commands._grid import Sweep, list_axes, list_runs

    words = ["finetune", task.recipe, *(["--from", start] if start else [])]
    load = partial(finetune.load_task, common, task.recipe, finetune.Start(start))
    asked = Sweep(words, load, common, RunOptions(seeds=seeds))
    try:
        runs = list_runs(asked, list_axes(asked))
    except RecipeError as error:
        found = [each.removeprefix("--set ") for each in error.problems]
        raise RecipeError([f"task {task.title}: {each}" for each in found]) from error
    _sweep.check_surroundings(runs[0])
    for run in runs:
        pretrain.check_directory(run.resolved, common, False)
    return [replace(run, name=str(run.path.relative_to(run.path.parents[2]))) for run in runs]


def _list_random(start: str) -> list[str]:
    """Return the settings of a model like that of the base, with its tokenizer and random weights.

    Raises:
        FileError: the base is no checkpoint of a model of text.
    """
    from nlpkit.checkpoints import files, tokenizer_files

    path = user_path(start)
    chosen = files.choose_checkpoint(path)
    path = chosen[0] if chosen else files.find_named(path) or path
    if not (path / "config.json").is_file() or not tokenizer_files.is_there(path):
        raise FileError(f"{start}: no text checkpoint (config.json and a tokenizer) to start from")
    # It imports torch; a process that has it cannot fork the runs.
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        sections = pool.submit(_describe_model, path.resolve()).result()
    return [*sections, "init_from=null", f"tokenizer={json.dumps({'path': str(path)})}"]


def _describe_model(checkpoint: Path) -> list[str]:
    """Return the sections `model` and `attention` of a recipe for the model of a checkpoint."""
    from nlpkit.checkpoints import hf_layout, hf_model
    from nlpkit.checkpoints.run_directory import RECIPE
    from nlpkit.commands.finetune import build_section
    from nlpkit.recipe import load

    recipe = checkpoint.parent.parent / RECIPE
    if recipe.is_file() and (run := load(str(recipe))).recipe.init_from is None:
        return [f"{key}={json.dumps(run.dump()[key])}" for key in ("model", "attention")]
    family = hf_model.find_family(hf_layout.read_settings(checkpoint), checkpoint)
    return [f"model={build_section(checkpoint, family)}"]
