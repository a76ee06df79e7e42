"""Facts of two runs; `tests/commands/test_reproduce.py` compares whole ones."""

from nlpkit.report import same_run


def test_facts_that_differ_are_those_that_were_recorded() -> None:
    there = {name: "x" for name in same_run.FACTS if name != "code"} | {"torch": "1"}
    here = dict.fromkeys(same_run.FACTS, "x")
    assert same_run.explain(there, here) == ({"torch": ["1", "x"]}, ["code", "machine"])


def test_difference_shows_hashes_short_and_figures_whole() -> None:
    found = same_run.Difference(3, "f", "SHA-256", "ab" * 32, None)
    assert str(found) == "step 3: f: SHA-256 abababababab there, null here"
    assert (
        str(same_run.Difference(3, "f", "loss", 0.1, 0.2)) == "step 3: f: loss 0.1 there, 0.2 here"
    )
