"""From the names in a recipe to files: `~`, `$HOME`, globs, the folders searched, and stdin."""

import dataclasses
import glob
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nlpkit.contracts.reader import TextFile
from nlpkit.data import formats
from nlpkit.data.lines import file_errors
from nlpkit.data.settings import Config, Source
from nlpkit.errors import FileError, UsageError
from nlpkit.plural import number_of


@dataclass(frozen=True)
class Input:
    """A source whose files have been found; `notes` say what of its directories is taken."""

    files: tuple[TextFile, ...]
    weight: float
    notes: tuple[str, ...] = ()


def find_inputs(
    config: Config,
    base: Path | None,
    spool: Path,
    should_stop: Callable[[], None] = lambda: None,
) -> tuple[list[Input], list[Input]]:
    """Return the training and the held-out inputs, every file found.

    Relative names are looked for in the working directory, in `base` (the recipe's folder), in the
    data that come with nlpkit. What can be read only once (stdin, a pipe) is copied into `spool`.
    Raise `FileError` for a name that matches nothing, `UsageError` for a file that `train` or
    `valid` names twice, or for stdin in both.
    """
    seen: dict[str, str] = {}
    found = []
    for sources in (config.train, config.valid):
        # Both may have the same file: a test of whether a model can learn it by heart.
        seen = {"-": "-"} if "-" in seen else {}
        inputs = []
        for source in sources:
            form = source.format or config.format
            files: list[TextFile] = []
            notes: list[str] = []
            for pattern, paths, note in find_files(source, form, base):
                notes += [note] if note else []
                if pattern == "-":
                    from nlpkit.data import streams

                    _once("-", pattern, seen)
                    files.append(streams.spool_stdin(spool, form, should_stop))
                for path, name in paths:
                    _once(str(path.resolve()), pattern, seen)
                    if is_stream(path, name):
                        from nlpkit.data import streams

                        files.append(streams.spool(path, name, spool, form, should_stop))
                    else:
                        files.append(text_file(path, name, form))
            if source.text_key is not None:
                files = [dataclasses.replace(file, text_key=source.text_key) for file in files]
            inputs.append(Input(tuple(join_pairs(files)), source.weight, tuple(notes)))
        found.append(inputs)
    used = {file.format for inputs in found for part in inputs for file in part.files}
    if config.line_break is not None and not used & {"text", "tsv", "parallel"}:
        raise UsageError("data.line_break: only text and tsv lines have it, and no file is either")
    return found[0], found[1]


def find_files(
    source: Source, form: str, base: Path | None
) -> Iterator[tuple[str, list[tuple[Path, str]], str]]:
    """Yield each name, its files, and what is to be said of them; raise `FileError`."""
    if source.hf is not None:
        from nlpkit.data import directories

        files, note = directories.find_data_set(source.hf, source.split or "train", base)
        yield source.hf, files, note
    for pattern in source.files:
        if pattern == "-":
            yield pattern, [], ""
        elif pattern.endswith("/") and not formats.inside(form):
            from nlpkit.data import directories

            files, note = directories.find_all(pattern, base, form)
            yield pattern, files, note
        else:
            yield pattern, find(pattern, base, formats.inside(form)), ""


def regular_files(config: Config, base: Path | None) -> Iterator[list[TextFile]]:
    """Yield the files of each source that can be read twice, as `find_inputs` finds them.

    Raises:
        FileError: a name matches no file.
        UsageError: a file's format is unknown.
    """
    for source in (*config.train, *config.valid):
        form = source.format or config.format
        found = [each for _, paths, _ in find_files(source, form, base) for each in paths]
        files = [
            dataclasses.replace(text_file(path, name, form), text_key=source.text_key)
            for path, name in found
            if not is_stream(path, name)
        ]
        yield join_pairs(files) if files and len(files) == len(found) else files


def _once(path: str, pattern: str, seen: dict[str, str]) -> None:
    if path in seen and path == "-":
        raise UsageError("data: -: stdin is named twice, and can be read only once")
    if path in seen:
        by = f" (by {seen[path]!r} and {pattern!r})" if seen[path] != pattern else ""
        raise UsageError(f"data: {path} is named twice{by}; to use it more often, give it a weight")
    seen[path] = pattern


