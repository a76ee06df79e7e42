"""Translated pages name their originals; the README in Chinese is as new as the English one."""

import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from tests._scripts import load_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def translations() -> ModuleType:
    return load_script("docs/translations.py")


def test_every_translated_page_names_an_original_that_is_there(translations: ModuleType) -> None:
    pages = translations.list_pages()
    assert len(pages) > 2
    assert [page for page in pages if not translations.read_comment(page)[0].is_file()] == []


# Pages that are translated whole.
WHOLE = ("course_10_cpm_ant", "course_12_scores", "cpm_ant", "first_hour", "tasks")


@pytest.mark.parametrize("name", WHOLE)
def test_commands_and_figures_are_those_of_the_original(
    name: str, translations: ModuleType
) -> None:
    page = ROOT / f"docs/zh/{name}.md"
    original, _ = translations.read_comment(page)
    texts = [path.read_text("utf-8") for path in (page, original)]
    for pattern in (r"^```.*?^```", r"^\$\$.*?^\$\$"):
        ours, theirs = (re.findall(pattern, text, re.MULTILINE | re.DOTALL) for text in texts)
        assert ours == theirs
    ours, theirs = ({*re.findall(r"\d+\.\d+|\d+ %", text)} for text in texts)
    assert ours == theirs


def test_readme_in_chinese_is_as_new_as_the_english_one(translations: ModuleType) -> None:
    outdated = translations.list_outdated()
    # Whoever changes an English page need not know Chinese: other pages are told, not refused.
    if outdated:
        warnings.warn(f"older than their originals: {', '.join(outdated)}", stacklevel=1)
    assert "README.zh.md" not in outdated


def test_page_is_outdated_until_it_is_accepted(
    translations: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translations, "ROOT", tmp_path)
    (tmp_path / "docs/zh").mkdir(parents=True)
    original, page = tmp_path / "README.md", tmp_path / "README.zh.md"
    original.write_text("one two\n", "utf-8")
    page.write_text("<!-- translates README.md sha256 000000000000 -->\n", "utf-8")
    assert translations.list_outdated() == ["README.zh.md"]
    translations.accept(page)
    original.write_text("one\ntwo\n", "utf-8")  # other lines, the same words
    assert translations.list_outdated() == []
    original.write_text("one three\n", "utf-8")
    assert translations.list_outdated() == ["README.zh.md"]
    page.write_text("no comment\n", "utf-8")
    with pytest.raises(ValueError, match=r"README.zh.md: no comment"):
        translations.list_outdated()
