"""Reads checkpoints: in the layout of `transformers`, as LoRA adapters, or as a family's authors
released them (with `models/NAME/original.py`)."""

import contextlib
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from nlpkit import registry
from nlpkit.checkpoints import hf_layout, integrity, tokenizer_files
from nlpkit.checkpoints.hf_model import find_family
from nlpkit.disk import read_json
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models import families


class Original(NamedTuple):
    """The files of an original release, and the module that reads them.

    The module has `WEIGHTS` and `SETTINGS` (patterns of file names), `is_settings(content)`, and
    `read(weights, settings, dtype, adapters, keep)`, which returns the same as `read` below.
    `adapters` is a file in the authors' own format, which is merged; `keep` returns what is kept of
    each tensor, such as a copy on disk (`runs/convert.Scratch`).
    """

    module: Any
    weights: Path
    settings: Path


def find_original(path: Path, settings: Path | None = None) -> Original | None:
    """Return the original release at `path`, or None if there is none.

    Args:
        path: a file or a directory. A directory with weights of `transformers` is not a release.
        settings: the file of settings, if it is not in the same directory.

    Raises:
        FileError: the settings of the release are missing, or several files match.
    """
    names = [f"nlpkit.models.{name}.original" for name in registry.names("models")]
    for module in (importlib.import_module(name) for name in names if find_spec(name)):
        if path.is_dir():
            if any(
                (path / name).exists()
                for name in (hf_layout.WEIGHTS, hf_layout.INDEX, hf_layout.ADAPTERS)
            ):
                return None
            weights = sorted(path.glob(module.WEIGHTS))
        else:
            is_weights = path.is_file() and path.suffix == Path(module.WEIGHTS).suffix
            weights = [path] if is_weights else []
        if len(weights) > 1:
            raise FileError(f"{path}: holds {', '.join(p.name for p in weights)}; name one")
        if weights:
            return Original(module, weights[0], settings or _find_settings(weights[0], module))
    return None


def _find_settings(weights: Path, module: Any) -> Path:
    """Return the settings file with the name of the weights, or the only one in their directory."""
    same = weights.with_suffix(Path(module.SETTINGS).suffix)
    if same.is_file():
        return same
    candidates = []
    for path in sorted(weights.parent.glob(module.SETTINGS)):
        with contextlib.suppress(FileError):  # another kind of file
            if module.is_settings(read_json(path)):
                candidates.append(path)
    if len(candidates) != 1:
        names = ", ".join(path.name for path in candidates) or "none"
        raise FileError(
            f"{weights}: needs its settings, {same.name}, in the same directory; there is {names} "
            f"(for nlpkit convert: --config FILE)"
        )
    return candidates[0]


def read(path: Path, family: str | None = None, *, prompts: bool = False) -> hf_layout.Content:
    """Return `config.json` and tensors of a checkpoint, with adapters merged.

    Args:
        family: the family that reads the checkpoint; None: the one that the checkpoint names.
        prompts: whether the caller gives the model the soft prompt of the checkpoint, if it has
            one (`prompt_layout.read_rows`).

    Raises:
        FileError: a file is missing or damaged, or the files do not fit together.
        UsageError: the checkpoint has a soft prompt, and not `prompts`.
    """
    release = find_original(path)
    if release is not None:
        content: hf_layout.Content = release.module.read(release.weights, release.settings)
        return content
    adapter = hf_layout.read_adapters(path)
    if adapter is None:
        return _read(path, family)[1]
    base_path = _find_base(path, adapter)
    name, content = _read(base_path, family)
    from nlpkit.checkpoints import peft_layout, prompt_layout

    if prompt_layout.is_prompt(adapter):
        if not prompts:
            raise UsageError(
                f"{path} holds a soft prompt, which cannot be merged into weights: name its base "
                f"{base_path}, or train the prompt on with train.tune: prompt"
            )
        return prompt_layout.merge(path, adapter, name, content)
    if peft_layout.is_own(path, adapter):
        return peft_layout.merge(path, adapter, name, content)
    from nlpkit.checkpoints import foreign_adapters

    return foreign_adapters.merge(path, adapter, name, base_path, content[1])


def _read(path: Path, family: str | None) -> tuple[str, hf_layout.Content]:
    """Return the family of a directory, and its content with the folders of the family."""
    name = find_family(hf_layout.read_settings(path), path, family)
    return name, hf_layout.read(path, families.load_model(name).FORMAT.folders)


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` has the files of a checkpoint, valid or not."""
    marks = ("config.json", hf_layout.ADAPTERS)
    return any((path / name).is_file() for name in marks) or find_original(path) is not None


def find_homes(path: Path) -> list[Path]:
    """Return the directories to search, in order, for a checkpoint's tokenizer and notes."""
    if not path.is_dir():
        return [path.parent]
    adapter = hf_layout.read_adapters(path)
    if adapter is None or (path / "config.json").is_file():
        return [path]
    return [path, _find_base(path, adapter)]


def find_tokenizer(path: Path) -> Path:
    """Return the directory of a checkpoint's tokenizer; the tokenizer may be missing."""
    directories = find_homes(path)
    return next(filter(tokenizer_files.is_there, directories), directories[0])


def read_notes(path: Path) -> JsonObject:
    """Return nlpkit's notes on a checkpoint (`nlpkit.json`), or on the base of adapters."""
    return next((notes for home in find_homes(path) if (notes := hf_layout.read_notes(home))), {})


def find_base(path: Path) -> Path | None:
    """Return the base checkpoint of the adapters in a checkpoint, or None if it has no adapters.

    A resumed run must use this path, because the target of the link `latest` may have changed.
    """
    adapter = hf_layout.read_adapters(path)
    return None if adapter is None else _find_base(path, adapter).resolve()


def hash_base(path: Path) -> str:
    """Return the hash of a base checkpoint, which its adapters store.

    Raises:
        UsageError: peft cannot use this checkpoint as a base.
    """
    if path.is_dir() and hf_layout.read_adapters(path) is not None:
        problem = "has adapters itself; merge them first"
    elif find_original(path) is not None:
        problem = "is not in transformers' layout; convert it first"
    else:
        return integrity.hash_weights(hf_layout.list_weights(path))
    raise UsageError(f"lora: {path} {problem}: nlpkit convert {path} DIR")


def _find_base(directory: Path, adapter: JsonMapping) -> Path:
    """Return the base checkpoint of adapters; its hash is checked if the adapters store one."""
    named = adapter.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise FileError(f"{directory / hf_layout.ADAPTERS}: base_model_name_or_path is missing")
    candidates = [Path(named).expanduser(), directory / named]
    base = next((path for path in candidates if (path / "config.json").is_file()), None)
    if base is None:
        raise FileError(
            f"{directory}: its base {named} does not exist; restore it, or link the place where "
            f"it is now: ln -s DIR {named}"
        )
    if hf_layout.read_adapters(base) is not None:
        raise FileError(
            f"{directory}: its base {base} has adapters itself; merge them first: "
            f"nlpkit convert {base} DIR"
        )
    base_hash = hf_layout.read_notes(directory).get("base")
    if base_hash is not None and not is_base(base, base_hash):
        raise FileError(f"{directory}: {base} is not the model that these adapters were trained on")
    return base


def is_base(path: Path, base_hash: object) -> bool:
    """Return whether a checkpoint directory is the base whose hash adapters store."""
    return integrity.has_hash(hf_layout.list_weights(path), base_hash)
