"""Each message of docs/reference/messages.md is printed, word for word, by the command above it."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from nlpkit import cli
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.runs import pretrain
from nlpkit.train.held_out import Overfitting

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "reference/messages.md").read_text("utf-8")
ENTRY = re.compile(r"^### (.+?)\n\n```console\n(.*?)^```\n\n(.+?)(?=^##|\Z)", re.M | re.S)
ENTRIES = {title: block for title, block, _ in ENTRY.findall(PAGE)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user, with the recipe."""
    text = (DOCS / "extend/index.md").read_text("utf-8")
    recipe = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)[0]
    assert "name: small\n" in recipe
    assert "steps: 10," in recipe
    text = recipe.replace("name: small\n", "name: mine\n").replace("steps: 10,", "steps: 4,")
    (tmp_path / "mine.yaml").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def in_use(folder: Path) -> Iterator[None]:
    with RunDirectory(folder / "runs/mine").locked():
        yield


@pytest.fixture
def out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pretrain, "pretrain", fail)


@pytest.fixture
def overfitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say at each evaluation what is said of a run that learns by heart."""
    known = Overfitting()
    for step, training, held_out in ((5, 3.1, 3.0), (10, 2.9, 3.1)):
        known.losses.append(training)
        assert known.warning(step, held_out) is None
    known.losses.append(2.5)
    text = known.warning(15, 3.2)
    monkeypatch.setattr(Overfitting, "warning", lambda *_: text)


# Fixtures of what no command of a page can bring about.
STAGED = {
    "In use": "in_use",
    "Out of memory": "out_of_memory",
    "Overfitting (warning)": "overfitting",
}


def _run(command: str) -> None:
    if not command.startswith("nlpkit "):
        subprocess.run(command, shell=True, check=True, executable="/bin/sh")
        return
    AcceleratorState._reset_state(reset_partial_state=True)
    cli.run(shlex.split(command)[1:])


def _matches(shown: str) -> Callable[[str], object]:
    """Return a search for the shown text, `…` standing for anything on its line."""
    pattern = ".*".join(re.escape(part.strip(" ")) for part in shown.rstrip("\n").split("…"))
    return re.compile(rf"^{pattern}", re.M).search


@pytest.mark.parametrize("title", ENTRIES)
def test_message_is_what_its_command_prints(
    title: str, folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if title in STAGED:
        request.getfixturevalue(STAGED[title])
    lines = ENTRIES[title].splitlines(keepends=True)
    commands = [line.removeprefix("$ ").rstrip("\n") for line in lines if line.startswith("$ ")]
    shown = "".join(line for line in lines if not line.startswith("$ "))
    for command in commands:
        capsys.readouterr()
        _run(command)
    said = capsys.readouterr().err
    assert shown.strip()
    assert _matches(shown)(said), said


def test_page_has_twenty_messages_and_each_says_what_to_do() -> None:
    assert len(ENTRIES) >= 20
    assert len(ENTRIES) == PAGE.count("\n### ")
    assert {*STAGED} <= {*ENTRIES}
