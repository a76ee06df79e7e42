"""Word and character error rate: hand cases, the textbook table and jiwer as oracles."""

import random
from types import ModuleType
from typing import Any

import pytest

from nlpkit.errors import DataError
from nlpkit.score.counts.edits import Edits, count_edits, longest_run
from nlpkit.score.metrics import cer, wer

KINDS = ("hits", "substitutions", "deletions", "insertions")


@pytest.fixture(scope="module")
def jiwer() -> ModuleType:
    import jiwer

    return jiwer


def _distance_by_table(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y)))
    return row[-1]


def _run_by_search(a: str, b: str) -> int:
    pieces = {a[i:j] for i in range(len(a)) for j in range(i, len(a) + 1)}
    return max((len(piece) for piece in pieces if piece in b), default=0)


def _altered(rng: random.Random, text: list[str], letters: list[str]) -> list[str]:
    changed = text[:]
    for _ in range(rng.randint(0, 6)):
        at = rng.randint(0, len(changed))
        changed[at : at + rng.randint(0, 3)] = rng.choices(letters, k=rng.randint(0, 3))
    return changed


def test_edits_kitten_to_sitting_are_three() -> None:
    assert count_edits("kitten", "sitting") == Edits(4, 2, 0, 1)
    assert count_edits("kitten", "sitting").distance == 3


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("", "", (0, 0, 0, 0)),
        ("abc", "", (0, 0, 3, 0)),
        ("", "ab", (0, 0, 0, 2)),
        ("abc", "abc", (3, 0, 0, 0)),
        ("ab", "xaby", (2, 0, 0, 2)),
        ("aa", "aaa", (2, 0, 0, 1)),
    ],
)
def test_edits_at_the_borders(reference: str, hypothesis: str, expected: Any) -> None:
    assert count_edits(reference, hypothesis) == expected


def test_edits_distance_equals_the_table() -> None:
    rng = random.Random(1)
    for _ in range(400):
        letters = list("abcdefgh"[: rng.randint(1, 8)])
        a = rng.choices(letters, k=rng.randint(0, 80))
        b = _altered(rng, a, letters) if rng.random() < 0.5 else rng.choices(letters, k=30)
        found = count_edits(a, b)
        assert found.distance == _distance_by_table("".join(a), "".join(b))
        assert found.hits + found.substitutions + found.deletions == len(a)
        assert found.hits + found.substitutions + found.insertions == len(b)


def test_longest_run_equals_the_search_of_all_pieces() -> None:
    rng = random.Random(2)
    for _ in range(300):
        a, b = ("".join(rng.choices("abc", k=rng.randint(0, 25))) for _ in range(2))
        assert longest_run(a, b) == _run_by_search(a, b)


def test_wer_is_all_edits_by_all_reference_words() -> None:
    # 1 substitution of 3 words, 2 insertions to 1 word: 3 of 4, not the mean of 1/3 and 2.
    found = wer.score(["the bat sat", "a b c"], [["the cat sat", "b"]])
    assert found.score == 3 / 4
    assert [found.details[kind] for kind in KINDS] == [3, 1, 0, 2]
    assert found.verbose == "S 1 D 0 I 2 of 4"
    assert (found.details["hypothesis_words"], found.details["lines_without_error"]) == (6, 0)
    assert found.details["ratio"] == 6 / 4
    assert [s.score for s in wer.sentences(["the bat sat", "a b c"], [["the cat sat", "b"]])] == [
        1 / 3,
        2,
    ]


def test_wer_case_counts_unless_lowercase() -> None:
    assert wer.score(["The Cat"], [["the cat"]]).score == 1
    assert wer.score(["The cat"], [["the Cat"]], lowercase=True).score == 0
    assert wer.score(["a"], [["a"]], lowercase=True).signature.startswith("case:lc")


def test_wer_spaces_between_words_do_not_count() -> None:
    assert wer.score(["  a \t b\u3000c "], [["a b c"]]).score == 0


