"""Scripts of `bench` with something small: their tables."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import _tiny
from tests.report import test_sweep

BENCH = Path(__file__).parents[2] / "bench"


def _rows(*command: object) -> list[list[str]]:
    """Run a script of `bench`; return the cells of its table, the head first."""
    words = [sys.executable, str(BENCH / str(command[0])), *map(str, command[1:])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert re.fullmatch(r"\|(---\|)+", lines.pop(1))
    return [line.strip("| ").split(" | ") for line in lines]


@pytest.mark.slow
def test_first_step_is_timed_from_the_end_of_the_import(tmp_path: Path) -> None:
    head, (name, *seconds) = _rows("first_step.py", _tiny.write(tmp_path), "--rounds", "1")
    assert head == ["recipe", "import torch", "first step after it", "its processor time"]
    assert name == str(tmp_path / "tiny.yaml")
    imported, step, processor = map(float, seconds)
    assert imported > 0
    assert processor > 0
    assert step > 0


@pytest.mark.slow
def test_loss_and_products_are_timed_in_both_types() -> None:
    head, *rows = _rows("cross_entropy.py", "--vocabulary", "50", "20000", "--rounds", "1")
    assert head == ["vocabulary", "type", "loss", "products alone", "their share"]
    kinds = [(vocabulary, kind) for vocabulary, kind, *_ in rows]
    assert kinds == [(v, kind) for v in ("50", "20,000") for kind in ("float32", "bfloat16")]
    for *_, loss, products, share in rows:
        assert re.fullmatch(r"\d+", loss)
        assert re.fullmatch(r"\d+", products)
        assert re.fullmatch(r"\d+%", share)
    assert int(rows[-2][2]) > 0


@pytest.mark.slow
def test_norms_are_timed_beside_torchs() -> None:
    head, *rows = _rows("norms.py", "--rounds", "2")
    assert head == ["tokens x width", "ours", "torch's", "times as fast"]
    assert [row[0] for row in rows] == ["4,096 x 256", "1,024 x 768", "4,096 x 1,024"]
    assert all(float(figure) > 0 for row in rows for figure in row[1:])


@pytest.mark.slow
def test_noise_of_seeds_is_measured_by_draws(tmp_path: Path) -> None:
    for seed in range(8):
        test_sweep.write_run(tmp_path / f"a/seed-{seed}", [3 + seed % 3 / 10], seed=seed)
    head, (name, seeds, mean, deviation, *shares, seen) = _rows(
        "noise.py", tmp_path / "a", "--draws", "40"
    )
    assert head[4:8] == ["2, 2 seeds", "3, 3 seeds", "5, 5 seeds", "2, 5 seeds"]
    assert (name, seeds, mean) == ("a held_out.loss", "8", "3.0875")
    assert deviation.startswith("0.0835 (")
    assert shares[2] == "–"  # of 8 seeds there are no two sides of 5
    assert all(float(share.removesuffix("%")) > 80 for share in (*shares[:2], shares[3]))
    assert float(seen) > 0.1
