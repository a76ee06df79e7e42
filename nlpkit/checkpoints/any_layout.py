"""Reads a checkpoint whatever its form: a directory of `transformers`', adapters on one, or what a
family's authors released (`models/NAME/original.py`, where there is one)."""

import contextlib
import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nlpkit import registry
from nlpkit.checkpoints import hf_layout, peft_layout, tokenizer_files
from nlpkit.disk import read_json
from nlpkit.errors import FileError, UsageError

_INDEX = f"{hf_layout.WEIGHTS}.index.json"


@dataclass(frozen=True)
class Original:
    """The files of a release, and the module that reads them.

    It has `WEIGHTS` and `SETTINGS`, patterns of their names, `is_settings(content)`, and
    `read(weights, settings, dtype)`: `config.json` and tensors in `transformers`' layout.
    """

    module: Any
    weights: Path
    settings: Path

    def read(self, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return settings and tensors as `transformers` would have them.

        Raises:
            FileError: a file is missing, damaged, or no plain table of tensors that fit.
        """
        found: tuple[dict[str, Any], dict[str, Tensor]]
        found = self.module.read(self.weights, self.settings, dtype)
        return found


def _readers() -> list[Any]:
    names = [f"nlpkit.models.{name}.original" for name in registry.names("models")]
    return [importlib.import_module(name) for name in names if find_spec(name) is not None]


def original(path: Path, settings: Path | None = None) -> Original | None:
    """Return the release that a file, or a directory without transformers' weights, is.

    Args:
        settings: its settings, where they do not lie beside it.

    Raises:
        FileError: it is one, and its settings are not to be found.
    """
    for module in _readers():
        if path.is_dir():
            if any(
                (path / name).exists() for name in (hf_layout.WEIGHTS, _INDEX, peft_layout.SETTINGS)
            ):
                return None
            found = sorted(path.glob(module.WEIGHTS))
        else:
            found = [path] if path.is_file() and path.suffix == Path(module.WEIGHTS).suffix else []
        if len(found) > 1:
            raise FileError(f"{path}: holds {', '.join(p.name for p in found)}; name one")
        if found:
            return Original(module, found[0], settings or _settings_beside(found[0], module))
    return None


def _settings_beside(weights: Path, module: Any) -> Path:
    """Return the file of settings that has the name of the weights, or is the only one."""
    same = weights.with_suffix(Path(module.SETTINGS).suffix)
    if same.is_file():
        return same
    found = []
    for path in sorted(weights.parent.glob(module.SETTINGS)):
        with contextlib.suppress(FileError):  # some other file
            if module.is_settings(read_json(path)):
                found.append(path)
    if len(found) != 1:
        what = ", ".join(path.name for path in found) or "none"
        raise FileError(
            f"{weights}: needs its settings, {same.name}, beside it; there is {what} "
            f"(for nlpkit convert: --config FILE)"
        )
    return found[0]


def read(path: Path, family: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `config.json` and tensors of a checkpoint in `transformers`' layout, adapters merged.

    Args:
        family: the one that reads it, if not the one that it names itself.

    Raises:
        FileError: something is missing, damaged, or does not belong together.
    """
    release = original(path)
    if release is not None:
        return release.read()
    adapter = peft_layout.read_settings(path)
    if adapter is None:
        return hf_layout.read(path)
    below = peft_layout.base_of(path, adapter)
    found = hf_layout.read(below)
    name, _ = hf_layout.family_of(found[0], below, family)
    return peft_layout.read(path, adapter, name, found)


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` looks like one of the forms that `read` reads."""
    marks = ("config.json", peft_layout.SETTINGS)
    return any((path / name).is_file() for name in marks) or original(path) is not None


def homes(path: Path) -> list[Path]:
    """Return the directories that may hold a checkpoint's tokenizer and notes, nearest first."""
    if not path.is_dir():
        return [path.parent]
    adapter = peft_layout.read_settings(path)
    if adapter is None or (path / "config.json").is_file():
        return [path]
    return [path, peft_layout.base_of(path, adapter)]


def tokenizer_home(path: Path) -> Path:
    """Return where the tokenizer of a checkpoint lies, or should lie."""
    directories = homes(path)
    return next(filter(tokenizer_files.is_there, directories), directories[0])


def read_notes(path: Path) -> dict[str, Any]:
    """Return what nlpkit wrote beside a checkpoint, or beside the base of bare adapters."""
    return next((notes for home in homes(path) if (notes := hf_layout.read_notes(home))), {})


def base(path: Path) -> Path | None:
    """Return what the adapters in a checkpoint belong to, or None if it holds none.

    A run that goes on must use this: the `latest` that it began from may be another by now.
    """
    adapter = peft_layout.read_settings(path)
    return None if adapter is None else peft_layout.base_of(path, adapter).resolve()


def base_hash(path: Path) -> str:
    """Return the hash by which new adapters will know the checkpoint that they belong to.

    Raises:
        UsageError: peft could not open it as a base.
    """
    if path.is_dir() and peft_layout.read_settings(path) is not None:
        what = "holds adapters itself; merge them first"
    elif original(path) is not None:
        what = "is not in transformers' layout; convert it first"
    else:
        return peft_layout.content_hash(path)
    raise UsageError(f"lora: {path} {what}: nlpkit convert {path} DIR")