def expand(name: str) -> str:
    """Return `name` with a leading `~` or `$HOME` replaced; no other variable is looked at."""
    for home in ("$HOME", "${HOME}"):
        if name == home or name.startswith(home + "/"):
            name = "~" + name.removeprefix(home)
    return os.path.expanduser(name)


def roots(name: str, base: Path | None) -> list[Path]:
    """Return the folders in which a relative path is looked for, the first one first.

    The data that come with nlpkit are found from everywhere, by names that begin with `data/`.
    """
    package = Path(__file__).parent.parent
    shipped = package / "_shipped"
    found = [Path.cwd()]
    if base is not None:
        found.append(base.absolute())
    if name.startswith("data/"):
        found.append(shipped if shipped.is_dir() else package.parent)
    return list(dict.fromkeys(found))


def find(pattern: str, base: Path | None, within: str = "") -> list[tuple[Path, str]]:
    """Return the files that a path or glob names: absolute path, and what messages call it.

    The first folder of `roots` with a match wins; matches are sorted. A directory stands for what
    the glob `within` finds in it. Raise `FileError`.
    """
    name = expand(pattern)
    folders = [Path("/")] if os.path.isabs(name) else roots(name, base)
    only_folders = False
    for folder in folders:
        literal = folder / name
        with file_errors(pattern):
            is_folder, is_there = literal.is_dir(), os.path.lexists(literal)
        if is_folder and within:
            return find(f"{glob.escape(str(literal))}/{within}", None)
        if is_folder:
            files = f"{pattern}/{_files_inside(literal)}"
            raise FileError(f"{pattern}: is a directory, not a file; name its files: {files}")
        if is_there:
            hits = [name]
        else:
            every = sorted(glob.glob(name, root_dir=folder, recursive=True))
            hits = [hit for hit in every if not (folder / hit).is_dir()]
            only_folders = only_folders or len(every) > len(hits)
        if hits:
            here = folder in (Path("/"), Path.cwd())
            return [(folder / hit, hit if here else str(folder / hit)) for hit in hits]
    is_glob = glob.has_magic(name)
    what = f"no file matches {pattern!r}" if is_glob else f"no such file: {pattern}"
    if only_folders:
        what += ", only directories do"
    if os.path.isabs(name):
        raise FileError(what)
    raise FileError(f"{what}; looked in {', '.join(map(str, folders))}")


def _files_inside(folder: Path) -> str:
    """Return the glob of a folder's files, such as those of images in a folder for each class."""
    globs = filter(None, map(formats.inside, formats.readers()))
    return next((g for g in globs if next(glob.iglob(g, root_dir=folder), None)), "*")


def text_file(path: Path, name: str, form: str) -> TextFile:
    """Return the file with its format; `auto` goes by the ending, before `.gz`."""
    zipped = path.suffix.lower() == ".gz"
    if form == "auto":
        form = formats.find_format(path.name)
        if not form:
            suffix = Path(path.name.lower().removesuffix(".gz")).suffix
            raise UsageError(
                f"{name}: the ending {suffix!r} tells no format; set data.format to "
                f"{', '.join(formats.all_names()[1:])} "
                f"(known endings: {', '.join(formats.endings())})"
            )
    return TextFile(str(path), name, form, zipped)


def join_pairs(files: list[TextFile]) -> list[TextFile]:
    """Return the files of a source, two that belong together as one; raise `UsageError`."""
    wanted = max((formats.parts(file.format) for file in files), key=len)
    if len(wanted) == 1:
        return files
    if len(files) != len(wanted) or files[0].format != files[1].format:
        named = ", ".join(file.name for file in files)
        raise UsageError(
            f"data: format {files[0].format} takes {number_of(len(wanted), 'files')}, "
            f"{' and '.join(wanted)}, as "
            f"files: [..., ...]; got {named}"
        )
    return [dataclasses.replace(files[0], second=files[1])]


def is_stream(path: Path, name: str) -> bool:
    """Return whether `path` can be read only once (a pipe, a process substitution).

    Raise `FileError` for a device, such as /dev/zero, which may have no end.
    """
    with file_errors(name):
        mode = path.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise FileError(f"{name}: is a device, not a file; - is stdin")
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
