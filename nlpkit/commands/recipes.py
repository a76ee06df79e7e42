"""List the packaged recipes, print one, or say which parts a recipe can name."""

import json
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from nlpkit import completion
from nlpkit.commands._options import Common, argument, option, shared
from nlpkit.errors import UsageError
from nlpkit.plural import number_of

_WIDEST_NAME = 20  # in the list; a longer one shifts its own line only
Name = Annotated[
    str | None,
    argument(
        "NAME|FOLDER|schema|parts",
        "a recipe (or a file) to print, a folder of recipes to list, the JSON schema of all, or "
        "the parts that a recipe can name",
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
        from nlpkit.recipe import find

        _print_recipe(name, find(name).read_text("utf-8", "replace"), common)


def _list_folders() -> Counter[str]:
    """Return the folders of packaged recipes, with how many each has."""
    from nlpkit import recipe

    return Counter(name.rpartition("/")[0] for name in recipe.packaged() if "/" in name)


def _print_recipe(name: str, text: str, common: Common) -> None:
    common.print_result(text.rstrip("\n"), name=name, text=text)


def _print_list(common: Common, folder: str = "") -> None:
    """Print the recipes of a folder, or in groups; of all folders as JSON."""
    from nlpkit import recipe

    texts = {name: path.read_text(encoding="utf-8") for name, path in recipe.packaged().items()}
    if common.json:
        named = [name for name in texts if not folder or name.rpartition("/")[0] == folder]
        print(json.dumps([_describe(name, texts[name]) for name in named], ensure_ascii=False))
        return
    inside = [name for name in texts if name.rpartition("/")[0] == folder]
    if folder:
        _print_rows(inside, texts)
        return
    tuned = [name for name in inside if _is_tuned(name, texts)]
    print("Pretraining: nlpkit pretrain NAME")
    _print_rows([name for name in inside if name not in tuned], texts)
    if tuned:
        print("\nTuning, from the run of another recipe: nlpkit finetune NAME")
        _print_rows(tuned, texts)
    print()
    for each, count in _list_folders().items():
        print(f"{each.capitalize()}, {number_of(count, 'recipes')}: nlpkit recipes {each}")
    print("One recipe, with its time and memory: nlpkit recipes NAME")


def _is_tuned(name: str, texts: Mapping[str, str]) -> bool:
    """Return whether a recipe, or one that it extends, begins with a checkpoint."""
    if re.search(r"^init_from:", texts.get(name, ""), re.MULTILINE):
        return True
    base = _find_base(texts.get(name, ""))
    return base != name and base in texts and _is_tuned(base, texts)


def _print_rows(names: Sequence[str], texts: Mapping[str, str]) -> None:
    """Print a line for each recipe, which is as long as the terminal is wide."""
    width = min(max(map(len, names), default=0), _WIDEST_NAME)
    for name in names:
        start = f"  {name:{width}}  "
        about = _describe(name, texts[name])["about"]
        # "GPT-2, small: next-token prediction": the name says the rest.
        about = about.partition(", small: ")[2] or about
        rest = max(shutil.get_terminal_size().columns - len(start), 30)
        print(f"{start}{textwrap.shorten(about, rest, placeholder=' …')}".rstrip())


def _find_base(text: str) -> str:
    found = re.search(r"^extends: *([^#\s]+)", text, re.MULTILINE)
    return found[1] if found else ""


def _describe(name: str, text: str) -> dict[str, str]:
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    comments = [line for line in comments if line and not line.startswith("yaml-language-server")]
    takes = [line[6:].strip() for line in comments if line.startswith("takes:")]
    about = [line for line in comments if not line.startswith("takes:")]
    return {
        "name": name,
        "about": "".join(about[:1]),
        "takes": "".join(takes[:1]),
        "extends": _find_base(text),
    }
