"""The path of a plain run: docs/design_path.md lists its files, and it does not get longer."""

from pathlib import Path

import pytest

from tests import _path

DESIGN = Path(__file__).parents[2] / "docs/design_path.md"


def test_path_of_a_run_is_that_of_the_docs_and_gets_no_longer(tmp_path: Path) -> None:
    found = _path.trace_pretrain(tmp_path / "run")
    listed = DESIGN.read_text(encoding="utf-8").split("<!-- path -->")[1].strip().splitlines()
    assert listed[2:] == _path.table(found), "paste what `python -m tests._path` prints"
    # Lower a figure when it has fallen; machinery that is added takes as much away elsewhere.
    assert len(found.files) <= 81
    assert found.lines <= 13_208
    assert sum(found.files.values()) <= 6_038
    assert found.modules <= 133


def test_path_counts_the_lines_of_a_function_within_another_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def outer():\n    def inner():\n        return 1\n\n    return inner()\n"
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(_path, "ROOT", tmp_path)
    assert _path._lines("a.py", {("outer", 1), ("inner", 2)}) == 5
    assert _path._lines("a.py", {("inner", 2)}) == 2
