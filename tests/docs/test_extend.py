"""The pages of docs/extend: the file of each is loaded as a part, and its commands run."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from nlpkit import cli

FOLDER = Path(__file__).parents[2] / "docs/extend"
INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
FILE = re.compile(r"^File `([^`]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with an empty package and the recipe of the first page, in fewer steps."""
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab/__init__.py").touch()
    ((name, text),) = FILE.findall(INDEX)
    assert "steps: 10," in text
    (tmp_path / name).write_text(text.replace("steps: 10,", "steps: 4,"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    _forget()
    yield tmp_path
    _forget()


def _run(commands: str) -> None:
    for command in commands.replace("\\\n", "").splitlines():
        if not command.startswith("nlpkit "):
            subprocess.run(command, shell=True, check=True)
            continue
        AcceleratorState._reset_state(reset_partial_state=True)
        assert cli.run(shlex.split(command)[1:]) == 0, command


def test_index_names_every_page_and_its_command_runs(lab: Path) -> None:
    for page in PAGES:
        assert f"]({page.name})" in INDEX
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 100
    (commands,) = SHELL.findall(INDEX)
    _run(commands)
    assert (lab / "runs/small/checkpoints").is_dir()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_file_of_the_page_is_a_part_and_its_commands_run(
    lab: Path, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page.read_text(encoding="utf-8")
    files = FILE.findall(text)
    for name, source in files:
        (lab / name).parent.mkdir(exist_ok=True)
        (lab / name).write_text(source, encoding="utf-8")
    name = files[0][0]  # of a family, its package
    part = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    (commands,) = SHELL.findall(text)
    assert part in commands
    _run(commands)
    printed = capsys.readouterr().out
    for shown in re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        assert shown in printed
    loaded = sys.modules[part]
    assert str(loaded.__file__) == str(lab / name)
