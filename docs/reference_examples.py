"""Examples of recipe keys: the value in the first packaged recipe that sets a key.

Recipes are read as they are written, without their bases: top-level ones first, then papers/.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

# Of these sections a part has its own keys: its folder, and the key that names it.
PARTS = {
    "model": ("models", "family"),
    "objective": ("objectives", "name"),
    "attention": ("attention/kinds", "kind"),
    "tokenizer": ("tokenizers", "kind"),
    "train.optimizer": ("train/optimizers", "name"),
    "train.schedule": ("train/schedules", "name"),
}
# The same, with the mappings inside a section.
_ALL_PARTS = PARTS | {
    "objective.of, one member of a mixture": ("objectives", "name"),
    "attention.layers, one layer": ("attention/kinds", "kind"),
    "tokenizer.source, tokenizer.target": ("tokenizers", "kind"),
}
# Lists of mappings inside a section, and the section that describes one of them.
_INSIDE = {
    "data.train": "data.train, one source",
    "data.valid": "data.train, one source",
    "objective.segments": "objective.segments, one segment",
    "objective.of": "objective.of, one member of a mixture",
    "attention.layers": "attention.layers, one layer",
    "tokenizer.source": "tokenizer.source, tokenizer.target",
    "tokenizer.target": "tokenizer.source, tokenizer.target",
}
_LONGEST = 60  # characters of a value


class Examples:
    """The first value of each key in the packaged recipes below a directory."""

    def __init__(self, recipes: Path):
        self._found: dict[tuple[str, str], tuple[Any, str]] = {}
        files = [*sorted(recipes.glob("*.yaml")), *sorted(recipes.glob("*/*.yaml"))]
        for file in files:
            recipe = yaml.safe_load(file.read_text("utf-8"))
            name = file.relative_to(recipes).with_suffix("").as_posix()
            family = (recipe.get("model") or {}).get("family", "")
            for section, key, value in _walk(recipe, family):
                self._found.setdefault((section, key), (value, name))

    def keys(self) -> set[tuple[str, str]]:
        """Return (section or part, key) of all that some recipe sets."""
        return {*self._found}

    def of(self, sections: tuple[str, ...], key: str) -> str:
        """Return `value` in RECIPE for a key of the first of these sections that has it, or ""."""
        for section in sections:
            if (section, key) in self._found:
                value, recipe = self._found[section, key]
                return f"`{_write(value)}` in {recipe}"
        return ""


def _walk(recipe: dict[str, Any], family: str) -> Iterator[tuple[str, str, Any]]:
    for key, value in recipe.items():
        yield "The recipe", key, value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from _walk_section(key, each, family)


def _walk_section(section: str, given: dict[str, Any], family: str) -> Iterator[Any]:
    """Yield (section, key, value), and for the keys of a part also (FOLDER/NAME, key, value)."""
    folder, chooser = _ALL_PARTS.get(section, ("", ""))
    # The model of a checkpoint has its family; attention without a kind has that of the family.
    name = given.get(chooser, family if section == "model" else "")
    for key, value in given.items():
        yield section, key, value
        if name:
            yield f"{folder}/{name}", key, value
        inner = f"{section}.{key}"
        if inner in _ALL_PARTS and isinstance(value, str):
            yield inner, _ALL_PARTS[inner][1], value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from _walk_section(_INSIDE.get(inner, inner), each, family)


def _write(value: Any) -> str:
    """Return a value as YAML on one line; a long one ends in an ellipsis."""
    if isinstance(value, str):
        text = value
    else:
        text = yaml.safe_dump(
            value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False
        )
    text = " ".join(text.removesuffix("...\n").split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
