"""`bench/gpu.py`, tried on the CPU: its rows, what is refused, and one line without a GPU."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
TINY = "--device cpu --tokens 32 --rounds 1 --warm-up 1 --heads 2 --width 16 --layers 1 --hidden 64"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    """Return how to run the command with these words."""
    monkeypatch.syspath_prepend(str(BENCH))

    def run(words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["bench/gpu.py", *words.split()])
        import_module("gpu").main()

    yield run
    for file in BENCH.glob("*.py"):
        sys.modules.pop(file.stem, None)


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.slow
def test_rows_have_figures_or_the_reason_why_not(bench, capsys) -> None:
    bench(f"{TINY} --documents 2 --kinds causal cpm_ant linear --backends varlen sdpa")
    rows = {tuple(row[:2]): row[2:] for row in _rows(capsys.readouterr().out)}
    assert rows["causal", "varlen"][1] == "refused: made for CUDA, not for cpu"
    assert rows["cpm_ant", "varlen"][1] == "refused: learned bias"
    for subject in (
        *(("torch, causal", "sdpa, one call"), ("torch, full", "sdpa, one call")),
        *(("causal", "sdpa"), ("cpm_ant", "sdpa"), ("linear", "own")),
    ):
        assert rows[subject][0] == "32"
        assert float(rows[subject][1]) > 0  # milliseconds
    for family in ("gpt", "gpt2", "bert", "cpm_ant"):
        for whose in ("transformers, padded", "nlpkit, packed"):
            used, rate, *_ = rows[family, whose]
            assert used in ("sdpa", "eager") if "padded" in whose else used == "cpu_flash"
            assert float(rate.replace(",", "")) > 0


def test_without_a_gpu_it_is_one_line(bench, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        bench("--device cuda:77")
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("bench/gpu.py: --device cuda:77: not available: ")