def test_wer_of_unspaced_chinese_warns_of_cer() -> None:
    found = wer.score(["今天天气很好"], [["今天天气不错"]])
    assert found.score == 1
    assert "use cer" in found.details["warnings"][0]
    assert cer.score(["今天天气很好"], [["今天天气不错"]]).score == 2 / 6


def test_cer_counts_spaces_unless_ignored() -> None:
    assert cer.score([" 今 天好 "], [["今天好"]]).score == 1 / 3
    assert cer.score([" 今 天\u3000好 "], [["今天好"]], ignore_spaces=True).score == 0
    assert cer.score(["ABc"], [["abD"]], lowercase=True).score == 1 / 3


def test_cer_counts_code_points_beyond_the_basic_plane_once() -> None:
    assert cer.score(["𠀁a"], [["𠀀a"]]).score == 1 / 2


@pytest.mark.parametrize("metric", [wer, cer])
def test_error_rate_without_reference_tokens_is_undefined(metric: ModuleType) -> None:
    with pytest.raises(DataError, match=r"the references have no (words|characters) \(2 lines\)"):
        metric.score(["a", "b"], [["", " "]])


@pytest.mark.parametrize("metric", [wer, cer])
def test_error_rate_empty_reference_counts_insertions_and_is_said(metric: ModuleType) -> None:
    found = metric.score(["a", "b"], [["", "b"]])
    assert found.score == 1
    assert found.details["warnings"] == ["1 line has an empty reference; insertions there count"]


def test_error_rates_equal_jiwer_in_every_kind_of_edit(jiwer: ModuleType) -> None:
    rng = random.Random(3)
    references, hypotheses = [], []
    for _ in range(400):
        letters = list("abcdef 中国人𠀀"[: rng.randint(2, 11)])
        reference = rng.choices(letters, k=rng.randint(1, 90))
        references.append("".join(reference))
        hypotheses.append("".join(_altered(rng, reference, letters)))
    for metric, process in ((wer, jiwer.process_words), (cer, jiwer.process_characters)):
        for found, reference, hypothesis in zip(
            metric.sentences(hypotheses, [references]), references, hypotheses, strict=True
        ):
            expected = process(reference, hypothesis)
            assert [found.details[k] for k in KINDS] == [getattr(expected, k) for k in KINDS]
        whole = metric.score(hypotheses, [references])
        expected = process(references, hypotheses)
        assert whole.score == (expected.wer if metric is wer else expected.cer)
        assert [whole.details[k] for k in KINDS] == [getattr(expected, k) for k in KINDS]


@pytest.mark.parametrize("space", ["\t", "\u3000", "\u00a0"])
def test_wer_takes_every_white_space_where_jiwer_takes_the_space_alone(
    jiwer: ModuleType, space: str
) -> None:
    line = f"a{space}b"
    assert wer.score([line], [["a b"]]).score == 0
    assert jiwer.process_words("a b", line).wer == 1


def test_cer_of_a_long_line_equals_jiwer(jiwer: ModuleType) -> None:
    rng = random.Random(4)
    reference = rng.choices("abcdefghij", k=6000)
    hypothesis = [c if rng.random() < 0.9 else rng.choice("abxyz") for c in reference]
    del hypothesis[3000:3050]
    lines = "".join(hypothesis), "".join(reference)
    found = cer.score([lines[0]], [[lines[1]]])
    expected = jiwer.process_characters(lines[1], lines[0])
    assert found.score == expected.cer
    assert [found.details[k] for k in KINDS] == [getattr(expected, k) for k in KINDS]


@pytest.mark.parametrize("metric", [wer, cer])
def test_error_rate_sums_of_lines_decide_the_score(metric: ModuleType) -> None:
    lines, references = ["a b", "", "c d e"], [["a", "x y", "c d f"]]
    rows = metric.statistics(lines, references)
    sums = [sum(column) for column in zip(*rows, strict=True)]
    assert metric.from_sums(sums) == metric.score(lines, references).score
