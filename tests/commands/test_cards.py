"""`plan --card`: how long a run takes on one card, by hand."""

import pytest

from nlpkit.commands import _cards as cards
from nlpkit.errors import UsageError


def test_run_takes_its_flops_by_two_fifths_of_the_peak() -> None:
    found = cards.describe("A100", 312e12 * 0.4 * 3600, state_bytes=0)
    assert found["run_seconds"] == pytest.approx(3600)
    assert (found["name"], found["utilization"]) == ("a100", 0.4)
    assert found["peak_flops_per_second"] == 312e12


def test_state_is_held_by_as_many_cards_as_have_its_memory() -> None:
    sizes = (1, 80 * 10**9, 80 * 10**9 + 1, 2794 * 10**9)
    found = [cards.describe("h100", None, size)["cards_that_hold_the_state"] for size in sizes]
    assert found == [1, 1, 2, 35]


def test_run_of_unknown_length_has_no_time() -> None:
    assert cards.describe("h100", None, 1)["run_seconds"] is None


def test_unknown_card_is_a_wrong_command_line_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="--card: no 'h10', did you mean h100") as caught:
        cards.find("h10")
    assert all(name in str(caught.value) for name in cards.CARDS)


def test_every_card_has_figures_of_an_accelerator() -> None:
    for tera_flops, gigabytes in cards.CARDS.values():
        assert 50 < tera_flops < 5000
        assert 20 < gigabytes < 500
