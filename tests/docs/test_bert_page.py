"""The two pages "BERT in six steps": their code is that of the parts, their commands run."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from nlpkit import cli
from tests import _tiny
from tests._tiny_tasks import rows_of, write_rows

ROOT = Path(__file__).parents[2]
PAGE = "".join(
    (ROOT / f"docs/bert_in_six_steps{part}.md").read_text(encoding="utf-8")
    for part in ("", "_runs")
)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
_LEFT_OUT = re.compile(r"^ *# …\n", re.MULTILINE)


def _quotes() -> list[tuple[str, str]]:
    """Return (file, lines) of each piece of code that the page quotes from a file."""
    found, file = [], ""
    for line in re.split(r"(^From `[^`]+`:$|^```python\n.*?^```$)", PAGE, flags=re.S | re.M):
        if line.startswith("From `"):
            file = line.split("`")[1]
        elif line.startswith("```python") and "from transformers import" not in line:
            text = line.removeprefix("```python\n").removesuffix("```")
            found += [(file, piece.strip("\n")) for piece in _LEFT_OUT.split(text)]
    return found


def test_page_quotes_every_part_as_it_is() -> None:
    quotes = _quotes()
    assert {file for file, _ in quotes} == {
        "mylab/encoder/__init__.py", "mylab/encoder/model.py", "mylab/mlm.py", "mylab/nsp.py",
    }  # fmt: skip
    for file, piece in quotes:
        source = (ROOT / file.replace("mylab", "tests/parts")).read_text(encoding="utf-8")
        assert piece, file
        assert f"\n{piece}\n" in source.replace("tests.parts", "mylab"), f"{file}:\n{piece}"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with `mylab`, text and rows, in which nlpkit runs."""
    shutil.copytree(
        ROOT / "tests/parts", tmp_path / "mylab", ignore=shutil.ignore_patterns("__pycache__")
    )
    for path in (tmp_path / "mylab").rglob("*.py"):
        text = path.read_text(encoding="utf-8").replace("tests.parts", "mylab")
        path.write_text(text, encoding="utf-8")
    _tiny.write(tmp_path)
    for part, seed in (("train", 1), ("valid", 2)):
        write_rows(tmp_path / f"task.{part}.jsonl", rows_of("classes", 40, seed))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]  # another test's
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("proofs", [False, True], ids=["runs", "proofs"])
def test_commands_of_the_page_run(
    lab: Path, capsys: pytest.CaptureFixture[str], proofs: bool
) -> None:
    commands = []
    for kind, text in BLOCKS:
        if kind == "yaml":
            name = re.findall(r"`(\w+\.yaml)`", PAGE.split(text)[0])[-1]
            fewer = text.replace("steps: 20,", "steps: 6,")
            (lab / name).write_text(fewer, encoding="utf-8")
        elif kind == "sh":
            commands += text.splitlines()
    assert sorted(path.name for path in lab.glob("*.yaml")) == [
        "bert.yaml", "task.yaml", "tiny.yaml",
    ]  # fmt: skip
    verbs = {shlex.split(command)[1] for command in commands}
    assert verbs == {"plan", "selftest", "pretrain", "eval", "finetune"}
    for command in commands:
        if ("selftest" in command) != proofs:
            continue
        AcceleratorState._reset_state(reset_partial_state=True)
        program, verb, *rest = shlex.split(command)
        assert program == "nlpkit"
        device = [] if verb == "plan" else ["--device", "cpu"]
        assert cli.run([verb, *rest, *device]) == 0, (command, capsys.readouterr().err)
    if proofs:
        return
    (last,) = [text for kind, text in BLOCKS if "from transformers import" in text]
    exec(compile(last, "page", "exec"), {})
