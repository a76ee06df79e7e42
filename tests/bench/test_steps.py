"""`bench/steps.py` with a tiny model: its table, equal tokens in each update, ratios by hand."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"
TINY = "--sizes tiny --types fp32 --rounds 1 --threads 1 --clock cpu"
COLUMNS = (
    "workload | type | whose | real tokens/s, median (best) | x Trainer | x best flags | "
    "of GEMM peak | peak memory | x Trainer"
)
RATIO = r"(1\.00|(\*\*)?\d+\.\d\d \(\d+\.\d\d–\d+\.\d\d\)(\*\*)?)"
CELLS = (
    *(r"\w+ \w+, (full rows|own lengths), 1 x 64", "fp32", "(nlpkit|Trainer|best flags)"),
    *(r"[\d,]+ \([\d,]+\)", RATIO, RATIO, r"\d+%", r"[\d,]+ MiB", r"\d+\.\d\d"),
)


def _check(folder: Path, *workloads: str) -> None:
    """Run the bench; check each cell of its table, and the tokens that the processes counted."""
    found = folder / "figures.json"
    command = [sys.executable, str(BENCH / "steps.py"), *TINY.split(), "--json", str(found)]
    done = subprocess.run(
        [*command, "--workloads", *workloads], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert lines[0] == f"| {COLUMNS} |"
    assert len(lines) == 2 + 3 * len(workloads)
    for line in lines[2:]:
        for cell, pattern in zip(line.strip("| ").split(" | "), CELLS, strict=True):
            assert re.fullmatch(pattern, cell), line
    assert re.search(r"transformers [\d.]+, processor time.*\n.* fp32 \d+ GFLOP/s", done.stdout)
    figures = json.loads(found.read_text(encoding="utf-8"))
    for workload in workloads:
        own = [each for each in figures if each["workload"] == workload]
        updates = {each["subject"]: each["tokens_per_update"] for each in own}
        full = workload.endswith("full")
        assert len(updates["nlpkit"]) == (2 if full else 4)  # a round that warms up, and another
        assert updates["nlpkit"] == updates["Trainer"]
        # Other texts of the same stream where they are grouped by length.
        assert sum(updates["best flags"]) == pytest.approx(sum(updates["nlpkit"]), rel=0.1)
        least = 256 if full else 200
        assert all(least <= tokens <= 256 for tokens in updates["nlpkit"])


@pytest.mark.slow
def test_each_subject_trains_on_the_same_tokens(tmp_path: Path) -> None:
    _check(tmp_path, "gpt-pretrain-varied")


@pytest.mark.slow
def test_full_rows_and_tasks_are_measured_alike(tmp_path: Path) -> None:
    _check(tmp_path, "cpm_ant-pretrain-full", "bert-finetune-varied")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("_steps_table", "_steps_plan"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module("_steps_table")


def test_ratios_are_those_of_the_rounds(table: ModuleType) -> None:
    ours, defaults, flags = (
        table.Measured(name, seconds, [100, 100, 100], [8e9] * 3, [100] * 4, memory << 20)
        for name, seconds, memory in (
            ("nlpkit", [1.0, 2.0, 4.0], 30),
            ("Trainer", [2.0, 3.0, 12.0], 120),
            ("best flags", [4.0, 4.0, 4.0], 60),
        )
    )
    recipes = import_module("_steps_recipes")
    workload = recipes.Workload("gpt", "pretrain", "full", "small")
    plan = table.Plan(workload, Path("x"), 1, 1, [], [], 8192, None)
    group = table.Group(plan, "fp32", {m.name: m for m in (ours, defaults, flags)}, 16e9)
    cells = [row.strip("| ").split(" | ")[2:] for row in table.rows(group)]
    # Rates: 100, 50, 25; 50, 33.3, 8.3; 25. The defaults are faster than the flags by the median.
    assert cells == [
        ["nlpkit", "50 (100)", *["**2.00 (1.50–3.00)**"] * 2, "25%", "30 MiB", "0.25"],
        ["Trainer", "33 (50)", "1.00", "1.00", "17%", "120 MiB", "1.00"],
        ["best flags", "25 (25)", *["0.75 (0.50–3.00)"] * 2, "12%", "60 MiB", "0.50"],
    ]
