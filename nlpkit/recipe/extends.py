"""`extends: BASE`: a recipe with the settings of another one, and its own in their place.

Mappings merge; lists and single values, null too, replace. Where a part is another one
(`family`, `name` or `kind` differs), its mapping replaces the base's, so that no setting of the
other part remains. `name` and `out` are never taken from a base, whose run would be resumed; the
name is that of the file. Every value keeps its place, so that mistakes and origins name its file.
"""

import glob
import os
from pathlib import Path

from nlpkit import registry
from nlpkit.data.files import expand
from nlpkit.errors import RecipeError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.recipe import find, load, packaged, read, yaml
from nlpkit.recipe.overrides import key_of_short_form, replace_alternatives
from nlpkit.recipe.places import Document, Problem, show_path
from nlpkit.recipe.places import Path as KeyPath

KEY = "extends"
# What says which part a mapping is of, by section; everywhere else it is `_NAMES`.
_CHOICES = {"tokenizer": ("kind", "path", "source", "target"), "attention": ("kind", "layers")}
_NAMES = ("family", "name", "kind")
_OWN = ("name", "out")
_NOTHING = object()

_Level = tuple[Document, Path]  # one recipe of the chain, and its file


def complete(document: Document, file: Path) -> Document:
    """Return the recipe in `file` with all that its bases say, and without `extends`.

    Raises:
        RecipeError: a base is missing, is no recipe, or is built on itself.
        FileError: a base cannot be read.
    """
    chain = [(document, file.parent.resolve() / file.name)]
    place = document.place((KEY,))
    while (level := _find_base(chain)) is not None:
        chain.append(level)
    for each, _ in chain:
        _remove(each, KEY)
    if len(chain) == 1:
        return document
    for base, path in chain[1:]:
        for key in _OWN:
            _remove(base, key)
        _locate(base.data, path.parent, file.parent)
    merged, _ = chain.pop()
    while chain:
        other, _ = chain.pop()
        merged.data = _merge_value(merged, other, (), merged.data, other.data)
        merged.problems += other.problems
    if merged.data.get("name") is None:
        merged.data["name"] = file.stem
        merged.places[("name",)] = place
    return merged


def write_whole(path_or_name: str) -> str:
    """Return a recipe as YAML with all that its bases say, without defaults; see `load`."""
    load(path_or_name)  # raises what is wrong in it
    path = find(path_or_name)
    document = complete(read(yaml.read_file(path, path_or_name), show_path(path)), path)
    replace_alternatives(document)
    return yaml.write({"name": document.data["name"]} | document.data)


def _find_base(chain: list[_Level]) -> _Level | None:
    """Return the recipe on which the last one of the chain builds, or None."""
    last, file = chain[-1]
    name = last.data.get(KEY)
    place = last.place((KEY,))

    def wrong(what: str) -> RecipeError:
        return RecipeError([str(Problem.at(place, (KEY,), what))])

    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise wrong("expected a file, or the name of a packaged recipe")
    folder = Path.cwd() if place.on_command_line else file.parent
    path = folder / expand(name)
    if not path.is_file():
        if path.is_dir():
            raise wrong(f"{name} is a directory, not a recipe")
        if name not in packaged():
            there = path.parent.glob("*.yaml") if path.parent.is_dir() else ()
            beside = [name.removesuffix(path.name) + each.name for each in there]
            near = registry.suggest(name, [*packaged(), *sorted(beside)])
            raise wrong(f"no file {show_path(path)}, and no packaged recipe {name}{near}")
        path = packaged()[name]
    path = path.parent.resolve() / path.name
    name = show_path(path)
    for number, (_, other) in enumerate(chain):
        if os.path.realpath(other) == os.path.realpath(path):
            names = [show_path(each) for _, each in chain[number:]]
            raise wrong(f"a circle: {' → '.join([*names, name])}")
    document = yaml.read(yaml.read_file(path, name), name, -len(chain))
    if not isinstance(document.data, dict):
        raise wrong(f"{name} has no settings (`key: value`)")
    return document, path


def _merge_value(
    base: Document, other: Document, path: KeyPath, old: object, new: object
) -> object:
    """Return the value at `path`, with its places in `base`."""
    if isinstance(new, dict) and isinstance(old, str) and (key := key_of_short_form(path)):
        old = {key: old}
        base.places[(*path, key)] = base.places[path]
    if not (isinstance(old, dict) and isinstance(new, dict)) or _is_another(path, old, new):
        base.forget(path)
        of_new = other.places.items()
        base.places |= {at: place for at, place in of_new if at[: len(path)] == path}
        return new
    base.places[path] = other.places[path]
    merged = dict(old)
    for key, value in new.items():
        merged[key] = _merge_value(base, other, (*path, key), old.get(key, _NOTHING), value)
    return merged


def _is_another(path: KeyPath, old: JsonMapping, new: JsonMapping) -> bool:
    """Return whether both mappings name a part, and not the same one."""
    if not path:
        return False
    keys = _CHOICES.get(str(path[0]), _NAMES)
    of_old, of_new = ([key for key in keys if each.get(key) is not None] for each in (old, new))
    return bool(of_old) and any(
        key not in of_old or (not isinstance(new[key], dict | list) and new[key] != old[key])
        for key in of_new
    )


def _remove(document: Document, key: str) -> None:
    document.data.pop(key, None)
    document.forget((key,))


def _locate(data: JsonObject, folder: Path, home: Path) -> None:
    """Let the relative paths of a recipe in `folder` name the same files for one in `home`.

    A path is searched in the working directory, then in the folder of the recipe that says it.
    """
    if os.path.realpath(folder) == os.path.realpath(home):
        return
    tokenizer, inputs = data.get("tokenizer"), data.get("data")
    places = [(data, "init_from"), (tokenizer, "path"), (inputs, "train"), (inputs, "valid")]
    places += [(data.get("eval"), "pairs")]
    if isinstance(tokenizer, dict):
        places += [(tokenizer.get("source"), "path"), (tokenizer.get("target"), "path")]
    objective = data.get("objective")
    objectives = objective if isinstance(objective, list) else [objective]
    places += [(each, key) for each in objectives for key in ("teacher", "reference")]
    for section, key in places:
        if isinstance(section, dict) and key in section:
            section[key] = _locate_value(section[key], folder)


def _locate_value(value: object, folder: Path) -> object:
    """Return paths, globs or sources, with `folder` before what is found only there."""
    if isinstance(value, list):
        return [_locate_value(each, folder) for each in value]
    if isinstance(value, dict):
        paths = [key for key in ("files", "hf") if key in value]
        return value | {key: _locate_value(value[key], folder) for key in paths}
    if not isinstance(value, str) or value == "-" or "\0" in value:
        return value
    name = expand(value)
    if os.path.isabs(name) or _is_there(name, Path.cwd()) or not _is_there(name, folder):
        return value
    before = show_path(folder)
    return os.path.join(glob.escape(before) if glob.has_magic(name) else before, name)


def _is_there(name: str, folder: Path) -> bool:
    return os.path.lexists(folder / name) or any(glob.iglob(name, root_dir=folder, recursive=True))
