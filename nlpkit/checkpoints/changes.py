"""Compares a recipe with the run in its directory, which goes on as it was begun.

A run may be older than a setting, or than the rule of `model.size`.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nlpkit import recipe
from nlpkit.checkpoints import files, run_directory
from nlpkit.checkpoints.run_directory import (
    METRICS,
    RECIPE,
    STATUS,
    RunDirectory,
    process_rank,
)
from nlpkit.errors import FileError, UsageError
from nlpkit.recipe import DECIDED, DEFAULT, Recipe, Resolved, autosize
from nlpkit.recipe.known import find_changes
from nlpkit.recipe.places import dotted
from nlpkit.recipe.sections import Model
from nlpkit.train.budget import REPLAY


def as_begun(directory: RunDirectory, resolved: Resolved, resume: str = "auto") -> Resolved:
    """Return the recipe; settings that are newer than the run get their old fixed values.

    A run that begins with the checkpoint `resume` also keeps what a size decided for that one's.
    """
    if resume not in ("auto", "never"):
        resolved = as_begun(RunDirectory(Path(resume).resolve().parent.parent), resolved)
    path = directory.path / RECIPE
    if not path.exists() or not files.list_checkpoints(directory.path):
        return resolved
    names = directory.status().get(run_directory.DECIDED)
    names = names if isinstance(names, list) else None
    return set_earlier(resolved, recipe.load(str(path)), names)


def forget_start(directory: RunDirectory, resolved: Resolved) -> None:
    """Remove what a start with another recipe left behind that has saved no checkpoint."""
    recipe_file = directory.path / RECIPE
    is_other = recipe_file.exists() and recipe_file.read_text("utf-8") != resolved.to_yaml()
    if is_other and not files.list_directories(directory.path) and process_rank() == 0:
        for name in (STATUS, METRICS, REPLAY):
            (directory.path / name).unlink(missing_ok=True)


def list_changes(directory: RunDirectory, resolved: Resolved) -> dict[str, str]:
    """Return the settings that differ from those the run was started with, and their values.

    The settings of a run without a checkpoint may change.
    """
    path = directory.path / RECIPE
    if not files.list_checkpoints(directory.path):
        return {}
    if not path.exists():
        return {RECIPE: f"{RECIPE}: lost"}
    before = as_begun(directory, recipe.load(str(path))).dump()
    now = resolved.dump()
    return {
        key: f"{key}: {_value(before, key)} then, {_value(now, key)} now"
        for key in find_changes(before, now)
    }


def check_changes(
    directory: RunDirectory, resolved: Resolved, allow_change: bool | None
) -> list[str]:
    """Return the settings that differ from those with which this run was started.

    Writes nothing. The run may still refuse them: `runs/resume`. None: there is no --allow-change.

    Raises:
        UsageError: settings that change the result differ and `allow_change` is False, or
            settings of the tokenizer differ, which belongs to the model; or it is no run yet, and
            holds those of a grid.
        FileError: the run has lost its recipe and `allow_change` is False.
    """
    _check_no_grid(directory)
    changed = list_changes(directory, resolved)
    advice = _advise(directory, [*changed], allow_change is not None)
    if RECIPE in changed and not allow_change:
        raise FileError(
            f"{directory.path / RECIPE}: no such file, and the settings of the run are recorded "
            f"only there; restore it, or {advice}"
        )
    for key, values in changed.items():
        if allow_change and key.partition(".")[0] == "tokenizer":
            raise UsageError(
                f"{values}; a run keeps its tokenizer, also with --allow-change; start another "
                f"run from this one: --out DIR and init_from: {directory.path}"
            )
        if key == "train.optimizer.name":  # also with --allow-change: its state is another one
            raise UsageError(
                f"{values}; a run keeps its optimizer, whose state is in its checkpoints; "
                f"start another run from this one: --out DIR and init_from: {directory.path}"
            )
    if changed and not allow_change:
        lines = (f"  {values}" for values in changed.values())
        raise UsageError(
            f"{directory.path} was started with other settings:\n" + "\n".join([*lines, advice])
        )
    return [*changed]


def _check_no_grid(directory: RunDirectory) -> None:
    """Raise `UsageError` for a new run whose directory holds runs, which it would hide in reports.

    Runs of seeds may lie in a run.
    """
    path = directory.path
    if (path / RECIPE).exists() or files.list_checkpoints(path):
        return
    seeds = [run for _, run in run_directory.seed_runs(path)]
    inside = [run for run in run_directory.runs_inside(path) if run not in seeds]
    if inside:
        name = inside[0].relative_to(path)
        raise UsageError(f"{path} holds runs of a grid ({name}); give --out another directory")


def _advise(directory: RunDirectory, changed: list[str], may_change: bool) -> str:
    """Return what to do about changed settings; a run without its decay can be made longer."""
    more = ", or --allow-change to continue with the new ones" if may_change else ""
    stable = files.directory(directory.path) / files.STABLE
    if changed in (["train.steps"], ["train.epochs"], ["train.budget"]) and stable.exists():
        more += f"; from before its decay: --resume {stable} --out another directory"
    return f"give --out another directory{more}"


def _value(data: object, key: str) -> str:
    """Return the value at a dotted key as JSON, or `not set`."""
    for step in key.split("."):
        inside = data.get(step) if isinstance(data, dict) else data
        if isinstance(data, list):
            inside = data[int(step)] if int(step) < len(data) else None
        data = inside
    return "not set" if data is None else json.dumps(data, ensure_ascii=False)


def set_earlier(
    resolved: Resolved, recorded: Resolved, decided: Collection[str] | None = None
) -> Resolved:
    """Return `resolved` with the `EARLIER` values of settings that are newer than a run.

    `recorded` is the recipe in the run's directory. It has all settings that existed when the run
    was started. A value that the user sets is not changed. What `model.size` decides is what it was
    then, if the size is the same and decided it then, too: `decided`; None in runs of before.
    """
    resolved = _keep_autosized(resolved, recorded, decided)
    both = resolved, recorded
    objectives = []
    for number, section in enumerate(resolved.recipe.objective):
        places = [("objective",), ("objective", number)]  # a single objective has no number
        config = _set_earlier(section.config, places, both)
        objectives.append(section.model_copy(update={"config": config}))
    return resolved.with_sections(objective=tuple(objectives))


def _keep_autosized(
    resolved: Resolved, recorded: Resolved, decided: Collection[str] | None
) -> Resolved:
    """Return `resolved` with what `model.size` or `model.depth` decided when a run was started."""
    now, then = resolved.dump(), recorded.dump()
    targets = Model.targets(now["model"])
    if not targets or now["model"][targets[0]] != (then["model"] or {}).get(targets[0]):
        return resolved
    for group in autosize.GROUPS:
        origins = {name: resolved.origin.get(name, DEFAULT) for name in map(dotted, group)}
        by_user = decided is not None and not {*origins} & {*decided}
        if not by_user and all(
            each == DEFAULT or each.startswith(DECIDED) for each in origins.values()
        ):
            for section, setting in group:
                if setting in then[section]:
                    now[section][setting] = then[section][setting]
    return replace(resolved, recipe=Recipe.model_validate(now))


def _set_earlier(config: Any, places: Sequence[tuple[Any, ...]], both: Sequence[Resolved]) -> Any:
    """Return an objective's settings, which may be at `places`, and those of its members."""
    values = {
        name: value
        for name, value in config.EARLIER.items()
        if all(
            each.origin.get(dotted((*place, name)), DEFAULT) == DEFAULT
            for each in both
            for place in places
        )
    }
    if members := config.setting("of", ()):  # of a mixture
        values["of"] = type(members)(
            member.model_copy(
                update={
                    "config": _set_earlier(
                        member.config, [(*p, "of", number) for p in places], both
                    )
                }
            )
            for number, member in enumerate(members)
        )
    return config.model_copy(update=values)
