"""Checks a part by its contract when it is loaded, and gives it the defaults.

A contract file has `CONTRACTS`, the classes of which a part, a module, keeps one: that of which it
lacks the fewest members. It may have `CLASSES`, the contracts of classes in the module, by name.
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
        if _missing(each, cls):
            raise _describe_missing(place, each, contract.CONTRACTS if each is part else (cls,))
        # Our own names are checked by a test, which need not be fast.
        if not part.__name__.startswith("nlpkit.") and (wrong := misspelt(each, cls)):
            raise UsageError(f"{place} has {wrong[0]!r}; did you mean {wrong[1]!r}?")
        for name, default in members(cls).items():
            if _value(each, name) is _ABSENT:
                is_method = each is part and isinstance(default, FunctionType)
                setattr(each, name, MethodType(default, part) if is_method else default)


def defines(part: object, contract: type, name: str) -> bool:
    """Return whether an object of a part has its own method in place of the contract's default."""
    return getattr(type(part), name) is not getattr(contract, name)


def members(contract: type) -> dict[str, Any]:
    """Return the members of a contract with their defaults, `_ABSENT` if they are required."""
    found = {}
    classes = [cls for cls in reversed(contract.__mro__) if cls not in _NOT_CONTRACTS]
    for cls in classes:  # first those that it builds on
        for name in (*vars(cls).get("__annotations__", ()), *vars(cls)):
            value = vars(cls).get(name, _ABSENT)
            if name[0] != "_" and not isinstance(value, property):  # one is an object's affair
                found[name] = _value(cls, name)
    return found


def misspelt(part: Any, contract: type) -> tuple[str, str] | None:
    """Return a name of a part that is near that of an optional member which it lacks, and this."""
    known = members(contract)
    own = _own_names(part, contract)
    lacking = [name for name in known if name not in own]
    for name in own:
        renamed = _RENAMED.get(name) if _RENAMED.get(name) in lacking else None
        if name not in known and (near := renamed or _find_near(name, lacking, _NEAR)):
            return name, near
    return None


def contracts_of(part: ModuleType, contract: ModuleType) -> Iterator[tuple[str, Any, type]]:
    """Yield the part and the classes in it, each with its place for messages and its contract."""
    file = part.__file__ or part.__name__
    yield f"{file}:", part, min(contract.CONTRACTS, key=lambda each: len(_missing(part, each)))
    for name, cls in vars(contract).get("CLASSES", {}).items():
        made = vars(part)[name]
        # A contract that builds on it, such as a task's, where it is a base of the class.
        bases = [each for each in made.__mro__ if each.__module__.startswith("nlpkit.contracts.")]
        yield f"{file}: {name}", made, next((each for each in bases if cls in each.__mro__), cls)


def _missing(part: Any, contract: type) -> list[str]:
    wanted = members(contract).items()
    return [n for n, value in wanted if value is _ABSENT and _value(part, n) is _ABSENT]


def _value(part: Any, name: str) -> Any:
    """Return a member of a part as it is written there; `_ABSENT` if it is not, or abstract."""
    spaces = [part] if isinstance(part, ModuleType) else part.__mro__
    value = next((vars(space)[name] for space in spaces if name in vars(space)), _ABSENT)
    return _ABSENT if getattr(value, "__isabstractmethod__", False) else value


def _describe_missing(place: str, part: Any, contracts: tuple[type, ...]) -> UsageError:
    """Return the error of a part that lacks a member of each of these contracts."""
    lacking = [_missing(part, each) for each in contracts]
    names = [lacks[0] for lacks in lacking if len(lacks) == min(map(len, lacking))]
    known = {name for each in contracts for name in members(each)}
    own = [name for name in _own_names(part, contracts[0]) if name not in known]
    near = next(filter(None, (_find_near(name, own, 0.6) for name in names)), "")
    hint = f"; it has {near!r}, which may be meant" if near else ""
    return UsageError(f"{place} has no {' or '.join(map(repr, dict.fromkeys(names)))}{hint}")


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


def _find_near(word: str, known: list[str], likeness: float) -> str:
    import difflib  # takes milliseconds, and a right part needs none

    return next(iter(difflib.get_close_matches(word, known, 1, likeness)), "")
