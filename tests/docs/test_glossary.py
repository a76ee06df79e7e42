"""docs/reference/glossary.md: sorted, each term is used on the page that it names, with Chinese."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs/reference"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| (.+) \| \[[^]]+\]\(([^)]+)\) \|$", re.M)
ROWS = ROW.findall((FOLDER / "glossary.md").read_text("utf-8"))


def test_terms_are_sorted_and_every_line_of_the_table_is_one() -> None:
    lines = (FOLDER / "glossary.md").read_text("utf-8").splitlines()
    assert len(ROWS) == sum(line.startswith("| ") for line in lines) - 1  # the head
    assert len(lines) <= 200
    terms = [term.lower() for term, *_ in ROWS]
    assert terms == sorted({*terms})


@pytest.mark.parametrize(("term", "chinese", "meaning", "page"), ROWS, ids=lambda value: value[:20])
def test_page_uses_the_term(term: str, chinese: str, meaning: str, page: str) -> None:
    text = " ".join((FOLDER / page).resolve().read_text("utf-8").lower().split())
    # `perplexity`, `minimal pairs`, `held-out`
    words = r"[ -]".join(map(re.escape, re.split("[ -]", term.lower())))
    assert re.search(rf"(?<!\w){words}", text), (term, page)
    assert chinese.isascii() == (chinese == term)  # a name that Chinese keeps
    assert meaning.endswith((".", "…", "?"))
