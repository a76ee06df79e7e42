"""Numbers with what they count."""

import pytest

from nlpkit.plural import all_of, number_of


@pytest.mark.parametrize(
    ("count", "counted", "said"),
    [
        (1, "rows", "1 row"),
        (0, "rows", "0 rows"),
        (2_000, "rows", "2,000 rows"),
        (1, "queries", "1 query"),
        (1, "blank lines", "1 blank line"),
        (1, "hypotheses", "1 hypothesis"),
        (1, "inputs were too long", "1 input was too long"),
        (1, "tokens cut from targets", "1 token cut from targets"),
        (1, "pairs differ in their first token", "1 pair differs in its first token"),
        (3, "pairs differ in their first token", "3 pairs differ in their first token"),
    ],
)
def test_noun_and_verb_follow_the_number(count: int, counted: str, said: str) -> None:
    assert number_of(count, counted) == said


def test_all_of_one_is_the_only_one() -> None:
    assert all_of(3, "rows are malformed") == "all 3 rows are malformed"
    assert all_of(1, "rows are malformed") == "the only row is malformed"
