"""Rows that lie in lists inside of the values that a reader yields: questions of a text, turns.

`data.rows` is the path to the list: a dot between its steps, and each list on the way is gone
through. A row has the values of its entry and, where it has none of that name, of the objects
around it. Entries of an array that is no list of rows have its numbers as names: 0, 1, ….
Lists that belong together, entry by entry, are one last step: `questions+options+answers`.
"""

from nlpkit.contracts.reader import RowError, Rows
from nlpkit.data.lines import kind_of, no_such
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.plural import number_of

BEFORE = "before"  # the column of the entries of the list that come before the row's


class ObjectWithLine(JsonObject):
    """An object that knows the line at which it begins, and what is wrong with its keys."""

    line = 0
    wrong: RowError | None = None


def expand_rows(read: Rows, path: str | None, history: int | None) -> Rows:
    """Yield the line and the values of the rows at `path`; without a path, those that are read.

    With `history` a row has up to so many entries before it as `before`; the first of a list, which
    has none, is no row.
    """
    if path is None:
        yield from read
        return
    steps = path.split(".")
    for line, values in read:
        if isinstance(values, RowError):
            yield line, values
            continue
        try:
            for place, found in _rows(values, steps, {}, history):
                if isinstance(found, RowError):
                    found = RowError(f"data.rows: {path}: {found.what}")
                yield place or line, found
        except RowError as error:
            yield line, RowError(f"data.rows: {path}: {error.what}")


def _rows(value: object, steps: list[str], around: JsonMapping, history: int | None) -> Rows:
    """Yield line and values of the rows below a value, or the error of an entry that has none.

    `around` are the values of the objects around it.
    """
    step, *later = steps
    named = name_values(value)
    line = getattr(value, "line", 0)
    names = step.split("+") if not later else [step]
    for name in names:
        if name not in named:
            raise RowError(no_such(name, list(named)))
    around = {**around, **{name: each for name, each in named.items() if name not in names}}
    found = named[names[0]]
    if len(names) > 1:
        entries = _join_lists({name: named[name] for name in names})
    else:
        entries = found if isinstance(found, list) else [found]
    for number, entry in enumerate(entries):
        here = getattr(entry, "line", line)
        try:
            if later:
                yield from _rows(entry, later, around, history)
            elif number or history is None:
                own = name_values(entry) if isinstance(entry, (dict, list)) else {step: entry}
                row = {**around, **own}
                if history is not None:
                    row[BEFORE] = entries[max(number - history, 0) : number]
                yield here, row
        except RowError as error:
            yield here, error


def name_values(value: object) -> JsonObject:
    """Return the values of an object, or of an array by their numbers; raise `RowError`."""
    if isinstance(value, list):
        return {str(number): entry for number, entry in enumerate(value)}
    if not isinstance(value, dict):
        raise RowError(f"{kind_of(value)}, not an object or an array")
    if isinstance(value, ObjectWithLine) and value.wrong:
        raise value.wrong
    return value


def _join_lists(lists: JsonMapping) -> list[JsonObject]:
    """Return the entries of lists that belong together as objects; raise `RowError`."""
    for name, each in lists.items():
        if not isinstance(each, list):
            raise RowError(f'"{name}" is {kind_of(each)}, not an array')
    if len({len(each) for each in lists.values()}) > 1:
        sizes = [f'"{name}" has {number_of(len(each), "entries")}' for name, each in lists.items()]
        raise RowError(f"{', '.join(sizes)}; one of each belongs together")
    return [dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)]
