"""Keeps the behavior of runs that were started before a setting existed."""

from dataclasses import replace

from nlpkit.recipe import DEFAULT, Resolved
from nlpkit.recipe.places import dotted


def as_begun(resolved: Resolved, recorded: Resolved) -> Resolved:
    """Return `resolved` with the `EARLIER` values of settings that are newer than a run.

    `recorded` is the recipe in the run's directory. It has all settings that existed when the run
    was started. A value that the user sets is not changed.
    """
    objectives = []
    for number, section in enumerate(resolved.recipe.objective):
        keys = [("objective",), ("objective", number)]  # a single objective has no number
        values = {
            name: value
            for name, value in section.config.EARLIER.items()
            if all(
                each.origin.get(dotted((*key, name)), DEFAULT) == DEFAULT
                for each in (resolved, recorded)
                for key in keys
            )
        }
        config = section.config.model_copy(update=values)
        objectives.append(section.model_copy(update={"config": config}))
    begun = resolved.recipe.model_copy(update={"objective": tuple(objectives)})
    return replace(resolved, recipe=begun)
