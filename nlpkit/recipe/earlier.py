"""Keeps a run as it was begun: before a setting existed, or with another rule of `model.size`."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from nlpkit.recipe import DECIDED, DEFAULT, Recipe, Resolved, autosize
from nlpkit.recipe.places import dotted
from nlpkit.recipe.sections import Model


def as_begun(
    resolved: Resolved, recorded: Resolved, decided: Collection[str] | None = None
) -> Resolved:
    """Return `resolved` with the `EARLIER` values of settings that are newer than a run.

    `recorded` is the recipe in the run's directory. It has all settings that existed when the run
    was started. A value that the user sets is not changed. What `model.size` decides is what it was
    then, if the size is the same and decided it then, too: `decided`; None in runs of before.
    """
    resolved = _keep_autosized(resolved, recorded, decided)
    both = resolved, recorded
    objectives = []
    for number, section in enumerate(resolved.recipe.objective):
        places = [("objective",), ("objective", number)]  # a single objective has no number
        config = _set_earlier(section.config, places, both)
        objectives.append(section.model_copy(update={"config": config}))
    begun = resolved.recipe.model_copy(update={"objective": tuple(objectives)})
    return replace(resolved, recipe=begun)


def _keep_autosized(
    resolved: Resolved, recorded: Resolved, decided: Collection[str] | None
) -> Resolved:
    """Return `resolved` with what `model.size` or `model.depth` decided when a run was started."""
    now, then = resolved.dump(), recorded.dump()
    targets = Model.targets(now["model"])
    if not targets or now["model"][targets[0]] != (then["model"] or {}).get(targets[0]):
        return resolved
    for group in autosize.GROUPS:
        origins = {name: resolved.origin.get(name, DEFAULT) for name in map(dotted, group)}
        by_user = decided is not None and not {*origins} & {*decided}
        if not by_user and all(
            each == DEFAULT or each.startswith(DECIDED) for each in origins.values()
        ):
            for section, setting in group:
                if setting in then[section]:
                    now[section][setting] = then[section][setting]
    return replace(resolved, recipe=Recipe.model_validate(now))


def _set_earlier(config: Any, places: Sequence[tuple[Any, ...]], both: Sequence[Resolved]) -> Any:
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
    if members := config.setting("of", ()):  # of a mixture
        values["of"] = type(members)(
            member.model_copy(
                update={
                    "config": _set_earlier(
                        member.config, [(*p, "of", number) for p in places], both
                    )
                }
            )
            for number, member in enumerate(members)
        )
    return config.model_copy(update=values)
