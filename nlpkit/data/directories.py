"""Directories in a recipe: all readable files below one, or a split of a data set.

Names are found in the order of their paths. Nothing is downloaded, and no script is run.
"""

import os
import re
from collections import Counter
from pathlib import Path

from nlpkit.data import formats
from nlpkit.data.files import Named, expand, roots
from nlpkit.data.lines import file_errors, name_first
from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.plural import number_of

_DICT, _STATE = "dataset_dict.json", "state.json"  # written by `save_to_disk` of datasets
_ENDING = r"\.(parquet|arrow|jsonl|json|csv|tsv|txt)(\.gz)?"
_KNOWN = ("train", "validation", "valid", "dev", "test")  # names of splits, for messages


def find_all(pattern: str, base: Path | None, form: str) -> tuple[list[Named], str]:
    """Return the files below a directory that are read, and what is taken and what is not.

    With a `form` all files are; with auto, those whose ending tells a format of single files.
    Files and directories whose names begin with a dot are left out.

    Raises:
        FileError: there is no such directory, or nothing in it can be read.
    """
    folder, name = _folder(pattern, base)
    taken: list[str] = []
    left: list[str] = []
    for path in sorted(_walk(folder)):
        inner = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inner.parts)
        known = form != "auto" or _is_readable(path.name)
        (taken if known and not hidden and path.is_file() else left).append(inner.as_posix())
    if not taken:
        there = f" among {number_of(len(left), 'files')}: {name_first(left)}" if left else ""
        endings = ", ".join(e for e in formats.endings() if _is_readable(f"x{e}"))
        raise FileError(f"{pattern}: no file that can be read{there}; known endings: {endings}")
    kinds = Counter(map(_ending, taken))
    what = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    rest = f"not taken: {len(left):,} ({name_first(left)})" if left else "nothing else is in it"
    note = f"{pattern}: {number_of(len(taken), 'files')} taken ({what}); {rest}"
    return [(folder / inner, f"{name}/{inner}") for inner in taken], note


def _walk(folder: Path) -> list[Path]:
    """Return what lies below a folder, also behind links; each directory once, at its own place."""
    found: list[Path] = []
    places, walked = [folder], set[str]()
    for start in places:  # linked directories are added behind
        for place, inner, names in os.walk(start, onerror=lambda e: found.append(Path(e.filename))):
            real = os.path.realpath(place)
            if real in walked:
                inner.clear()
                continue
            walked.add(real)
            found.extend(Path(place, name) for name in names)
            places += [path for name in sorted(inner) if (path := Path(place, name)).is_symlink()]
    return found


def _ending(name: str) -> str:
    plain = name.removesuffix(".gz")
    return (Path(plain).suffix or "no ending") + name[len(plain) :]


def _is_readable(name: str) -> bool:
    """Return whether the ending of a file's name tells a format whose files stand alone."""
    form = formats.find_format(name)
    return bool(form) and len(formats.parts(form)) == 1 and not formats.inside(form)


def find_data_set(pattern: str, split: str, base: Path | None) -> tuple[list[Named], str]:
    """Return the files of a split of a data set, and a line about them.

    The directory is one that `save_to_disk` wrote, or one with a parquet, jsonl, csv or text file,
    or several, for each split. A script in it is not run.

    Raises:
        FileError: there is no such directory or split, or some of its shards are missing.
    """
    folder, name = _folder(pattern, base)
    scripts = sorted(path.name for path in folder.glob("*.py"))
    remark = f"; {name_first(scripts)} is not run" if scripts else ""
    if (folder / _DICT).is_file():
        named = read_json(folder / _DICT).get("splits")
        splits = [str(each) for each in named] if isinstance(named, list) else []
        if split not in splits:
            raise FileError(_no_split(pattern, split, splits))
        folder, name = folder / split, f"{name}/{split}"
    is_saved = (folder / _STATE).is_file()
    files = _find_saved(folder, pattern, split) if is_saved else _find_by_name(folder, split)
    if not files:
        there = [each for each in _KNOWN if _find_by_name(folder, each)]
        inner = sorted({path.parent.name for path in folder.glob(f"*/{split}[-.]*")} - {"data"})
        hint = f"; name a directory in it: {name_first(inner)}" if inner else ""
        raise FileError(_no_split(pattern, split, there) + hint + remark)
    found = [(path, f"{name}/{path.relative_to(folder).as_posix()}") for path in files]
    shorts = name_first([path.relative_to(folder).as_posix() for path in files])
    many = number_of(len(files), "files")
    if not is_saved:
        _check_shards(files, pattern, split)
    return found, f"{pattern}, split {split}: {many} taken ({shorts}){remark}"


def _check_shards(files: list[Path], pattern: str, split: str) -> None:
    """Raise `FileError` if the names of the shards tell of more than there are."""
    there: dict[tuple[Path, str], set[int]] = {}
    for path in files:
        if match := re.match("(.*)-([0-9]{3,})-of-([0-9]{3,})", path.name):
            there.setdefault((path.with_name(match[1]), match[3]), set()).add(int(match[2]))
    for (path, number), has in there.items():
        lacking = [f"{each:05}" for each in range(int(number)) if each not in has]
        if lacking and len(has) != int(number):  # numbered from 1, too
            raise FileError(
                f"{pattern}: split {split} has {len(has):,} of its {int(number):,} shards; there "
                f"is no {path.name}-{name_first(lacking)}; to train on these alone, name them: "
                f"files: {path}-*"
            )


def _folder(pattern: str, base: Path | None) -> Named:
    """Return a directory, and its name without a slash at the end; raise `FileError`."""
    name = expand(pattern).rstrip("/") or "/"
    folders = roots(name, base)
    for root in folders:
        with file_errors(pattern):
            if (root / name).is_dir():
                here = root in (Path("/"), Path.cwd())
                return root / name, name if here else str(root / name)
            if (root / name).exists():
                raise FileError(f"{pattern}: is a file, not a directory")
    raise FileError(f"no such directory: {pattern}; looked in {', '.join(map(str, folders))}")


def _find_saved(folder: Path, pattern: str, split: str) -> list[Path]:
    state = read_json(folder / _STATE)
    if state.get("_indices_data_files"):
        raise FileError(
            f"{folder / _STATE}: its rows are chosen by a file of indices; save the data set again "
            "after flatten_indices()"
        )
    own = state.get("_split")
    if isinstance(own, str) and own.partition("[")[0] != split:
        raise FileError(_no_split(pattern, split, [own]))
    try:
        files = [folder / str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise FileError(f"{folder / _STATE}: does not name its data files") from error
    for path in files:
        if not path.is_file():
            raise FileError(f"{path}: no such file, and {folder / _STATE} names it")
    return files


def _find_by_name(folder: Path, split: str) -> list[Path]:
    """Return the files of a split by their names, which are those of the libraries.

    `train.csv` and the shards `train-00000-of-00002.parquet`, also in `data/`; all of `train/`.
    """
    whole = re.compile(rf"{re.escape(split)}(-[0-9]{{3,}}[^.]*)?{_ENDING}")
    found = []
    for place in (folder, folder / "data"):
        found += [path for path in place.glob("*") if whole.fullmatch(path.name)]
        inner = (place / split).glob("*")
        found += [path for path in inner if re.search(f"{_ENDING}$", path.name)]
    return sorted(path for path in found if path.is_file())


def _no_split(pattern: str, split: str, splits: list[str]) -> str:
    there = f"it has: {', '.join(splits)}" if splits else "nor any other; no file is named by one"
    return f"{pattern}: no split {split!r}; {there}"
