"""`make speedrun`: its rules are checked, and its figures are those of the metrics by hand."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from nlpkit.recipe import packaged

BENCH = Path(__file__).parents[2] / "bench"
RECORDS = sorted((BENCH / "speedrun").glob("*.yaml"))


@pytest.fixture
def speedrun(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "speedrun", raising=False)
    return import_module("speedrun")


def test_records_keep_the_rules(speedrun: ModuleType) -> None:
    assert {speedrun.track_of(path).name for path in RECORDS} == {"English", "Chinese"}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("train: [data/en/train/*.jsonl]", "train: [more.jsonl]", "those of a track"),
        ("valid: [data/en/valid/*.jsonl]", "valid: [data/zh/valid/*.jsonl]", "those of a track"),
        ("  name: clm", "  name: mlm", "objective must be clm"),
        ("  kind: bpe\n  vocab_size: 2000", "  path: my/tokenizer", "data.train alone"),
    ],
)
def test_recipes_that_break_a_rule_are_refused(
    speedrun: ModuleType, tmp_path: Path, old: str, new: str, what: str
) -> None:
    text = (BENCH / "speedrun/english.yaml").read_text(encoding="utf-8")
    if "mlm" in new:
        text = text.replace("family: gpt2", "family: bert").replace("  contiguous: true\n", "")
        text = text.replace("  max_positions: 256\n  attention_dropout: 0.0\n", "")
    assert old in text
    (tmp_path / "r.yaml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(SystemExit, match=what):
        speedrun.track_of(tmp_path / "r.yaml")


def test_time_is_that_of_the_steps_until_the_target(speedrun: ModuleType) -> None:
    records = []
    for step, bits in ((10, 1.5), (20, 1.0), (30, 0.75)):
        records += [{"step": n, "tokens": 7 * n, "seconds": 0.5} for n in range(step - 9, step + 1)]
        held_out = {"loss": 2.0, "bits_per_character": bits}
        records.append({"step": step, "tokens": 7 * step, "held_out": held_out})
    lines = [json.dumps(record) for record in records]
    found = speedrun.result(lines, 1.0)
    # 20 steps of half a second; evaluations cost nothing.
    assert found == speedrun.Result(10.0, 20, 140, 0.75)
    assert speedrun.result(lines, 0.5) == speedrun.Result(None, None, None, 0.75)
    track = speedrun.TRACKS[0]
    row = speedrun.row(Path("a.yaml"), track, [found, speedrun.Result(12.0, 30, 210, 0.85)])
    assert row == "| English | a | 11.0 ± 1.4 | 20, 30 | 175 | 0.800 ± 0.071 |"
    row = speedrun.row(Path("a.yaml"), track, [found, speedrun.Result(None, None, None, 1.1)])
    assert "| not reached by 1 of 2 |  |  | 0.925" in row


def test_records_are_no_recipes_of_the_package() -> None:
    assert not {path.stem for path in RECORDS} & set(packaged())
