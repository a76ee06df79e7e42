"""From the names in a recipe to files: `~`, `$HOME`, globs, the folders searched, and stdin."""

import dataclasses
import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nlpkit.contracts.reader import TextFile
from nlpkit.data import formats
from nlpkit.data.lines import file_errors
from nlpkit.data.settings import Config, Source
from nlpkit.errors import FileError, UsageError
from nlpkit.plural import number_of

Named = tuple[Path, str]  # where a file is, and what messages call it


@dataclass(frozen=True)
class Input:
    """A source whose files have been found; `notes` say what of its directories is taken."""

    files: tuple[TextFile, ...]
    weight: float
    notes: tuple[str, ...] = ()


def find_inputs(
    config: Config,
    base: Path | None,
    copies: Path | None,
    should_stop: Callable[[], None] = lambda: None,
) -> tuple[list[Input], list[Input]]:
    """Return the training and the held-out inputs, every file found.

    Relative names are looked for in the working directory, in `base` (the recipe's folder), in the
    data that come with nlpkit. What can be read only once (stdin, a pipe) is copied into `copies`;
    without that, its source is left out.
    Raise `FileError` for a name that matches nothing, `UsageError` for a file that `train` or
    `valid` names twice, or for stdin in both.
    """
    seen: dict[str, str] = {}

    def find_input(source: Source) -> Input | None:
        form = source.format or config.format
        files: list[TextFile] = []
        notes: list[str] = []
        for pattern, paths, note in find_files(source, form, base):
            notes += [note] if note else []
            for path, name in paths:
                _check_unseen(path, name, pattern, seen)
                if name != "-" and path.is_file():
                    files.append(_text_file(path, name, form))
                    continue
                if copies is None:
                    return None
                from nlpkit.data import streams

                files.append(streams.copy(path, name, copies, form, should_stop))
        key, limit = source.text_key, source.max_rows
        files = [dataclasses.replace(file, text_key=key, max_rows=limit) for file in files]
        together = max((formats.parts(file.format) for file in files), key=len)
        if len(together) > 1:
            files = _join_pair(files, together)
        return Input(tuple(files), source.weight, tuple(notes))

    train = [each for source in config.train if (each := find_input(source))]
    # A file may be in both: a test of whether a model can learn it by heart.
    seen = {name: by for name, by in seen.items() if name == "-"}
    return train, [each for source in config.valid if (each := find_input(source))]


def find_files(
    source: Source, form: str, base: Path | None
) -> Iterator[tuple[str, list[Named], str]]:
    """Yield each name, its files, and what is to be said of them; raise `FileError`."""
    if source.hf is not None:
        from nlpkit.data import directories

        yield source.hf, *directories.find_data_set(source.hf, source.split or "train", base)
    for pattern in source.files:
        if pattern == "-":
            yield pattern, [(Path(pattern), pattern)], ""
        elif pattern.endswith("/") and not formats.inside(form):
            from nlpkit.data import directories

            yield pattern, *directories.find_all(pattern, base, form)
        else:
            yield pattern, find(pattern, base, formats.inside(form)), ""


def _check_unseen(path: Path, name: str, pattern: str, seen: dict[str, str]) -> None:
    real = name if name == "-" else os.path.realpath(path)
    if real in seen:
        raise UsageError(
            "data: -: stdin is named twice, and can be read only once"
            if real == "-"
            else f"data: {real} is named twice (by {seen[real]!r} and {pattern!r}); name it once "
            "(in data.train, a weight uses it more often)"
        )
    seen[real] = pattern


def expand(name: str) -> str:
    """Return `name` with a leading `~` or `$HOME` replaced; no other variable is looked at."""
    return os.path.expanduser(re.sub(r"^\$(HOME|\{HOME\})(?=/|\Z)", "~", name))


def find_path(name: str, base: Path) -> Path:
    """Return the file or directory that a setting names, with `~` and `$HOME` replaced.

    A relative name is searched in the working directory, then in `base`. If it is in neither, the
    path in the working directory is returned.
    """
    path = Path(expand(name))
    return base / path if not path.exists() and (base / path).exists() else path


def roots(name: str, base: Path | None) -> list[Path]:
    """Return the folders in which a path is looked for, the first one first.

    The data that come with nlpkit are found from everywhere, by names that begin with `data/`.
    """
    if os.path.isabs(name):
        return [Path("/")]
    found = [Path.cwd(), (base or Path()).absolute()]
    if name.startswith("data/"):
        package = Path(__file__).parent.parent
        shipped = package / "_shipped"
        found.append(shipped if shipped.is_dir() else package.parent)
    return list(dict.fromkeys(found))


def find(pattern: str, base: Path | None, within: str = "") -> list[Named]:
    """Return the files that a path or glob names.

    The first folder of `roots` with a match wins; matches are sorted. A directory stands for what
    the glob `within` finds in it. Raise `FileError`.
    """
    name = expand(pattern)
    folders = roots(name, base)
    for folder in folders:
        with file_errors(pattern):
            if (folder / name).is_dir():
                return _find_inside(folder / name, pattern, within)
            is_there = os.path.lexists(folder / name)
            hits = [name] if is_there else glob.glob(name, root_dir=folder, recursive=True)
        if hits := sorted(hit for hit in hits if not (folder / hit).is_dir()):
            here = folder in (Path("/"), Path.cwd())
            return [(folder / hit, hit if here else str(folder / hit)) for hit in hits]
    what = f"no file matches {pattern!r}" if glob.has_magic(name) else f"no such file: {pattern}"
    where = "" if os.path.isabs(name) else f"; looked in {', '.join(map(str, folders))}"
    raise FileError(what + where)


def _find_inside(folder: Path, pattern: str, within: str) -> list[Named]:
    if within:
        found = find(f"{glob.escape(str(folder))}/{within}", None)
        for path in sorted({*folder.glob("[!.]*/[!.]*")} - {path for path, _ in found}):
            if path.is_file():
                raise FileError(f"{path}: is not read; name those that are: {pattern}/{within}")
        return found
    globs = filter(None, map(formats.inside, formats.readers()))
    files = next((g for g in globs if any(folder.glob(g))), f"*, or the directory as {pattern}/")
    raise FileError(f"{pattern}: is a directory, not a file; name its files: {pattern}/{files}")


def _text_file(path: Path, name: str, form: str) -> TextFile:
    if form == "auto" and not (form := formats.find_format(name)):
        from nlpkit.data.unreadable import explain_ending

        raise explain_ending(name)
    return TextFile(str(path), name, form, path.suffix.lower() == ".gz")


def _join_pair(files: list[TextFile], together: tuple[str, ...]) -> list[TextFile]:
    """Return the files of a source, two that belong together as one; raise `UsageError`."""
    if len(files) != len(together) or files[0].format != files[1].format:
        raise UsageError(
            f"data: format {files[0].format} takes {number_of(len(together), 'files')}, "
            f"{' and '.join(together)}, as files: [..., ...]; got "
            f"{', '.join(file.name for file in files)}"
        )
    return [dataclasses.replace(files[0], second=files[1])]
