"""Finds a model family by its name: a folder in `models/`, or the package of a dotted name.

Free of torch until `load_model` is called.
"""

from typing import cast

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.errors import UsageError
from nlpkit.models import config
from nlpkit.models.contract import Family, FamilyModel


def load(name: str) -> Family:
    """Return the light module of a family; raise `UsageError` if it is none."""
    module = registry.load("models", name)
    found = vars(module).get("Config")
    if not (isinstance(found, type) and issubclass(found, FrozenConfig)):
        raise UsageError(f"the module {name!r} has no `class Config(FrozenConfig)`")
    if not isinstance(vars(module).get("MODEL_TYPE"), str):
        raise UsageError(f"the module {name!r} has no MODEL_TYPE: a name for its config.json")
    return cast(Family, module)


def load_model(name: str) -> FamilyModel:
    """Return `model.py` of a family; raise `UsageError` that says what is missing in it."""
    package = name if "." in name else f"nlpkit.models.{name}"
    module = registry.load("models", f"{package}.model")
    wanted = {*FamilyModel.__annotations__, "flops"}
    if missing := sorted(wanted - vars(module).keys()):
        raise UsageError(
            f"the module '{package}.model' has no {', '.join(missing)}; "
            "nlpkit/models/contract.py says what a family offers"
        )
    return cast(FamilyModel, module)


def vocabulary(name: str) -> tuple[str, ...]:
    """Return the names of a family's parameters whose first dimension is the vocabulary."""
    return config.vocabulary(load(name))


def default_objective(name: str) -> str | None:
    """Return the objective of a family's checkpoints that name none, if it has such a one."""
    found: str | None = vars(load(name)).get("DEFAULT_OBJECTIVE")
    return found
