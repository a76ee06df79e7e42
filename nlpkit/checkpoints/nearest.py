"""Finds the directory that a misspelt path of a run or of a checkpoint means."""

from difflib import get_close_matches
from pathlib import Path

_RUNS = Path("runs")  # where runs are unless `out` says otherwise


def suggest_path(path: Path) -> str:
    """Return `, did you mean PATH?` if a directory with nearly this path exists, else "".

    A name alone is also looked up in `runs`.
    """
    tried = [path, _RUNS / path] if len(path.parts) == 1 else [path]
    try:
        found = next((near for each in tried if (near := _find_near(each))), None)
    except OSError:  # a directory that cannot be read, or a name that is too long
        found = None
    return f", did you mean {found}?" if found else ""


def suggest_start(path: Path) -> str:
    """Return which command makes the run of a packaged recipe, if there is none, else as above."""
    from nlpkit import recipe

    before, runs, rest = str(path).rpartition("runs/")
    name = rest.partition("/")[0]
    if name in recipe.packaged() and not Path(before + runs + name).exists():
        return f"; `nlpkit pretrain {name}` makes one"
    return suggest_path(path)


def _find_near(path: Path) -> Path | None:
    """Return `path` if it exists, or with its first wrong part replaced by the nearest name."""
    if path.is_dir():
        return path
    there = next((folder for folder in path.parents if folder.is_dir()), None)
    if there is None:
        return None
    wrong, *rest = path.relative_to(there).parts
    names = sorted(each.name for each in there.iterdir() if each.is_dir() and each.name[0] != ".")
    by_lower = {name.lower(): name for name in names}
    if not (near := get_close_matches(wrong.lower(), by_lower, n=1)):
        return None
    found = there / by_lower[near[0]]
    return found.joinpath(*rest) if found.joinpath(*rest).exists() else found
