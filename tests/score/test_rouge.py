"""ROUGE: hand counts, `rouge_score` as oracle, Chinese, several references."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from nlpkit.errors import DataError
from nlpkit.score.counts.edits import lcs_length
from nlpkit.score.counts.words import TOKENIZERS, count_dropped_letters, is_unspaced, list_ngrams
from nlpkit.score.metrics import rouge

POLICE = "police killed the gunman"


def _value(hypothesis: str, *references: str, **options: Any) -> float:
    return rouge.score([hypothesis], [[r] for r in references], **options).score


def _subsequence_by_table(a: str, b: str) -> int:
    """The textbook table, as reference for the bits."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = row[:]
        for j, y in enumerate(b, 1):
            row[j] = above[j - 1] + 1 if x == y else max(above[j], row[j - 1])
    return row[-1]


def test_rouge_l_of_the_papers_example_is_three_quarters() -> None:
    # Lin 2004, sec. 3.1: S2 shares "police the gunman" (3 of 4), S3 "the gunman" (2 of 4).
    assert _value("police kill the gunman", POLICE) == 0.75
    assert _value("the gunman kill police", POLICE) == 0.5
    # Sec. 3.1, S4: "the gunman" or "police killed", one of them counts.
    assert _value("the gunman police killed", POLICE) == 0.5


def test_rouge_n_counts_clipped_ngrams() -> None:
    # "the" three times against once: 1 + 1 (cat) of 4 and of 3; F = 2 * 2 / (4 + 3).
    parts = rouge.score(["the the the cat"], [["the cat sat"]]).details
    assert parts["rouge1"]["precision"] == 2 / 4
    assert parts["rouge1"]["recall"] == 2 / 3
    assert parts["rouge1"]["f"] == pytest.approx(4 / 7, abs=1e-15)
    # Bigrams: "the cat" of three and of two.
    assert parts["rouge2"] == pytest.approx({"precision": 1 / 3, "recall": 1 / 2, "f": 2 / 5})


def test_rouge_variant_chooses_the_number_and_the_name() -> None:
    names = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    for variant, name in names.items():
        found = rouge.score(["police kill the gunman"], [[POLICE]], variant=variant)
        assert (found.name, found.score) == (name, found.details[variant]["f"])
        assert not found.percent


def test_rouge_of_no_lines_is_an_error() -> None:
    with pytest.raises(DataError, match="no line to score"):
        rouge.score([], [[]])


def test_rouge_empty_sides_score_zero_and_are_said() -> None:
    found = rouge.score(["a b", "", "a b"], [["", "a b", "a b"]])
    assert found.score == pytest.approx(1 / 3)
    assert found.details["warnings"] == [
        "1 of 3 lines score 0 because their references have no token"
    ]


def test_rouge_several_references_takes_the_best_by_line() -> None:
    references = [["a b c d", "x"], ["q", "y z"], ["", ""]]
    best = rouge.score(["a b", "y z"], references)
    # Line 1: reference 1, P 2/2, R 2/4; line 2: reference 2, all of it.
    assert best.details["rougeL"]["recall"] == (0.5 + 1) / 2
    assert best.score == pytest.approx((2 / 3 + 1) / 2)
    assert "nrefs:3" in best.signature


def test_rouge_chinese_by_words_is_zero_and_warns_by_characters_is_not() -> None:
    hypothesis, reference = "中国女排夺得冠军。", "中国女排获得冠军"
    by_word = rouge.score([hypothesis], [[reference]])
    assert by_word.score == 0
    assert "drops 8 of 8 letters of the references" in by_word.details["warnings"][0]
    assert "--tokenize zh" in by_word.details["warnings"][0]
    by_character = rouge.score([hypothesis], [[reference]], tokenize="zh")
    # 7 of 8 characters on both sides; the full stop is dropped.
    assert by_character.score == 7 / 8
    assert by_character.details["warnings"] == []
    # With the full stop: 7 of 9 and of 8.
    assert _value(hypothesis, reference, tokenize="char") == pytest.approx(14 / 17)


def test_rouge_english_with_a_foreign_name_does_not_warn() -> None:
    text = "the café " + "has been open since the spring of last year and " * 3
    assert rouge.score([text], [[text]]).details["warnings"] == []
    assert rouge.score(["é"], [["é"]]).details["warnings"] != []


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        ("word", "The café's 3.5 Kg, ok_go", ["the", "caf", "s", "3", "5", "kg", "ok", "go"]),
        ("unicode", "Der ÄRGER im Café, 第3章", ["der", "ärger", "im", "café", "第3章"]),
        ("zh", "GPT-2在2019年，发布了。", ["gpt", "2", "在", "2019", "年", "发", "布", "了"]),
        ("zh", "𠀀々〇 かな・カナー", ["𠀀", "々", "〇", "か", "な", "カ", "ナ", "ー"]),
        ("char", " 中 文a。", "中文a。"),
        ("whitespace", " A-b\u3000C ", ["A-b", "C"]),
    ],
)
def test_tokenizers_cut_as_named(name: str, text: str, tokens: Any) -> None:
    assert TOKENIZERS[name](text) == tokens


