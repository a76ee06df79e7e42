"""What a resumed run keeps of `metrics.jsonl`."""

from pathlib import Path

import pytest

from nlpkit.train import kept_metrics


@pytest.mark.parametrize("damaged", ['{"step": null}', '{"step": 3, "tok', "[]", '{"step": "3"}'])
def test_damaged_line_is_named_and_left_out(tmp_path: Path, damaged: str) -> None:
    file, said = tmp_path / "metrics.jsonl", list[str]()
    first, second = '{"step": 1}\n', '{"step": 2, "held_out": {}}\n'
    lost = '{"step": 3}\n{"step": 4, "lo'  # after the last checkpoint, and the end of a killed run
    file.write_text(f"{first}{damaged}\n{second}{lost}", encoding="utf-8")
    assert kept_metrics.select(file, (2, 2), said.append) == first + second
    assert said == [f"{file}:2: no record of a step; the line is left out"]


def test_a_name_with_a_line_separator_is_no_end_of_a_line(tmp_path: Path) -> None:
    file, said = tmp_path / "metrics.jsonl", list[str]()
    line = '{"step": 1, "losses": {"one\u2028two": 2.0}}\n'
    file.write_text(line, encoding="utf-8")
    assert (kept_metrics.select(file, (1, 1), said.append), said) == (line, [])
