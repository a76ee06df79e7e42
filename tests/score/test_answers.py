"""Exact match, answer F1 and distinct-n: the rules of SQuAD v1.1 and CMRC 2018 by hand."""

import random
from types import ModuleType
from typing import Any

import pytest

from nlpkit.errors import DataError, UsageError
from nlpkit.score.counts import answers
from nlpkit.score.metrics import distinct, exact_match, squad_f1


def _f1(hypothesis: str, *references: str, **options: Any) -> float:
    return squad_f1.score([hypothesis], [[r] for r in references], **options).score


def test_exact_match_compares_lines_as_they_are() -> None:
    found = exact_match.score(["x=5-3", " a ", "A"], [["x=53", "a", "a"]])
    assert found.score == 1 / 3
    assert found.verbose == "1 of 3 match"
    assert [s.score for s in exact_match.sentences(["a", "b"], [["a", "c"]])] == [1, 0]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  Cat, an Animal!", "cat animal"),
        ("Theatre a-an the", "theatre aan"),
        ("U.S. (the)", "us"),
        ("“quoted” – dash", "“quoted” – dash"),
        ("a\u00a0b", "b"),
    ],
)
def test_squad_normalisation_follows_its_script(text: str, plain: str) -> None:
    # Lower case, then string.punctuation, then \b(a|an|the)\b, then white space: in this order.
    assert answers.NORMALIZERS["squad"](text) == plain


def test_exact_match_normalisations_differ_where_named() -> None:
    assert exact_match.score(["The cat."], [["cat"]]).score == 0
    assert exact_match.score(["The cat."], [["cat"]], normalize="squad").score == 1
    assert exact_match.score(["《红楼梦》。"], [["红楼梦"]], normalize="squad").score == 0
    assert exact_match.score(["《红楼梦》。"], [["红楼梦"]], normalize="cmrc").score == 1


def test_exact_match_of_one_of_several_references_is_enough() -> None:
    references = [["a", "q"], ["b", ""]]
    assert exact_match.score(["b", "q"], references).score == 1


def test_exact_match_empty_line_does_not_match_a_reference_that_is_not_there() -> None:
    # Line 1 has one reference only; line 2 is rightly empty.
    assert [s.score for s in exact_match.sentences(["", ""], [["a", ""], ["", ""]])] == [0, 1]


def test_squad_f1_is_of_words_in_common() -> None:
    # "cat sat" and "black cat sat down": 2 of 2 and of 4.
    assert _f1("The cat sat", "a black cat sat down") == pytest.approx(2 / 3)
    # Words count as often as they occur on both sides: 1 of 3 and of 1.
    assert _f1("b b b", "b") == 0.5
    assert _f1("x", "y") == 0
    # v1.1: two answers without words have no word in common.
    assert _f1("the", "a") == 0


def test_squad_f1_no_answer_ignores_a_reference_without_a_word_if_there_are_others() -> None:
    # evaluate-v2.0.py drops the answers that are empty after normalisation.
    assert _f1("", "the", "cat", no_answer=True) == 0
    assert _f1("cat", "the", "cat", no_answer=True) == 1
    assert _f1("", "the", "a", no_answer=True) == 1


def test_squad_f1_several_references_takes_the_best_by_line() -> None:
    found = squad_f1.score(["x y", "z"], [["x", "z"], ["x y", "w"], ["", ""]])
    assert found.score == 1
    assert found.signature == "nrefs:3|norm:squad|multi:max|mean:lines"


def test_squad_f1_cmrc_is_of_the_longest_run() -> None:
    # 北京 is the longest run of both: 2 of 4 and of 5 characters, though 3 are in common.
    assert _f1("北京，大学", "北京的学院", normalize="cmrc") == pytest.approx(4 / 9)
    assert _f1("《红楼梦》", "红楼梦", normalize="cmrc") == 1
    assert _f1("。", "红", normalize="cmrc") == 0


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("1998年3.5%", ["1998", "年", "3.5", "%"]),
        ("GPT模型 is good", ["gpt", "模", "型", "is", "good"]),
        ("他-说：“好”…", ["他", "说", "好", "…"]),
    ],
)
def test_cmrc_units_are_characters_and_latin_words(text: str, units: list[str]) -> None:
    assert answers.SPLITTERS["cmrc"](text) == units


def test_squad_f1_of_unspaced_chinese_warns() -> None:
    found = squad_f1.score(["北京大学"], [["北京的大学"]])
    assert found.score == 0
    assert "--normalize cmrc" in found.details["warnings"][0]


@pytest.mark.parametrize("metric", [exact_match, squad_f1])
def test_answers_without_a_line_are_an_error(metric: ModuleType) -> None:
    with pytest.raises(DataError, match="no line to score"):
        metric.score([], [[]])


@pytest.mark.parametrize("metric", [exact_match, squad_f1])
@pytest.mark.parametrize("normalize", ["squad", "cmrc"])
def test_answers_sums_of_lines_decide_the_score(metric: ModuleType, normalize: str) -> None:
    rng = random.Random(1)
    words = ["a", "the", "b", "c", "中", "国", ".", "x"]
    lines, one, two = (
        [" ".join(rng.choices(words, k=rng.randint(0, 5))) for _ in range(200)] for _ in range(3)
    )
    rows = metric.statistics(lines, [one, two], normalize=normalize)
    sums = [sum(column) for column in zip(*rows, strict=True)]
    expected = metric.score(lines, [one, two], normalize=normalize).score
    assert 0 < expected < 1
    assert metric.from_sums(sums, normalize=normalize) == pytest.approx(expected, abs=1e-12)


def test_distinct_of_the_corpus_counts_over_all_lines() -> None:
    # a b, b a, a b | a b: 2 of 4 bigrams differ.
    found = distinct.score(["a b a b", "a b", "c"], [])
    assert found.score == 2 / 4
    assert (found.name, found.details["lines_without_ngram"]) == ("distinct-2", 1)
    assert distinct.score(["a b a b", "a b", "c"], [], n=1).score == 3 / 7


def test_distinct_of_sentences_is_their_mean_with_0_for_short_ones() -> None:
    # 2 of 3, 1 of 1, none.
    found = distinct.score(["a b a b", "a b", "c"], [], level="sentence")
    assert found.score == pytest.approx((2 / 3 + 1 + 0) / 3)
    lines = distinct.sentences(["a b a b", "a b", "c"], [])
    assert [s.score for s in lines] == pytest.approx([2 / 3, 1, 0])


def test_distinct_of_chinese_warns_by_lines_and_counts_by_characters() -> None:
    assert "--tokenize zh" in distinct.score(["今天天气", "今天"], n=1).details["warnings"][0]
    # 今天 天天 天气 今天: 3 of 4 differ.
    assert distinct.score(["今天天气", "今天"], tokenize="zh").score == 3 / 4


def test_distinct_of_nothing_or_with_a_wrong_option_is_an_error() -> None:
    with pytest.raises(DataError, match="none of 2 lines has 2 tokens"):
        distinct.score(["a", ""], [])
    with pytest.raises(UsageError, match="n is 0; it must be 1 or more"):
        distinct.score(["a"], [], n=0)