def test_ngrams_of_too_few_tokens_are_none() -> None:
    assert list_ngrams("abc", 2) == [("a", "b"), ("b", "c")]
    assert list_ngrams("a", 2) == []


def test_dropped_letters_counts_letters_not_signs() -> None:
    assert count_dropped_letters(["a b, 1!", "é。中"]) == (2, 5)


@pytest.mark.parametrize(
    ("lines", "is_so"),
    [
        (["今天天气很好", "ok"], True),
        (["今 天 天 气 很 好"], False),
        (["the weather 好"], False),
        (["好天", "晴"], True),
        (["今天 天气 很好 我们 去 公园"], False),
        ([""], False),
    ],
)
def test_is_unspaced_tells_chinese_from_segmented_chinese(lines: list[str], is_so: bool) -> None:
    assert is_unspaced(lines) == is_so


def test_lcs_length_equals_the_table() -> None:
    rng = random.Random(1)
    for _ in range(400):
        letters = "abcdefgh"[: rng.randint(1, 8)]
        a = "".join(rng.choices(letters, k=rng.randint(0, 90)))
        b = "".join(rng.choices(letters, k=rng.randint(0, 90)))
        assert lcs_length(a, b) == _subsequence_by_table(a, b)


def _random_texts(rng: random.Random, words: list[str], count: int) -> list[str]:
    return [" ".join(rng.choices(words, k=rng.randint(0, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def oracle() -> Any:
    from rouge_score import rouge_scorer

    class Split:
        def __init__(self, name: str):
            self.tokenize = TOKENIZERS[name]

    def scorer(tokenize: str) -> Any:
        own = None if tokenize == "word" else Split(tokenize)
        return rouge_scorer.RougeScorer(list(rouge.VARIANTS), tokenizer=own)

    return scorer


WORDS = {
    "word": ["the", "The", "cat's", "a-b", "café", "x_1", "3.14", "don’t", "中文", ".", "I", "É"],
    "zh": ["中", "国", "人民", "GPT", "，", "2019年", "かな", "。", "a"],
    "char": ["中", "国", "人民", "A", "，", "b"],
}


@pytest.mark.parametrize("tokenize", list(WORDS))
@pytest.mark.parametrize("references", [1, 3])
def test_rouge_equals_rouge_score_line_by_line(oracle: Any, tokenize: str, references: int) -> None:
    rng = random.Random(references)
    words = WORDS[tokenize]
    lines = _random_texts(rng, words, 300)
    answers = [_random_texts(rng, words, 300) for _ in range(references)]
    scorer = oracle(tokenize)
    expected = [scorer.score_multi(list(a), h) for h, *a in zip(lines, *answers, strict=True)]
    for variant in rouge.VARIANTS:
        ours = rouge.sentences(lines, answers, variant=variant, tokenize=tokenize)
        for found, wanted in zip(ours, expected, strict=True):
            part = wanted[variant]
            assert (found.details["precision"], found.details["recall"], found.score) == part
        mean = rouge.score(lines, answers, variant=variant, tokenize=tokenize).score
        assert mean == pytest.approx(sum(e[variant].fmeasure for e in expected) / 300, abs=1e-14)
        assert mean > 0.05


def test_rouge_sums_of_lines_decide_the_score() -> None:
    rng = random.Random(3)
    lines, answers = (_random_texts(rng, WORDS["word"], 200) for _ in range(2))
    rows = rouge.statistics(lines, [answers], variant="rouge2")
    assert all(isinstance(n, int) for row in rows for n in row)
    sums = [sum(column) for column in zip(*rows, strict=True)]
    expected = rouge.score(lines, [answers], variant="rouge2").score
    assert rouge.from_sums(sums, variant="rouge2", tokenize="word") == pytest.approx(
        expected, abs=1e-12
    )


@pytest.mark.real_data
def test_rouge_on_real_text_equals_rouge_score(oracle: Any) -> None:
    data = Path(__file__).parents[3] / "shared" / "data"
    if not data.is_dir():
        pytest.skip("needs ../shared/data")
    english = [
        (data / "mt_outputs" / f"sum.{kind}.eng").read_text("utf-8").split("\n")[:200]
        for kind in ("sys1", "ref")
    ]
    rows = [
        json.loads(line)
        for line in (data / "zh_task" / "csl_title.dev.jsonl").read_text("utf-8").splitlines()[:60]
    ]
    # The lead of an abstract as its title: a usual baseline.
    chinese = [[row["input"][:30] for row in rows], [row["target"] for row in rows]]
    for (lines, answers), tokenize in ((english, "word"), (chinese, "zh")):
        scorer = oracle(tokenize)
        found = rouge.score(lines, [answers], tokenize=tokenize)
        expected = [scorer.score(a, h) for h, a in zip(lines, answers, strict=True)]
        for variant in rouge.VARIANTS:
            mean = sum(e[variant].fmeasure for e in expected) / len(expected)
            assert found.details[variant]["f"] == pytest.approx(mean, abs=1e-13)
            assert mean > 0.02
