"""The folder is the registry: a name in a recipe is the name of the file, or folder, that does it.

A part is a file, or, in `models`, a folder with `model.py`; other folders, and files that start
with `_`, are what parts share. A dotted name is any importable module with the same contents, so
that an experiment needs no fork: an installed one, or one in the working directory. A part is
checked by its contract when it is loaded: `objectives/NAME.py` by `contracts/objective.py`.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType

from nlpkit.errors import UsageError

# Not pathlib, nor difflib before a name is wrong: `nlpkit score` starts in the time they take.
_ROOT = os.path.dirname(__file__)
# The parts that were found and checked, by folder and name: a step of training asks for the same
# ones many times.
_CHECKED: dict[tuple[str, str], ModuleType] = {}
# The packages of parts that a dotted name named (`outside_parts`).
OUTSIDE: set[str] = set()


def names(folder: str) -> list[str]:
    """Return the known names in `folder` (such as `objectives` or `attention/kinds`), sorted."""
    entries = [name for name in os.listdir(os.path.join(_ROOT, folder)) if name[0] not in "_."]
    folders = [name for name in entries if "." not in name]
    families = [n for n in folders if os.path.isfile(os.path.join(_ROOT, folder, n, "model.py"))]
    files = [name[:-3] for name in entries if name.endswith(".py")]
    return sorted(families or files)


def about(folder: str, name: str) -> str:
    """Return the first line of a part's docstring, without importing it."""
    import ast

    path = os.path.join(_ROOT, folder, name)
    source = f"{path}.py" if os.path.isfile(f"{path}.py") else os.path.join(path, "__init__.py")
    with open(source, encoding="utf-8") as file:
        text = ast.get_docstring(ast.parse(file.read())) or ""
    return text.partition("\n")[0]


def load(folder: str, name: str) -> ModuleType:
    """Import the part called `name`, checked by its contract, with the contract's defaults.

    Raises:
        UsageError: there is no such part; the nearest known name is named. Or a member is missing.
    """
    known = _CHECKED.get((folder, name))
    if "." in name:
        part = _import_dotted(name)
    elif known is None and name not in (there := names(folder)):
        raise UsageError(f"no {name!r}{suggest(name, there)}; known: {', '.join(there)}")
    else:
        part = importlib.import_module(f"nlpkit.{folder.replace('/', '.')}.{name}")
    if part is not known:
        if (contract := contract_of(folder)) is not None:
            from nlpkit.contracts import check

            check.complete(part, contract)
        _CHECKED[folder, name] = part
    return part


def contract_of(folder: str) -> ModuleType | None:
    """Return the contract of the parts in a folder: for `attention/kinds`, `contracts/kind.py`."""
    name = folder.rpartition("/")[2].removesuffix("s")
    if not os.path.isfile(os.path.join(_ROOT, "contracts", f"{name}.py")):
        return None
    return importlib.import_module(f"nlpkit.contracts.{name}")


def _import_dotted(name: str) -> ModuleType:
    here = working_directory()
    # `python -m nlpkit` has it, the script `nlpkit` does not. Last, so that it hides nothing.
    if here and here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    if not name.startswith("nlpkit."):  # a dotted name of our own part is none from outside
        OUTSIDE.add(name.rpartition(".")[0])
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"cannot import {name!r}: {error}") from error
    # Code that is not ours can raise anything, and can end the process.
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"cannot import {name!r}: {what}") from error


def working_directory() -> str:
    """Return its path, empty where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean X?` when something near `word` is known, else an empty string."""
    import difflib

    known = list(known)
    near: list[str] = []
    for written in (word, word.lower()):
        near = near or difflib.get_close_matches(written, known, n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else ""
