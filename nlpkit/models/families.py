"""Loads a model family by its name: a folder in `models/`, or the package of a dotted name.

Only `load_model` imports torch.
"""

from typing import Protocol, cast

from nlpkit import registry
from nlpkit.config import part_config
from nlpkit.contracts import model
from nlpkit.contracts.family_model import FamilyModel
from nlpkit.models.config import ModelConfig


class Family(model.Family, Protocol):
    """The contract with the base of every family's settings."""

    Config: type[ModelConfig]


def load(name: str) -> Family:
    """Return the module of a family without torch; raise `UsageError` if it is not a family."""
    part_config("models", name)
    return cast(Family, registry.load("models", name))


def load_model(name: str) -> FamilyModel:
    """Return `model.py` of a family; raise `UsageError` with the member that it lacks."""
    load(name)
    package = name if "." in name else f"nlpkit.models.{name}"
    return cast(FamilyModel, registry.load("family_models", f"{package}.model"))
