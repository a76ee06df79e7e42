"""Finds the family that reads a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nlpkit import registry
from nlpkit.checkpoints.hf_layout import OWN_TYPE
from nlpkit.errors import FileError, UsageError
from nlpkit.models import families
from nlpkit.models.contract import Family


def model_type_of(settings: Mapping[str, Any]) -> Any:
    """Return transformers' name of the family, from `model_type` in `config.json`."""
    model_type = settings.get("model_type")
    return model_type.removeprefix(OWN_TYPE) if isinstance(model_type, str) else model_type


def family_of(
    settings: Mapping[str, Any], directory: Path, family: str | None = None
) -> tuple[str, Family]:
    """Return the family that reads a checkpoint, and its light module.

    The family is the argument `family` if it is given, then the family in the checkpoint's notes,
    then the shipped family with the same `model_type`. A family that is not shipped is imported
    only if `registry.check_named_by` allows it.

    Raises:
        FileError: the family does not exist, or cannot be imported.
    """
    if family is not None:
        return family, families.load(family)
    file, notes = directory / "config.json", settings.get("nlpkit")
    named = notes.get("family") if isinstance(notes, dict) else None
    if isinstance(named, str) and "." in named:
        how = f"--family {named}, or the section model of a recipe"
        remedy = f"run nlpkit where it lies, or, if you trust it, name it: {how}"
        registry.check_named_by(file, named, remedy)
        try:
            families.load_model(named)
            return named, families.load(named)
        except UsageError as error:
            raise FileError(f"{file}: made by family {named}: {error}") from error
    known = {name: families.load(name) for name in registry.names("models")}
    model_type = model_type_of(settings)
    fitting = [name for name, light in known.items() if model_type == light.MODEL_TYPE]
    if not fitting:
        types = ", ".join(sorted(light.MODEL_TYPE for light in known.values()))
        raise FileError(
            f"{file}: model_type {model_type!r} is none of {types}; a family of your own: "
            "--family mylab.NAME, or in a recipe model: {family: mylab.NAME}"
        )
    if isinstance(named, str) and named not in fitting:
        raise FileError(
            f"{file}: made by family {named!r}, and model_type {model_type} is of {fitting[0]}"
        )
    name = named if isinstance(named, str) else fitting[0]
    return name, known[name]
