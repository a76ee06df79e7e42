"""The site builds offline, a dead link or anchor fails, and pages are short."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    # With --quiet, warnings would not count.
    words = ("build", "--strict", "-f", str(config), "-d", str(site))
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *words], capture_output=True, text=True, check=False
    )


def test_site_builds_without_a_dead_link_and_loads_nothing_from_the_net(tmp_path: Path) -> None:
    done = _build(ROOT / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text("utf-8")
        for loaded in ('src="http', "fonts.googleapis", 'rel="stylesheet" href="http'):
            assert loaded not in text, page
    assert (tmp_path / "site/pictures/iframe_worker.js").exists()
    # From disk a page cannot fetch the index, so a script holds it.
    script = (tmp_path / "site/search/search_index.js").read_text("utf-8")
    index = json.loads(script[script.index("{") :])
    # Between words of Chinese is a space of no width, at which the search cuts.
    assert any("\u200b掩码\u200b" in each["text"] for each in index["docs"])
    assert re.split(index["config"]["separator"], "注意力\u200b掩码") == ["注意力", "掩码"]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("[x](none.md)", "none.md"),
        ("[x](index.md#none)", "#none"),
        ("[x](../none.yaml)", "no file ../none.yaml"),
    ],
)
def test_dead_link_fails_and_is_named(link: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# A page\n\n{link}\n", "utf-8")
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("nav:\n  - Start")[0]
    hooks = ROOT / "docs/pictures/site.py"
    text = text.replace("docs/pictures/site.py", str(hooks))
    (tmp_path / "mkdocs.yml").write_text(text, "utf-8")
    done = _build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert said in done.stdout + done.stderr


def test_pages_and_their_lines_are_short() -> None:
    docs, too_long = ROOT / "docs", []
    for page in sorted(docs.rglob("*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        lines = text.splitlines()
        # A row of a table is one line, however long; so is what a command prints.
        long = any(len(line) > 120 and not line.startswith("|") for line in lines)
        made = page.parent.name in ("reference", "gallery")  # by commands
        if (long or len(lines) > 200) and not made:
            too_long.append(page.relative_to(docs).as_posix())
    assert not too_long, "shorten these pages or their lines"


def test_pages_of_models_have_sixty_lines() -> None:
    nav = (
        (ROOT / "mkdocs.yml")
        .read_text("utf-8")
        .partition("- Models:")[2]
        .partition("- Gallery:")[0]
    )
    pages = re.findall(r": (\S+\.md)$", nav, re.M)
    assert len(pages) > 20
    long = {page: (ROOT / "docs" / page).read_text("utf-8").count("\n") for page in pages}
    assert {page: lines for page, lines in long.items() if lines > 60} == {}, "see docs/lab"
