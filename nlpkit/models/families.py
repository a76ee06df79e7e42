"""Loads a model family by its name: a folder in `models/`, or the package of a dotted name.

Only `load_model` imports torch.
"""

from typing import cast

from nlpkit import registry
from nlpkit.errors import UsageError
from nlpkit.models import config
from nlpkit.models.contract import Family, FamilyModel
from nlpkit.part import part_config


def load(name: str) -> Family:
    """Return the module of a family without torch; raise `UsageError` if it is not a family."""
    module = registry.load("models", name)
    part_config("models", name)
    if not isinstance(vars(module).get("MODEL_TYPE"), str):
        raise UsageError(f"the module {name!r} has no MODEL_TYPE: a name for its config.json")
    return cast(Family, module)


def load_model(name: str) -> FamilyModel:
    """Return `model.py` of a family; raise `UsageError` with the names that it lacks."""
    package = name if "." in name else f"nlpkit.models.{name}"
    module = registry.load("models", f"{package}.model")
    if missing := sorted(FamilyModel.__annotations__.keys() - vars(module).keys()):
        raise UsageError(
            f"the module '{package}.model' has no {', '.join(missing)}; "
            "see nlpkit/models/contract.py"
        )
    return cast(FamilyModel, module)


def vocabulary(name: str) -> tuple[str, ...]:
    """Return the names of a family's parameters whose first dimension is the vocabulary."""
    return config.vocabulary(load(name))


def default_objective(name: str) -> str | None:
    """Return the default objective of a family's checkpoints, or None."""
    objective: str | None = vars(load(name)).get("DEFAULT_OBJECTIVE")
    return objective
