"""Checks a part by its contract when it is loaded, and gives it the defaults.

A contract file has `CONTRACTS`, the classes of which a part, a module, keeps one: that of which it
lacks the fewest members. `CLASSES` are the contracts of classes in the module, by name.
"""

from abc import ABC
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any, Generic, Protocol

from nlpkit.errors import UsageError

_NOT_CONTRACTS = (object, ABC, Protocol, Generic)
_ABSENT = object()
# Other names for members, in parts that are older than their contract; nothing would read them.
_RENAMED = {
    **{"pieces": "ranges", "shares": "head_groups"},
    **{"joins": "composable", "alter": "transform", "slack": "max_shrink"},
}
_NEAR = 0.85  # likeness of two names, from 0 to 1, above which one is taken for the other


def complete(part: ModuleType, contract: ModuleType) -> None:
    """Check a part by the contract file of its kind, and set the optional members that it lacks.

    Raises:
        UsageError: a member is missing, or has a name like that of an optional one.
    """
    for place, each, cls in contracts_of(part, contract):
        if missing := _missing(each, cls):
            near = contract.CONTRACTS if each is part else (cls,)
            lacks = [m[0] for c in near if len(m := _missing(each, c)) == len(missing)]
            own = [name for name in _own_names(each, cls) if name not in members(cls)]
            hint = next(filter(None, (_hint(name, own) for name in lacks)), "")
            what = " or ".join(map(repr, dict.fromkeys(lacks)))
            raise UsageError(f"{place} has no {what}{hint}")
        # Our own names are checked by a test, which need not be fast.
        if not part.__name__.startswith("nlpkit.") and (wrong := misspelt(each, cls)):
            raise UsageError(f"{place} has {wrong[0]!r}; did you mean {wrong[1]!r}?")
        for name in members(cls):
            if _value(each, name) is _ABSENT:
                _set_default(each, cls, name)


def defines(part: object, contract: type, name: str) -> bool:
    """Return whether an object of a part has its own method in place of the contract's default."""
    return getattr(type(part), name) is not getattr(contract, name)


def members(contract: type) -> dict[str, bool]:
    """Return the members of a contract by name, and whether each is required."""
    found = {}
    for cls in _classes(contract):
        for name in (*vars(cls).get("__annotations__", ()), *vars(cls)):
            value = vars(cls).get(name, _ABSENT)
            if name[0] != "_" and not isinstance(value, property):  # one is an object's affair
                found[name] = value is _ABSENT or _is_abstract(value)
    return found


def misspelt(part: Any, contract: type) -> tuple[str, str] | None:
    """Return a name of a part that is near that of an optional member which it lacks, and this."""
    known = members(contract)
    own = _own_names(part, contract)
    lacking = [name for name in known if name not in own]
    for name in own:
        renamed = _RENAMED.get(name) if _RENAMED.get(name) in lacking else None
        if name not in known and (near := renamed or _nearest(name, lacking, _NEAR)):
            return name, near
    return None


def contracts_of(part: ModuleType, contract: ModuleType) -> Iterator[tuple[str, Any, type]]:
    """Yield the part and the classes in it, each with its place for messages and its contract."""
    file = part.__file__ or part.__name__
    yield f"{file}:", part, min(contract.CONTRACTS, key=lambda each: len(_missing(part, each)))
    for name, cls in contract.CLASSES.items():
        made = vars(part)[name]
        # A contract that builds on it, such as a task's, where it is a base of the class.
        bases = [each for each in made.__mro__ if each.__module__.startswith("nlpkit.contracts.")]
        yield f"{file}: {name}", made, next((each for each in bases if cls in each.__mro__), cls)


def _classes(contract: type) -> list[type]:
    """Return a contract and those that it builds on, these first."""
    return [cls for cls in reversed(contract.__mro__) if cls not in _NOT_CONTRACTS]


def _missing(part: Any, contract: type) -> list[str]:
    """Return the required members that a part lacks."""
    values = {n: _value(part, n) for n, is_required in members(contract).items() if is_required}
    return [name for name, value in values.items() if value is _ABSENT or _is_abstract(value)]


def _value(part: Any, name: str) -> Any:
    """Return a member of a part as it is written there, `_ABSENT` if there is none."""
    spaces = [part] if isinstance(part, ModuleType) else part.__mro__
    return next((vars(space)[name] for space in spaces if name in vars(space)), _ABSENT)


def _is_abstract(value: Any) -> bool:
    return getattr(value, "__isabstractmethod__", False)


def _own_names(part: Any, contract: type) -> list[str]:
    """Return the public names that a part defines itself, not the contract or another module."""
    if not isinstance(part, ModuleType):
        classes = [cls for cls in part.__mro__ if cls not in (*contract.__mro__, *_NOT_CONTRACTS)]
        return [name for cls in classes for name in vars(cls) if name[0] != "_"]
    return [
        name
        for name, value in vars(part).items()
        if name[0] != "_" and not isinstance(value, ModuleType)
        if getattr(value, "__module__", part.__name__) == part.__name__
    ]


def _hint(name: str, known: list[str]) -> str:
    near = _nearest(name, known, 0.6)
    return f"; it has {near!r}, which may be meant" if near else ""


def _nearest(word: str, known: list[str], likeness: float) -> str:
    import difflib  # takes milliseconds, and a right part needs none

    return next(iter(difflib.get_close_matches(word, known, 1, likeness)), "")


def _set_default(part: Any, contract: type, name: str) -> None:
    default = next(vars(cls)[name] for cls in reversed(_classes(contract)) if name in vars(cls))
    if isinstance(part, ModuleType) and isinstance(default, FunctionType):
        default = MethodType(default, part)
    setattr(part, name, default)
