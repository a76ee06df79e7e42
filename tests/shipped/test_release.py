"""What a release says of itself is one thing in all files."""

import tomllib
from pathlib import Path

import yaml

from nlpkit import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_version_authors_and_licence_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert project["version"] == citation["version"] == __version__
    assert project["license"] == citation["license"]
    assert project["authors"] == citation["authors"]
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {__version__}" in changes


def test_files_that_the_page_on_security_names_are_there() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    named = [word for word in text.split("`") if word.startswith(("nlpkit/", "tests/"))]
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_templates_of_issues_are_forms() -> None:
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert forms
    for path in forms:
        form = yaml.safe_load(path.read_text("utf-8"))
        assert form["name"]
        assert form["description"]
        assert all(each["attributes"]["label"] for each in form["body"]), path
