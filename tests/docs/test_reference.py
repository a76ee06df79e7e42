"""docs/reference is what `python docs/reference.py` writes, and has every part."""

import importlib.util
from pathlib import Path

from nlpkit import registry

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_pages_are_what_the_command_writes() -> None:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    written = reference.write_pages()
    assert {*written} == {page.name for page in (DOCS / "reference").glob("*.md")}
    for name, page in written.items():
        same = (DOCS / "reference" / name).read_text("utf-8") == page
        assert same, f"{name}: run `python docs/reference.py`"


def test_every_family_and_verb_has_its_section() -> None:
    models = (DOCS / "reference/keys_models.md").read_text("utf-8")
    assert all(f"\n## {name}\n" in models for name in registry.names("models"))
    commands = (DOCS / "reference/commands.md").read_text("utf-8")
    assert all(f"\n## nlpkit {verb}\n" in commands for verb in registry.names("commands"))
