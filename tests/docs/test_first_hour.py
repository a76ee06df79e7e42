"""docs/start: the files of the first hour are right, and its commands run in an empty folder."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nlpkit import recipe
from tests import _server

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "docs" / "start"
PAGE = (START / "first_hour.md").read_text(encoding="utf-8")
INSTALL = (START / "install.md").read_text(encoding="utf-8")
# A file of the page: the name of the sentence before a block.
FILES = dict(re.findall(r"`([\w.]+)`[^`]*:\n\n```(?:python|yaml)\n(.*?)^```$", PAGE, re.S | re.M))
# What `nlpkit eval` and `nlpkit plan` print: a name, two spaces, a figure.
FIGURE = re.compile(r"([a-z_.:=]+)\s{2,}\S")


def _commands(text: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a text with the lines that it shows below each."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.S | re.M):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def _write(folder: Path) -> None:
    assert sorted(FILES) == ["book.py", "book.yaml", "label.py", "reviews.yaml"]
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


def _run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    here = {"OMP_NUM_THREADS": "1", "NLPKIT_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    shell = f'{_server.function()}python() {{ {sys.executable} "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", shell], cwd=folder, env=os.environ | here,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_book_is_made_and_the_recipes_are_right(tmp_path: Path) -> None:
    _write(tmp_path)
    for command, shown in _commands(PAGE.partition("## 2.")[0]):
        assert _run(command, tmp_path).stdout.splitlines() == shown
    assert recipe.load(str(tmp_path / "book.yaml")).recipe.name == "book"
    assert recipe.load(str(tmp_path / "reviews.yaml")).recipe.init_from == "runs/book"
    paragraphs = (tmp_path / "book.txt").read_text(encoding="utf-8").split("\n\n")
    (trained,) = re.findall(r"trained on ([\d,]+) documents", PAGE)
    (held_out,) = re.findall(r"held out: (\d+) documents", PAGE)
    assert int(trained.replace(",", "")) + int(held_out) == len(paragraphs)


@pytest.mark.slow
def test_commands_of_the_first_hour_run_in_an_empty_folder(tmp_path: Path) -> None:
    _write(tmp_path)
    few = {"steps: 300": "steps: 6", "eval_every: 100": "eval_every: 3"}
    for name, changes in {"book.yaml": few, "reviews.yaml": {"epochs: 2": "steps: 4"}}.items():
        text = FILES[name]
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command, shown in _commands(PAGE):
        done = _run(command, tmp_path)
        assert done.returncode in ((0, 141) if "| head" in command else (0,)), done.stderr
        assert "Traceback" not in done.stderr, command
        printed = done.stdout.splitlines()
        if "plan" in command or "report" in command or "convert" in command:
            assert printed == shown, command
        # Figures of a training differ by machine; what they are called does not.
        names = {line.split()[0] for line in printed if line.strip()}
        figures = [found[1] for line in shown if (found := FIGURE.match(line))]
        assert [name for name in figures if name not in names] == [], (command, done.stdout)
        if "convert" in command:
            (said,) = re.findall(r"^to share it.*$", PAGE, re.M)
            assert said in done.stderr
        if "label.py" in command:
            assert len(printed) == len(shown) == FILES["label.py"].count("print")


@pytest.mark.slow
def test_commands_that_show_that_the_installation_works_run(tmp_path: Path) -> None:
    commands = [command for command, _ in _commands(INSTALL)]
    assert len(commands) == 2
    for command in commands:
        done = _run(command, tmp_path)
        assert done.returncode == 0, done.stderr


def test_install_page_says_what_make_says_of_an_old_python() -> None:
    said = "nlpkit needs Python 3.11 or later"
    assert said in INSTALL
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert said in makefile.replace("\\\n\t", "")


def test_extras_of_the_install_page_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "docs"}
    table = INSTALL.partition("| extra | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) == extras
