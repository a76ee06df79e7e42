"""docs/reference is what `python docs/reference.py` writes, and has every part."""

import re
from pathlib import Path

import pytest
import yaml

from nlpkit import registry

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Pages that are written by hand; tests of their own compare them with the code.
BY_HAND = {"files.md", "glossary.md", "json.md", "messages.md"}


@pytest.fixture(autouse=True)
def _import_from_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


def test_pages_are_what_the_command_writes() -> None:
    import reference

    written = reference.write_pages()
    pages = {page.name for page in (DOCS / "reference").glob("*.md")}
    assert {*written} == pages - BY_HAND
    for name, page in written.items():
        same = (DOCS / "reference" / name).read_text("utf-8") == page
        assert same, f"{name}: run `python docs/reference.py`"


def test_every_family_and_verb_has_its_section() -> None:
    models = (DOCS / "reference/keys_models.md").read_text("utf-8")
    assert all(f"\n## {name}\n" in models for name in registry.names("models"))
    commands = (DOCS / "reference/commands.md").read_text("utf-8")
    assert all(f"\n## nlpkit {verb}\n" in commands for verb in registry.names("commands"))


def _examples_in(page: str) -> dict[tuple[str, str], str]:
    """Return the example of each (section, key) of a page, "" for a key without one."""
    found = {}
    for part in (DOCS / "reference" / page).read_text("utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        for key, row in re.findall(r"^\| `(\w+)` (.*) \|$", text, re.M):
            found[title, key] = row.rpartition(" | ")[2] if "| example |" in text else ""
    return found


def test_every_key_that_a_recipe_sets_has_an_example_with_its_recipe() -> None:
    import reference_examples

    sections = _examples_in("keys.md")
    checked = 0
    set_somewhere = reference_examples.Examples(DOCS.parent / "recipes").keys()
    for section, key in sorted(set_somewhere):
        folder, _, part = section.rpartition("/")
        if folder:  # the same key is also found in the section that names the part
            shown = _examples_in(f"keys_{folder.rpartition('/')[2]}.md").get((part, key))
        else:
            shown = sections.get((section, key))
        if shown is not None:
            checked += 1
            assert re.search(r"` in [\w/.]+$", shown), (section, key)
    assert checked > 250


def test_example_is_the_value_in_the_first_recipe_that_sets_the_key() -> None:
    recipe = yaml.safe_load((DOCS.parent / "recipes/bert.yaml").read_text("utf-8"))
    models = (DOCS / "reference/keys_models.md").read_text("utf-8")
    bert = models.partition("\n## bert\n")[2].partition("\n## ")[0]
    (row,) = re.findall(r"^\| `num_layers` .*$", bert, re.M)
    assert row.endswith(f"| `{recipe['model']['num_layers']}` in bert |")
