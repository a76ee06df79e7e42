"""Completion in shells: values of options and arguments, which declare them by `autocompletion`.

`verbs.complete` answers the script of a shell (`scripts`). What is not known is left to the shell,
which completes file names. `context` has what is on the line before the cursor.
"""

from typing import Any

Offers = list[tuple[str, str]]  # values and their descriptions


def list_recipes() -> Offers:
    """Return the packaged recipes."""
    from nlpkit.recipe import packaged

    found = []
    for name, path in packaged().items():
        with open(path, encoding="utf-8") as file:
            found.append((name, file.readline().strip("# \n")))
    return found


def list_printed() -> Offers:
    """Return what `nlpkit recipes` prints."""
    return [
        *list_recipes(),
        ("schema", "the JSON schema of recipes"),
        ("parts", "which objective trains which family, and every part"),
    ]


def list_settings(ctx: Any, incomplete: str) -> Offers:
    """Return the settings of the recipe on the line, or values of a setting."""
    from nlpkit.completion.settings import list_offers

    given = ctx.params
    return list(list_offers(given.get("recipe"), given.get("overrides") or [], incomplete))


def list_scores(incomplete: str) -> Offers:
    """Return the scores after those that are already typed."""
    from nlpkit.completion.scores import list_names

    return list(list_names(incomplete, tools=False))
