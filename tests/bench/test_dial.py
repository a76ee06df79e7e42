"""`bench/dial.py`: which rates it tries, and where it finds the best one."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def dial(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "dial", raising=False)
    return import_module("dial")


@pytest.mark.parametrize(
    ("start", "coarse", "tried"),
    [(6, True, [4, 6, 8, 10]), (6, False, [4, 6, 7, 8, 9, 10]), (12, True, [6, 8, 10, 12])],
)
def test_best_rate_is_between_worse_ones(
    dial: ModuleType, start: int, coarse: bool, tried: list[int]
) -> None:
    # The lowest power is 7.9, so 8 of those by 2, and 8 of all.
    found = dial.climbed(start, lambda power: (power - 7.9) ** 2, coarse)
    assert list(found) == tried


def test_lowest_is_that_of_the_parabola(dial: ModuleType) -> None:
    # (log2 rate - 1.25)², which is lowest at 2 ** 1.25.
    assert dial.lowest({1: 1.5625, 2: 0.0625, 4: 0.5625}) == pytest.approx(2**1.25)
    assert dial.lowest({1: 3.0, 2: 2.0}) is None
    assert dial.rate_of(3) == 0.00283
