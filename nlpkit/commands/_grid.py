"""The runs of `--grid` and `--seeds`: their settings, directories, checked recipes and commands.

`--grid train.lr=1e-3,2e-3 --grid seed=1..3` are six runs, `OUT/lr-0.001/seed-1` and so on: one
folder for each setting but the seed, and in it one for each seed, as `--seeds` makes them. A name
depends only on the names of the settings and on this run's values, so that values can be added.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from yaml import BaseLoader, YAMLError, compose

from nlpkit import units
from nlpkit.commands._options import Common, RunOptions
from nlpkit.commands._runs import Run
from nlpkit.errors import RecipeError, UsageError
from nlpkit.recipe import Resolved, yaml

SEED = "seed"
MAX_RUNS = 10_000
_LONGEST_VALUE, _LONGEST_NAME = 40, 120

Axes = dict[str, list[str]]  # settings, and their values as they were typed (YAML)


@dataclass(frozen=True)
class Sweep:
    """What the options of `pretrain` or `finetune` ask for.

    `words` are the verb, the recipe and the options of the verb alone; `load` returns the recipe
    with further settings, as `--set` takes them.
    """

    words: Sequence[str]
    load: Callable[[Sequence[str]], Resolved]
    common: Common
    options: RunOptions = field(default_factory=RunOptions)

    def make(self, name: str, sets: Sequence[str], out: str) -> Run:
        """Return the run in the directory `out` with further settings; raise `RecipeError`."""
        resolved = self.load([*sets, f"out={json.dumps(out)}"])
        common, options, words = self.common, self.options, list(self.words)
        values = {"--budget": common.budget, "--device": common.device, "--resume": common.resume}
        if options.max_time is not None and options.print_runs:
            values["--max-time"] = units.format_duration(options.max_time)
        for option, value in values.items():
            words += [] if value in (None, "auto") else [option, str(value)]
        flags = {"--allow-change": options.allow_change, "-q": common.quiet, "-v": common.verbose}
        words += [flag for flag, given in flags.items() if given]
        for override in [*(common.overrides or ()), *sets]:
            words += ["--set", override]
        return Run(name, resolved, [*words, "--out", out])


def list_axes(asked: Sweep) -> Axes:
    """Return the settings of the grid, the seed last."""
    axes = parse(asked.options.grid or ())
    if "train.budget" in axes and asked.common.budget is not None:
        raise UsageError("--budget: excludes --grid train.budget")
    if "init_from" in axes and "--from" in asked.words:
        raise UsageError("--from: excludes --grid init_from")
    for override in asked.common.overrides or ():
        if (key := override.partition("=")[0].strip()) in axes:
            raise UsageError(f"--set {key}: excludes --grid {key}")
    if (count := asked.options.seeds) is not None:
        if SEED in axes:
            raise UsageError("--seeds excludes --grid seed")
        try:
            first = asked.load([f"{key}={values[0]}" for key, values in axes.items()]).recipe.seed
        except RecipeError:  # `list_runs` says all that is wrong
            first = 1
        axes[SEED] = [str(seed) for seed in range(first, first + count)]
    if SEED in axes:
        axes[SEED] = axes.pop(SEED)
    if (runs := math.prod(map(len, axes.values()))) > MAX_RUNS:
        raise UsageError(f"--grid: {runs:,} runs; at most {MAX_RUNS:,}")
    return axes


def parse(options: Iterable[str]) -> Axes:
    """Return the settings and values that `--grid KEY=V1,V2` options name; raise `UsageError`."""
    axes: Axes = {}
    for option in options:
        key, equals, text = option.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            raise UsageError(f"--grid {option}: expected KEY=V1,V2, such as train.lr=1e-3,2e-3")
        if key in ("name", "out"):
            raise UsageError(f"--grid {key}: each run has its own; name their folder with --out")
        if key in axes:
            raise UsageError(f"--grid {key}: is in the grid already; give all values at once")
        axes[key] = [each for value in split(key, text) for each in _read_range(key, value)]
    return axes


def split(key: str, text: str) -> list[str]:
    """Return the values between the commas that are outside of brackets and quotes, as in YAML."""
    try:
        node = compose(f"[{text}]", Loader=BaseLoader)
    except YAMLError:
        node = None
    if node is None or not node.value:
        what = "expected V1,V2 as in YAML, where text with brackets needs quotes"
        raise UsageError(f"--grid {key}={text}: {what}")
    return [text[each.start_mark.index - 1 : each.end_mark.index - 1] for each in node.value]


def _read_range(key: str, value: str) -> Iterable[str]:
    """Return the integers of `1..5`, or the value."""
    found = re.fullmatch(r"(-?\d{1,12})\.\.(-?\d{1,12})", value)
    if not found:
        return [value]
    numbers = range(int(found[1]), int(found[2]) + 1)
    if not 0 < len(numbers) <= MAX_RUNS:
        raise UsageError(f"--grid {key}: {value} has {len(numbers):,} values; 1 to {MAX_RUNS:,}")
    return map(str, numbers)


def list_points(axes: Axes) -> dict[str, dict[str, str]]:
    """Return the settings of the runs by the names of the runs, the last setting changing first."""
    names = _shorten_keys([*axes])
    points = {}
    for values in itertools.product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        words = [f"{names[k]}-{_make_word(v)}" for k, v in settings.items() if k != SEED]
        name = "_".join(words)
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}-{_digest(name)}"
        folders = [name] if name else []
        if SEED in settings:
            folders.append(f"{SEED}-{_make_word(settings[SEED])}")
        points["/".join(folders)] = settings
    return points


def _shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return `lr` for `train.lr`, `optimizer` for `train.optimizer.name`; unique ones."""
    names = {}
    for key in keys:
        *before, last = key.split(".")
        if before and last in ("name", "kind", "family", "path"):
            last = before[-1]
        elif before and last.isdecimal():
            last = f"{before[-1]}.{last}"
        names[key] = last
    several = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {key: key if name in several else name for key, name in names.items()}


def _make_word(value: str) -> str:
    """Return a value as a part of a file name; other values have other names."""
    data = _read(value)
    if isinstance(data, bool) or data is None:
        return json.dumps(data)
    if isinstance(data, float) and data.is_integer() and abs(data) < 1e15:
        return str(int(data))
    if isinstance(data, int | float):
        return repr(data)
    plain = data if isinstance(data, str) else json.dumps(data, sort_keys=True)
    word = re.sub(r"[^\w.+]+", "-", plain).strip("-.")[:_LONGEST_VALUE]
    is_same = word == plain and isinstance(_read(word), str)
    return word if is_same else f"{word}-{_digest(json.dumps(data, sort_keys=True))}".lstrip("-")


def _read(value: str) -> object:
    """Return a value as plain data; what is no YAML is text, and is refused by `recipe.load`."""
    try:
        return yaml.read(value, "--grid").data
    except RecipeError:
        return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def list_runs(asked: Sweep, axes: Axes) -> list[Run]:
    """Return the runs with their recipes; raise `RecipeError` with each mistake once."""
    mistakes: dict[str, None] = {}
    runs, root = [], None
    for name, settings in list_points(axes).items():
        sets = [f"{key}={value}" for key, value in settings.items()]
        try:
            if root is None:
                root = asked.load(sets).recipe.out
            runs.append(asked.make(name, sets, str(Path(root) / name)))
        except RecipeError as error:
            for problem in error.problems:
                said = problem.removeprefix("--set ")  # of a value that comes from the grid
                mistakes[f"--grid {said}" if said.partition(": ")[0] in axes else problem] = None
    if mistakes:
        raise RecipeError(list(mistakes))
    return runs
