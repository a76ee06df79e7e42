"""Keeps the behavior of runs that were started before a setting existed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nlpkit.recipe import DEFAULT, Resolved
from nlpkit.recipe.places import dotted


def as_begun(resolved: Resolved, recorded: Resolved) -> Resolved:
    """Return `resolved` with the `EARLIER` values of settings that are newer than a run.

    `recorded` is the recipe in the run's directory. It has all settings that existed when the run
    was started. A value that the user sets is not changed.
    """
    both = resolved, recorded
    objectives = []
    for number, section in enumerate(resolved.recipe.objective):
        places = [("objective",), ("objective", number)]  # a single objective has no number
        config = _begun(section.config, places, both)
        objectives.append(section.model_copy(update={"config": config}))
    begun = resolved.recipe.model_copy(update={"objective": tuple(objectives)})
    return replace(resolved, recipe=begun)


def _begun(config: Any, places: Sequence[tuple[Any, ...]], both: Sequence[Resolved]) -> Any:
    """Return an objective's settings, which may be at `places`, and those of its members."""
    values = {
        name: value
        for name, value in config.EARLIER.items()
        if all(
            each.origin.get(dotted((*place, name)), DEFAULT) == DEFAULT
            for each in both
            for place in places
        )
    }
    if members := getattr(config, "of", ()):  # of a mixture
        values["of"] = type(members)(
            member.model_copy(
                update={"config": _begun(member.config, [(*p, "of", number) for p in places], both)}
            )
            for number, member in enumerate(members)
        )
    return config.model_copy(update=values)
