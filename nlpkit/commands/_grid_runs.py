"""The runs of `--grid` and `--seeds`: their recipes, all checked, and their command lines."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands._options import Common, RunOptions
from nlpkit.disk import user_path
from nlpkit.errors import RecipeError, UsageError

if TYPE_CHECKING:
    from nlpkit.commands._grid import Axis, Point
    from nlpkit.recipe import Resolved


@dataclass(frozen=True)
class Sweep:
    """What the options of `pretrain` or `finetune` ask for.

    `words` are the verb, the recipe and the options of the verb alone; `load` returns the recipe
    with further settings, as `--set` takes them.
    """

    words: Sequence[str]
    load: Callable[[Sequence[str]], "Resolved"]
    common: Common
    options: RunOptions


@dataclass(frozen=True)
class GridRun:
    """A run of the grid, with its checked recipe."""

    point: "Point"
    resolved: "Resolved"
    arguments: list[str]

    @property
    def path(self) -> Path:
        return user_path(self.resolved.recipe.out)


def list_axes(asked: Sweep) -> list["Axis"]:
    """Return the settings of the grid, the seed last."""
    from nlpkit.commands import _grid

    axes = _grid.parse(asked.options.grid or ())
    keys = {axis.key for axis in axes}
    for override in asked.common.overrides or ():
        if (key := override.partition("=")[0].strip()) in keys:
            raise UsageError(f"--set {key}: excludes --grid {key}")
    if asked.options.seeds is not None:
        if _grid.SEED in keys:
            raise UsageError("--seeds excludes --grid seed")
        try:
            first = asked.load([f"{axis.key}={axis.values[0]}" for axis in axes]).recipe.seed
        except RecipeError:  # `list_runs` says all that is wrong
            first = 1
        axes += _grid.parse([f"{_grid.SEED}={first}..{first + asked.options.seeds - 1}"])
    return sorted(axes, key=lambda axis: axis.key == _grid.SEED)


def list_runs(asked: Sweep, axes: Sequence["Axis"]) -> list[GridRun]:
    """Return the runs with their recipes; raise `RecipeError` with each mistake once."""
    from nlpkit.commands import _grid

    mistakes: dict[str, None] = {}
    runs, root = [], None
    for point in _grid.points(axes):
        try:
            if root is None:
                root = asked.load(point.sets).recipe.out
            out = str(Path(root) / point.name)
            resolved = asked.load([*point.sets, f"out={json.dumps(out)}"])
        except RecipeError as error:
            mistakes |= dict.fromkeys(_name_grid(problem, axes) for problem in error.problems)
            continue
        runs.append(GridRun(point, resolved, _build_arguments(asked, point, out)))
    if mistakes:
        raise RecipeError(list(mistakes))
    return runs


def _name_grid(problem: str, axes: Sequence["Axis"]) -> str:
    """Return a problem of a recipe, with `--grid` where its value comes from the grid."""
    for axis in axes:
        if problem.startswith(f"--set {axis.key}: "):
            return f"--grid {problem.removeprefix('--set ')}"
    return problem


def _build_arguments(asked: Sweep, point: "Point", out: str) -> list[str]:
    """Return the command line of one run."""
    common = asked.common
    words = list(asked.words)
    if common.budget is not None:
        words += ["--budget", common.budget]
    for option, value in (("--device", common.device), ("--resume", common.resume)):
        if value != "auto":
            words += [option, value]
    if asked.options.max_time is not None and asked.options.print_runs:
        words += ["--max-time", asked.options.max_time]
    flags = {"--allow-change": asked.options.allow_change, "-q": common.quiet, "-v": common.verbose}
    words += [flag for flag, given in flags.items() if given]
    for override in [*(common.overrides or ()), *point.sets]:
        words += ["--set", override]
    return [*words, "--out", out]
