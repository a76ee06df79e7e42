"""Lists the parts for `nlpkit recipes parts`, and which objective trains which family."""

from nlpkit import registry
from nlpkit.commands import _kinds

# The name of a list, also with --json, and the folder of its parts.
_LISTS = {
    "attention_kinds": "attention/kinds",
    "attention_backends": "attention/backends",
    "tokenizers": "tokenizers",
    "scores": "score/metrics",
}


def trained() -> dict[str, list[str]]:
    """Return the families that each objective trains, with their default settings.

    A mixture is not in the table, because its families depend on its members.
    """
    from nlpkit.recipe.fit import families_for

    return {
        name: families_for(registry.load("objectives", name).Objective)
        for name in registry.names("objectives")
        if name != "mixture"
    }


def lists() -> dict[str, dict[str, str]]:
    """Return the parts of each list with the first lines of their docstrings."""
    return {
        title: {name: registry.about(folder, name) for name in registry.names(folder)}
        for title, folder in _LISTS.items()
    }


def table(objectives: dict[str, list[str]]) -> str:
    """Return a table of objectives and families in Markdown."""
    families = registry.names("models")
    rows = [["objective", *(f"`{name}`" for name in families)], ["---"] * (1 + len(families))]
    for objective, suited in objectives.items():
        rows.append([f"`{objective}`", *("yes" if name in suited else "" for name in families)])
    head, line, *body = ("| " + " | ".join(cells) + " |" for cells in rows)
    return "\n".join([head, line.replace(" ", ""), *body])


def text(objectives: dict[str, list[str]]) -> str:
    """Return the table, the lists below it, and the table of attention kinds, in Markdown."""
    blocks = [table(objectives)]
    for title, parts in lists().items():
        rows = [f"- `{name}`: {about}" for name, about in parts.items()]
        blocks.append("\n".join([f"{title.capitalize().replace('_', ' ')}:", "", *rows]))
    blocks.append("Attention, kind by kind:")
    blocks.append(_kinds.table())
    return "\n\n".join(blocks)
