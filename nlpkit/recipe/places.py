"""The places of values in a recipe, and the mistakes at these places."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

Path = tuple[str | int, ...]
_LONGEST_VALUE = 60


def dotted(path: Path) -> str:
    """Return `model.hidden_size` for `("model", "hidden_size")`."""
    return ".".join(map(str, path))


def undotted(name: str) -> Path:
    """Return `("of", 0, "name")` for `of.0.name`."""
    return tuple(int(step) if step.isdecimal() else step for step in name.split("."))


def flatten(data: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value in plain data with its path; an empty list or mapping is a value."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from flatten(value, (*path, key))
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from flatten(value, (*path, index))
    else:
        yield path, data


def value_at(data: Any, path: Path) -> Any:
    """Return the value at `path`, or None."""
    for step in path:
        data = data[int(step)] if isinstance(data, list) else (data or {}).get(step)
    return data


def quote(text: str) -> str:
    """Return `text` in double quotes on one line, shortened if it is very long."""
    if len(text) > _LONGEST_VALUE:
        text = text[: _LONGEST_VALUE - 1] + "…"
    return '"' + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text) + '"'


def show_path(path: FilePath) -> str:
    """Return the path of a file for messages: relative if it is below the working directory."""
    try:
        return str(path.relative_to(FilePath.cwd()))
    except ValueError:
        return str(path)


@dataclass(frozen=True)
class Place:
    """The line and column (from 1) of a value and of its key, and the written value.

    `decides` is the setting that decides a value which is not written itself (`recipe/autosize`).
    """

    source: str
    order: int = 0
    key: tuple[int, int] = (1, 1)
    value: tuple[int, int] = (1, 1)
    text: str | None = None
    decides: str = ""

    def where(self, mark: tuple[int, int]) -> str:
        """Return `file:line:column`, or `--set key` for the command line."""
        return self.source if self.on_command_line else f"{self.source}:{mark[0]}:{mark[1]}"

    @property
    def on_command_line(self) -> bool:
        """Return whether the value was given with `--set`."""
        return self.order > 0


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake; sorted by place, the file before the command line."""

    order: int
    mark: tuple[int, int]
    where: str
    path: str
    what: str

    @classmethod
    def at(cls, place: Place, path: Path, what: str, *, key: bool = False) -> "Problem":
        """Return the problem at the value of `place`, or at its key."""
        mark = place.key if key else place.value
        return cls(place.order, mark, place.where(mark), dotted(path), what)

    def __str__(self) -> str:
        parts = [self.where, self.path, self.what]
        if not self.path or self.where == f"--set {self.path}":
            del parts[1]
        return ": ".join(parts)


@dataclass
class Document:
    """Plain data, the place of every value, and mistakes that did not stop the reading."""

    data: Any
    places: dict[Path, Place]
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path) -> Place:
        """Return the place of `path`, or of the smallest part that contains it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def locate(self, what: str) -> str:
        """Return a message, `SETTING: …`, with the place of the setting, or of what contains it."""
        name, _, rest = what.partition(": ")
        path = next((each for each in self.places if dotted(each) == name), undotted(name))
        is_setting = ":" not in name and path[:1] in self.places  # else it may be located already
        return str(Problem.at(self.place(path), path, rest)) if is_setting else what

    def forget(self, path: Path) -> None:
        """Remove the places of the value at `path`, and of all in it."""
        for place in [place for place in self.places if place[: len(path)] == path]:
            del self.places[place]
