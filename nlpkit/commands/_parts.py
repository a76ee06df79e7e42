"""Lists the parts for `nlpkit recipes parts`, and which objective trains which family."""

from collections.abc import Iterable
from typing import Any

from nlpkit import registry
from nlpkit.commands import _kinds

# The name of a list, also with --json, and the folder of its parts.
_LISTS = {
    "attention_kinds": "attention/kinds",
    "attention_backends": "attention/backends",
    "tokenizers": "tokenizers",
    "optimizers": "train/optimizers",
    "schedules": "train/schedules",
    "scores": "score/metrics",
}

MARKED = (
    "(yes): with another kind of attention than the family's own, `attention: {kind: …}`, "
    "or another setting"
)


def list_families() -> dict[str, list[str]]:
    """Return the families that each objective trains, with their default settings.

    A mixture is not in the table, because its families depend on its members.
    """
    from nlpkit.recipe.alternatives import families_for

    return {
        name: families_for(registry.load("objectives", name).Objective)
        for name in registry.names("objectives")
        if name != "mixture"
    }


def list_other_settings() -> dict[str, dict[str, list[str]]]:
    """Return the families that each objective trains only with one other setting.

    The values are these settings, by family; objectives without such a family are left out.
    """
    from nlpkit.recipe.alternatives import families_with_setting

    found = {
        name: families_with_setting(registry.load("objectives", name).Objective)
        for name in registry.names("objectives")
        if name != "mixture"
    }
    return {name: families for name, families in found.items() if families}


def list_parts() -> dict[str, dict[str, str]]:
    """Return the parts of each list with the first lines of their docstrings."""
    return {
        title: {name: registry.about(folder, name) for name in registry.names(folder)}
        for title, folder in _LISTS.items()
    }


def format_table(objectives: dict[str, list[str]], other: dict[str, dict[str, list[str]]]) -> str:
    """Return a table of objectives and families in Markdown, and what its mark means.

    `objectives` are the families of each, `other` those that need another setting.
    """
    families = registry.names("models")
    rows = [["objective", *(f"`{name}`" for name in families)], ["---"] * (1 + len(families))]
    for objective, suited in objectives.items():
        marks = dict.fromkeys(other.get(objective, ()), "(yes)") | dict.fromkeys(suited, "yes")
        rows.append([f"`{objective}`", *(marks.get(name, "") for name in families)])
    head, line, *body = ("| " + " | ".join(cells) + " |" for cells in rows)
    return "\n".join([head, line.replace(" ", ""), *body, "", _format_note(other)])


def _format_note(other: dict[str, dict[str, list[str]]]) -> str:
    """Return which kinds of attention or settings the pairs with a mark need."""
    alike: dict[tuple[str, ...], dict[str, list[str]]] = {}  # settings -> families by objective
    for objective, families in other.items():
        for family, settings in families.items():
            kinds = (setting.removeprefix("attention.kind=") for setting in settings)
            alike.setdefault(tuple(kinds), {}).setdefault(objective, []).append(family)
    parts = []
    for group, pairs in alike.items():
        trained_by = dict.fromkeys(name for names in pairs.values() for name in names)
        parts.append(f"{_join(pairs)} × {_join(trained_by)}: {_join(group)}")
    return f"{MARKED}: {'; '.join(parts)}."


def _join(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def collect() -> dict[str, Any]:
    """Return what `text` shows, by the names of `--json`."""
    return {
        "objectives": list_families(),
        "with_other_setting": list_other_settings(),
        "kinds": _kinds.describe_kinds(),
        **list_parts(),
    }


def format_text(found: dict[str, Any]) -> str:
    """Return the table, the lists below it, and the table of attention kinds, in Markdown."""
    blocks = [format_table(found["objectives"], found["with_other_setting"])]
    for title in _LISTS:
        parts = found[title]
        rows = [f"- `{name}`: {about}" for name, about in parts.items()]
        blocks.append("\n".join([f"{title.capitalize().replace('_', ' ')}:", "", *rows]))
    blocks.append("Attention, kind by kind:")
    blocks.append(_kinds.format_table())
    return "\n\n".join(blocks)
