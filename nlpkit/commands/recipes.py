"""List the packaged recipes, print one, or say which parts a recipe can name."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nlpkit import completion
from nlpkit.commands._options import Common, argument, option, shared
from nlpkit.errors import UsageError
from nlpkit.plural import number_of

Name = Annotated[
    str | None,
    argument(
        "NAME|FOLDER|schema|parts",
        "a recipe to print, a folder of recipes to list, the JSON schema of all, or the parts that "
        "a recipe can name",
        autocompletion=completion.list_printed,
    ),
]


@dataclass(frozen=True)
class Shown:
    """How much is printed."""

    whole: bool = option("--whole", "print NAME, or a file, with all that its bases say")


@shared()
def command(common: Common, shown: Shown, name: Name = None) -> None:
    """List the packaged recipes, print one, or say which parts a recipe can name.

    `nlpkit recipes cpm_ant > mine.yaml` makes a copy to change. A recipe that begins with
    `extends: cpm_ant` says only what differs; --whole prints such a recipe complete.

    `nlpkit recipes papers` lists the recipes with the sizes of the models of papers.

    `nlpkit recipes parts` prints, in Markdown, which objective trains which family, and a line
    about each attention kind, attention backend, tokenizer and score; then a table of the kinds.

    `nlpkit recipes schema` prints the JSON schema of recipes (draft 2020-12), for editors: put
    `# yaml-language-server: $schema=PATH` into the first line of a recipe.
    """
    import json

    if shown.whole:
        from nlpkit.recipe.extends import write_whole

        if name is None:
            raise UsageError("--whole: name a recipe: nlpkit recipes --whole mine.yaml")
        _print_recipe(name, write_whole(name), common)
    elif name == "schema":
        from nlpkit.recipe.schema import build_schema

        print(json.dumps(build_schema(), indent=2, ensure_ascii=False))
    elif name == "parts":
        from nlpkit.commands import _parts

        found = _parts.collect()
        common.print_result(_parts.format_text(found), **found)
    elif name is None:
        _print_list(common)
    elif name.removesuffix("/") in _list_folders():
        _print_list(common, name.removesuffix("/"))
    else:
        _print_recipe(name, _find(name).read_text(encoding="utf-8"), common)


def _list_folders() -> Counter[str]:
    """Return the folders of packaged recipes, with how many each has."""
    from nlpkit import recipe

    return Counter(name.rpartition("/")[0] for name in recipe.packaged() if "/" in name)


def _find(name: str) -> Path:
    from nlpkit import recipe, registry

    packaged = recipe.packaged()
    if name not in packaged:
        outside = [each for each in packaged if "/" not in each]
        inside = [each for each in packaged if each.endswith(f"/{name}")]
        near = registry.suggest(name, inside or packaged) or f"; known: {', '.join(outside)}"
        raise UsageError(f"no packaged recipe {name!r}{near}")
    return packaged[name]


def _print_recipe(name: str, text: str, common: Common) -> None:
    common.print_result(text.rstrip("\n"), name=name, text=text)


def _print_list(common: Common, folder: str = "") -> None:
    """Print the recipes of a folder; of all folders as JSON."""
    import json

    from nlpkit import recipe

    listed = [
        _describe(name, path.read_text(encoding="utf-8"))
        for name, path in recipe.packaged().items()
        if name.rpartition("/")[0] == folder or (common.json and not folder)
    ]
    if common.json:
        print(json.dumps(listed, ensure_ascii=False))
        return
    width = max((len(each["name"]) for each in listed), default=0)
    for each in listed:
        takes = f" (takes {each['takes']})" if each["takes"] else ""
        extends = f" (extends {each['extends']})" if each["extends"] else ""
        print(f"{each['name']:{width}}  {each['about']}{extends}{takes}")
    folders = {} if folder else _list_folders()
    for name, count in folders.items():
        print(f"{name + '/':{width}}  {number_of(count, 'recipes')}: nlpkit recipes {name}")


def _describe(name: str, text: str) -> dict[str, str]:
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    comments = [line for line in comments if line and not line.startswith("yaml-language-server")]
    takes = [line[6:].strip() for line in comments if line.startswith("takes:")]
    about = [line for line in comments if not line.startswith("takes:")]
    base = re.search(r"^extends: *([^#\s]+)", text, re.MULTILINE)
    return {
        "name": name,
        "about": "".join(about[:1]),
        "takes": "".join(takes[:1]),
        "extends": base[1] if base else "",
    }
