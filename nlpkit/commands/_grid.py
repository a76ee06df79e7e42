"""A grid of settings: the runs that `--grid` makes, and their directories.

`--grid train.lr=1e-3,2e-3 --grid seed=1..3` are six runs, `OUT/lr-0.001/seed-1` and so on: one
folder for each setting but the seed, and in it one for each seed, as `--seeds` makes them. A name
depends only on the names of the settings and on this run's values, so that values can be added.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nlpkit.errors import RecipeError, UsageError
from nlpkit.recipe import yaml

SEED = "seed"
MAX_RUNS = 10_000
_OF_EACH_RUN = ("name", "out")
_LONGEST_VALUE, _LONGEST_NAME = 40, 120
_OPENING = {"[": "]", "{": "}"}
_HEXADECIMAL_DIGITS = 6


@dataclass(frozen=True)
class Axis:
    """A setting and its values, as they were typed (YAML)."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One run of a grid: its directory, relative to that of the grid, and its settings."""

    name: str
    settings: dict[str, str]

    @property
    def sets(self) -> list[str]:
        """The settings as `--set` takes them."""
        return [f"{key}={value}" for key, value in self.settings.items()]


def parse(options: Sequence[str]) -> list[Axis]:
    """Return the axes that `--grid KEY=V1,V2` options name.

    Raises:
        UsageError: there is no value, or a key or a value is given twice.
    """
    axes: list[Axis] = []
    for option in options:
        key, equals, text = option.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            raise UsageError(f"--grid {option}: expected KEY=V1,V2, such as train.lr=1e-3,2e-3")
        if key in _OF_EACH_RUN:
            raise UsageError(f"--grid {key}: each run has its own; name their folder with --out")
        for other in axes:
            if f"{key}.".startswith(f"{other.key}.") or f"{other.key}.".startswith(f"{key}."):
                raise UsageError(
                    f"--grid {key}: {other.key} is in the grid already; give all values at once"
                    if key == other.key
                    else f"--grid {key}: excludes --grid {other.key}, of which it is a part"
                )
        axes.append(Axis(key, tuple(_values(key, text))))
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_RUNS:
        raise UsageError(f"--grid: {count:,} runs; at most {MAX_RUNS:,}")
    return axes


def _values(key: str, text: str) -> Iterator[str]:
    """Yield the values of a setting, each once."""
    if not text.strip():
        raise UsageError(f"--grid {key}: no values; give them as {key}=V1,V2")
    seen: dict[Any, str] = {}
    for value in split(text):
        if not value:
            raise UsageError(f"--grid {key}: a value is empty; write null for none")
        for each in _range(key, value):
            known = _comparable(read(each))
            if known in seen:
                twice = f"{each} twice" if seen[known] == each else f"{seen[known]} and {each}"
                raise UsageError(f"--grid {key}: the same value is given twice: {twice}")
            seen[known] = each
            yield each


def _range(key: str, value: str) -> Iterator[str]:
    """Yield the integers of `1..5`, or the value."""
    found = re.fullmatch(r"(-?\d{1,12})\.\.(-?\d{1,12})", value)
    if not found:
        yield value
        return
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise UsageError(f"--grid {key}: {value} is empty; write {last}..{first}")
    if last - first >= MAX_RUNS:
        raise UsageError(f"--grid {key}: {value} has more than {MAX_RUNS:,} values")
    yield from map(str, range(first, last + 1))


def split(text: str) -> list[str]:
    """Return the values between the commas that are outside of brackets and quotes."""
    values, begin, before = [], 0, ","
    closing: list[str] = []
    index = 0
    while index < len(text):
        letter = text[index]
        if letter in "'\"" and before in ",[{:":
            index = _end_of_quote(text, index)
        elif letter in _OPENING:
            closing.append(_OPENING[letter])
        elif closing and letter == closing[-1]:
            closing.pop()
        elif letter == "," and not closing:
            values.append(text[begin:index].strip())
            begin = index + 1
        before = before if letter.isspace() else letter
        index += 1
    return [*values, text[begin:].strip()]


def _end_of_quote(text: str, index: int) -> int:
    """Return the index of the quote that ends the one at `index`, or the last index."""
    mark = text[index]
    index += 1
    while index < len(text):
        if text[index] == "\\" and mark == '"':
            index += 1
        elif text[index] == mark:
            if mark == '"' or text[index + 1 : index + 2] != mark:
                return index
            index += 1  # '' is a quote inside of single quotes
        index += 1
    return len(text) - 1


def read(value: str) -> Any:
    """Return a value as plain data; what is no YAML is text, and is refused by `recipe.load`."""
    try:
        return yaml.read(value, "--grid").data
    except RecipeError:
        return value


def _comparable(value: Any) -> tuple[str, Any]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", value
    return type(value).__name__, json.dumps(value, sort_keys=True)


def points(axes: Sequence[Axis]) -> list[Point]:
    """Return the runs, the last setting changing first."""
    names = _short_names([axis.key for axis in axes])
    runs = []
    for values in itertools.product(*(axis.values for axis in axes)):
        settings = {axis.key: value for axis, value in zip(axes, values, strict=True)}
        words = [f"{names[key]}-{_word(value)}" for key, value in settings.items() if key != SEED]
        folders = [_shortened("_".join(words))] if words else []
        if SEED in settings:
            folders.append(f"{SEED}-{_word(settings[SEED])}")
        runs.append(Point("/".join(folders), settings))
    return runs


def _short_names(keys: Sequence[str]) -> dict[str, str]:
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


def _word(value: str) -> str:
    """Return a value as a part of a file name; other values have other names."""
    data = read(value)
    if isinstance(data, bool) or data is None:
        return json.dumps(data)
    if isinstance(data, float) and data.is_integer() and abs(data) < 1e15:
        return str(int(data))
    if isinstance(data, int | float):
        return repr(data)
    plain = data if isinstance(data, str) else json.dumps(data, sort_keys=True)
    word = re.sub(r"[^\w.+]+", "-", plain).strip("-.")[:_LONGEST_VALUE]
    is_same = word == plain and isinstance(read(word), str)
    return word if is_same else f"{word}-{_digest(json.dumps(data, sort_keys=True))}".lstrip("-")


def _shortened(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HEXADECIMAL_DIGITS]
