"""docs/score.md is so: its table has every score and real options, its commands run."""

import argparse
import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit import registry

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "score.md").read_text(encoding="utf-8")
_CELLS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `")]
ROWS = {cells[0].strip(" `"): cells for cells in _CELLS if len(cells) == 6}
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
FILES = [line for line in COMMANDS if line.startswith("printf")]  # which others read


def _flags_and_defaults(name: str) -> tuple[set[str], dict[str, object]]:
    module = registry.load("score/metrics", name)
    if "run" in vars(module):
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        actions = [a for a in parser._actions if a.option_strings]
        return (
            {flag for a in actions for flag in a.option_strings},
            {f"--{a.dest}": a.default for a in actions if a.default is not None},
        )
    options = module.OPTIONS
    dashed = {f"--{o.name.replace('_', '-')}": o.default for o in options}
    return {*dashed, *(flag for o in options for flag in o.flags)}, dashed


def test_score_docs_table_has_every_score() -> None:
    assert sorted(ROWS) == registry.names("score/metrics")


@pytest.mark.parametrize("name", sorted(ROWS))
def test_score_docs_options_exist_and_begin_with_the_default(name: str) -> None:
    flags, defaults = _flags_and_defaults(name)
    for text in re.findall(r"`(-[^`]+)`", ROWS[name][4]):
        for flag, value in re.findall(r"(?<!\S)(--?[a-z][\w-]*)(?: ([\w.+-]+))?", text):
            assert flag in flags, f"{name} has no {flag}"
            if value and defaults.get(flag) is not None:
                assert str(defaults[flag]) == value, f"{name} {flag}"


def test_score_docs_references_are_the_codes() -> None:
    said = {(0, 0): "0", (0, 1): "0,", (1, 1): "1", (1, None): "1 or more"}
    for name, row in ROWS.items():
        module = registry.load("score/metrics", name)
        if "run" not in vars(module):
            assert row[3].strip().startswith(said[module.REFERENCES]), name


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("line", COMMANDS)
def test_score_docs_command_runs(tmp_path: Path, line: str) -> None:
    for each in FILES:
        subprocess.run(["bash", "-c", each], cwd=tmp_path, check=True)
    texts = {
        "hyp.txt": "the cat sat on the mat\na dog ran\n",
        "ref.txt": "the cat is on the mat\na dog ran far\n",
        "ref1.txt": "今天天气很好\n我们去公园\n",
        "ref2.txt": "今天天气不错\n\n",
        "predicted.txt": "1\n0\n1\n",
        "right.txt": "1\n1\n1\n",
        "log_probabilities.txt": "-1.5 -2\n-3\n",
        "text.txt": "a b\nc\n",
        "documents.jsonl": '{"id": "1", "text": "今天天气很好"}\n{"id": "2", "text": "公园"}\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "hyp.gz").write_bytes(gzip.compress(texts["ref1.txt"].encode()))
    shell = f'nlpkit() {{ "{sys.executable}" -m nlpkit "$@"; }}; set -o pipefail; {line}'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "nlpkit:" not in done.stderr or "below --fail-under" in done.stderr
