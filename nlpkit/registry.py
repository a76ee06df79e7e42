"""The folder is the registry: a name in a recipe is the name of the file, or folder, that does it.

Names that start with `_` are shared helpers. A dotted name is any importable module with the same
contents, so that an experiment needs no fork.
"""

import difflib
import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from nlpkit.errors import UsageError

_ROOT = Path(__file__).parent


def names(folder: str) -> list[str]:
    """Return the known names in `folder` (such as `objectives` or `attention/kinds`), sorted."""
    found = []
    for path in (_ROOT / folder).iterdir():
        is_part = path.suffix == ".py" or (path / "__init__.py").is_file()
        if is_part and not path.name.startswith("_"):
            found.append(path.stem)
    return sorted(found)


def load(folder: str, name: str) -> ModuleType:
    """Import the part called `name`; raise `UsageError` with the nearest known name."""
    if "." in name:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"cannot import {name!r}: {error}") from error
    known = names(folder)
    if name not in known:
        raise UsageError(f"no {name!r}{suggest(name, known)}; known: {', '.join(known)}")
    return importlib.import_module(f"nlpkit.{folder.replace('/', '.')}.{name}")


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean X?` when something near `word` is known, else an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else ""
