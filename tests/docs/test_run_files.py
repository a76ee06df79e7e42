"""docs/reference/files.md has a row for every file and field of a run, and no other rows."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nlpkit import cli
from tests import _tiny
from tests._timed import FakeTime, drive

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/files.md").read_text("utf-8")
SETS = (
    *("train.save_at=[50]", "train.average={name: ema, decay: 0.8}"),
    *("train.budget=60s", "train.warmup_ratio=0.2", "train.schedule=wsd", "eval.baseline=2"),
    "train.weight_decay=[{until: 0.5, value: 0.1}, {value: 0.0}]",
)
# Rows of what these runs do not have; their names stand in the code that writes them.
RARE = {
    *("cache/", "tensorboard/", "adapter_config.json", "adapter_model.safetensors"),
    *("objective.safetensors", "chat_template.jinja", "preprocessor_config.json"),
    *("training.evaluated.json", "vocab.json", "merges.txt", "tokenizer.json"),
    *("pairs", "decided_by_size", "resumed_from", "changed_settings", "tracked_as"),
    *("near_end", "base", "frozen", "held_out.metrics"),
}


def _rows(heading: str) -> set[str]:
    """Return the names in the first column of the table behind a heading or a bold word."""
    text = PAGE.partition(heading)[2].partition("\n|---")[2].partition("\n\n")[0]
    return {
        name
        for row in text.splitlines()[1:]
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }


def _words(start: str) -> set[str]:
    """Return the names in the paragraph that begins with this bold word."""
    text = PAGE.partition(f"**{start}**")[2].partition("\n\n")[0]
    return {*re.findall(r"`(\w+)`", text)} - {"run"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A plain run, and one with what a run may also have."""
    path = _tiny.write(tmp_path_factory.mktemp("runs"))
    plain, more = path.parent / "plain", path.parent / "more"
    _tiny.pretrain(path, plain)
    with pytest.MonkeyPatch.context() as patch:
        drive(patch, FakeTime(), 3.0, 4.0, 1.0)
        _tiny.pretrain(path, more, *SETS)
    assert cli.run(["report", str(plain)]) == 0
    return [plain, more]


def _keys(value: dict[str, Any]) -> Iterator[str]:
    yield from value
    yield from (f"held_out.{name}" for name in value.get("held_out", {}))


def _compare(found: set[str], rows: set[str]) -> None:
    assert not found - rows, "these have no row"
    assert not rows - found - RARE, "nothing has these"


def test_files_of_a_run(runs: list[Path]) -> None:
    found = set()
    for path in (path for run in runs for path in [*run.iterdir(), *run.glob("checkpoints/*")]):
        name = path.relative_to(next(run for run in runs if path.is_relative_to(run))).as_posix()
        name = re.sub(r"step-\d{8}$", "step-N", name)
        name = re.sub(r"chck_\w+", "chck_N", name)
        found.add(f"{name}/" if path.is_dir() and not path.is_symlink() else name)
    _compare(found, _rows("## The folder of a run"))


def test_fields_of_metrics(runs: list[Path]) -> None:
    lines = [json.loads(each) for run in runs for each in (run / "metrics.jsonl").open()]
    steps = {key for each in lines if "held_out" not in each for key in _keys(each)}
    evaluations = {key for each in lines if "held_out" in each for key in _keys(each)}
    _compare(steps, _rows("**A step**"))
    _compare(evaluations, _rows("**An evaluation**"))


def test_fields_of_run_json_and_data_files(runs: list[Path]) -> None:
    found = {key for run in runs for key in json.loads((run / "run.json").read_text())}
    _compare(found, _rows("## Fields of run.json"))
    content = json.loads((runs[0] / "data_files.json").read_text())
    _compare({*content, *content["train"][0][0]}, _rows("## Fields of data_files.json"))


def test_files_of_a_checkpoint(runs: list[Path]) -> None:
    checkpoints = [path for run in runs for path in run.glob("checkpoints/step-*")]
    found = {file.name for path in checkpoints for file in path.iterdir()}
    _compare(found, _rows("## Files of a checkpoint"))
    notes, training = set(), set()
    for path in checkpoints:
        notes |= {*json.loads((path / "nlpkit.json").read_text())}
        content = json.loads((path / "training.json").read_text())
        training |= {*content, *content["state"]}
    _compare(notes, _words("nlpkit.json"))
    _compare(training | {"fitted"}, _words("training.json"))


def test_words_of_rare_rows_stand_in_the_code() -> None:
    for name in RARE:
        word = re.escape(
            name.rpartition(".")[2] if name.startswith("held_out.") else name.strip("/")
        )
        command = ["grep", "-rqE", "--include=*.py", rf"\b{word}\b", str(ROOT / "nlpkit")]
        assert subprocess.run(command, check=False).returncode == 0, name
