"""What docs/reference_scores.py says of scores beside the code: ranges, and who has the same."""

import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nlpkit import registry

ROOT = Path(__file__).resolve().parents[2]
NAMES = registry.names("score/metrics")
MODULES = {"scikit-learn": "sklearn"}
TAGS = ["B-PER", "I-PER", "O", "B-LOC"]


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import reference_scores

    return reference_scores.FACTS


def _lines(name: str, draw: random.Random) -> Iterator[str]:
    for _ in range(20):
        if name in ("pearson", "spearman"):
            yield f"{draw.uniform(-5, 5):.3f}"
        elif name in ("accuracy", "f1", "mcc"):
            yield draw.choice("abc")
        elif name in ("entity_f1", "tag_accuracy"):
            yield " ".join(draw.choices(TAGS, k=4))
        elif name == "perplexity":
            yield " ".join(f"-{draw.uniform(0, 5):.3f}" for _ in range(4))
        else:
            yield " ".join(draw.choices(["red", "blue", "green", "cold", "one"], k=6))


def test_facts_are_of_every_score(facts: dict[str, tuple[str, str]]) -> None:
    assert [*facts] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_range_holds_and_equal_lines_reach_the_better_end(
    name: str, facts: dict[str, tuple[str, str]]
) -> None:
    score: Any = registry.load("score/metrics", name)
    if score.IS_TOOL:
        assert facts[name][0] == ("0 … 1" if name == "ir" else "")
        return
    low, _, high = facts[name][0].partition(" …")
    ends = float(low), float(high or math.inf)
    draw = random.Random(1)
    some, other = [*_lines(name, draw)], [*_lines(name, draw)]
    takes_references = score.REFERENCES[0] > 0
    value = score.score(some, [other] if takes_references else []).score
    assert ends[0] <= value <= ends[1]
    if takes_references:
        best = ends[0] if score.LOWER_IS_BETTER else ends[1]
        assert score.score(some, [some]).score == pytest.approx(best)


@pytest.mark.parametrize("name", NAMES)
def test_library_is_one_that_the_tests_of_scores_import(
    name: str, facts: dict[str, tuple[str, str]]
) -> None:
    library = facts[name][1]
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests/score").glob("*.py"))
    name, _, recorded = library.partition(",")
    module = MODULES.get(name, name)
    imported = rf"import {module}\b|from {module}\b|importorskip\(.{module}\b"
    assert not library or re.search(name if recorded else imported, tests), library
