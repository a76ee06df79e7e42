"""The lessons of docs/course: commands run, what they print is so, pictures are drawn."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests import _server

ROOT = Path(__file__).resolve().parents[2]
COURSE = ROOT / "docs" / "course"
LESSONS = sorted(COURSE.glob("[01]*.md"))
BLOCK = re.compile(r"(<!-- slow -->\n)?```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _name(path: Path) -> str:
    return path.stem


def _parse(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a block with the lines that the page shows below each."""
    found: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line != "…":
            found[-1][1].append(line)
    return found


def _run(lesson: Path, folder: Path, cache: Path) -> list[tuple[str, list[str], str]]:
    """Run the commands of a lesson; return each with the lines shown and what it printed."""
    settings = {"OMP_NUM_THREADS": "1", "NLPKIT_CACHE": str(cache)}
    results = []
    for _, block in BLOCK.findall(lesson.read_text(encoding="utf-8")):
        for command, shown in _parse(block):
            done = subprocess.run(
                ["bash", "-c", f"{_server.function()}set -o pipefail; {command}"], cwd=folder,
                check=False, capture_output=True, text=True, env=os.environ | settings,
            )  # fmt: skip
            assert done.returncode == 0, (command, done.stderr)
            assert "Traceback" not in done.stderr, command
            results.append((command, shown, done.stdout))
    return results


def _is_slow(lesson: Path) -> bool:
    return any(slow for slow, _ in BLOCK.findall(lesson.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizers and tokens of the recipes, which several lessons use."""
    return tmp_path_factory.mktemp("cache")


QUICK = [lesson for lesson in LESSONS if not _is_slow(lesson)]
LONG = [lesson for lesson in LESSONS if _is_slow(lesson)]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("lesson", QUICK, ids=_name)
def test_quick_lesson_prints_what_its_page_shows(lesson: Path, tmp_path: Path, cache: Path) -> None:
    for command, shown, printed in _run(lesson, tmp_path, cache):
        lines = [line.rstrip() for line in printed.splitlines()]
        assert [line for line in shown if line.rstrip() not in lines] == [], (command, printed)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LONG, ids=_name)
def test_long_lesson_runs_and_prints_the_figures_that_its_page_names(
    lesson: Path, tmp_path: Path, cache: Path
) -> None:
    # Figures of a training differ by machine; what they are called does not.
    for command, shown, printed in _run(lesson, tmp_path, cache):
        names = {line.split()[0] for line in printed.splitlines() if line.strip()}
        figures = [line.split()[0] for line in shown if re.match(r"[a-z_:=.-]+\s{2,}\S", line)]
        assert [name for name in figures if name not in names] == [], (command, printed)


@pytest.mark.parametrize("lesson", LESSONS, ids=_name)
def test_lesson_has_its_parts(lesson: Path) -> None:
    text = lesson.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        "Run it", "What to look at", "Often told wrongly", "Questions", "Read on",
    ]  # fmt: skip
    assert text.count("\n$$\n") % 2 == 0
    assert "\n$$\n" in text
    assert len(re.findall(r"^\*\*[12]\. .*\?\*\*$", text, re.MULTILINE)) == 2
    assert BLOCK.search(text)
    (picture,) = re.findall(r"!\[.+\]\(pictures/(.*)\)", text)
    assert picture == f"{lesson.stem}.svg"
    assert (COURSE / "pictures" / picture).stat().st_size < 60_000
    assert f"`python docs/pictures/course.py {lesson.stem}`" in text


def test_lessons_are_those_of_the_index_in_this_order() -> None:
    index = (COURSE / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\d\d_\w+\.md)\)", index) == [lesson.name for lesson in LESSONS]
    for lesson, after in pairwise(LESSONS):
        assert lesson.read_text(encoding="utf-8").endswith(f"]({after.name})\n")


@pytest.mark.parametrize("page", [COURSE / "index.md", *LESSONS], ids=_name)
def test_links_of_the_page_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.slow
def test_pictures_are_drawn_by_the_command(tmp_path: Path) -> None:
    # Those of lessons 2 and 4 need the runs of these lessons.
    script = ROOT / "docs" / "pictures" / "course.py"
    done = subprocess.run(
        [sys.executable, str(script), "--to", str(tmp_path)], cwd=tmp_path, check=False,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    needs_runs = {"02_recurrent.svg", "04_attention.svg"}
    assert drawn == {path.name for path in (COURSE / "pictures").glob("*.svg")} - needs_runs
    assert done.stderr.count("not drawn") == 2
