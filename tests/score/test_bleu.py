"""BLEU, chrF and TER: hand arithmetic, sacrebleu on real files, what users do wrong."""

import json
import math
import random
import subprocess
import sys

import pytest
from sacrebleu import BLEU, CHRF, TER

from nlpkit.errors import UsageError
from nlpkit.score import named
from nlpkit.score.counts import bleu_tokens
from nlpkit.score.metrics import bleu, chrf, ter
from tests.conftest import REAL_DATA

CAT = [["the cat is on the desk"], ["there is a cat on the desk"]]


def lines_of(path: str) -> list[str]:
    text = (REAL_DATA / path).read_text("utf-8")
    return [line.rstrip() for line in text.removesuffix("\n").split("\n")]


# The documents' example (spec/scoring.md); by hand: each word counts at most as often as in the
# reference that has it most.
@pytest.mark.parametrize(
    ("hypothesis", "matched", "total"),
    [
        ("the cat are on the desk", 5, 6),
        ("is is is is is is", 1, 6),
        ("desk the on cat a is there", 7, 7),
    ],
)
def test_bleu_clips_words_as_the_documents_say(hypothesis: str, matched: int, total: int) -> None:
    details = bleu.score([hypothesis], CAT, tokenize="none").details
    assert (details["counts"][0], details["totals"][0]) == (matched, total)


def test_bleu_of_a_line_is_the_geometric_mean_times_the_penalty() -> None:
    # Matches 5/6, 3/5, 1/4 (on the desk), 0/3 -> exp: half of a match of three.
    found = bleu.score(["the cat are on the desk"], [CAT[1]], tokenize="none")
    assert found.details["counts"] == [4, 2, 1, 0]
    assert found.details["totals"] == [6, 5, 4, 3]
    # One reference of 7 words: the penalty is exp(1 - 7/6).
    mean = (4 / 6 * 2 / 5 * 1 / 4 * 1 / 6) ** 0.25
    assert found.score == pytest.approx(100 * math.exp(1 - 7 / 6) * mean, rel=1e-12)
    assert found.verbose.startswith("66.7/40.0/25.0/16.7 (BP = 0.846 ratio = 0.857 hyp_len = 6")


def test_bleu_document_variant_is_exp_of_the_sum_of_precisions() -> None:
    same = bleu.score(CAT[0], [CAT[0]], tokenize="none", variant="document")
    assert same.score == pytest.approx(math.e**4, rel=1e-15)
    found = bleu.score(["the cat are on the desk"], [CAT[1]], tokenize="none", variant="document")
    assert found.score == pytest.approx(math.exp(4 / 6 + 2 / 5 + 1 / 4), rel=1e-14)
    assert found.name == "BLEU-document"
    assert "|smooth:none|variant:document|version:" in found.signature
    assert any("not BLEU" in warning for warning in found.details["warnings"])


def test_bleu_takes_the_closest_reference_length_the_shorter_of_two() -> None:
    found = bleu.score(["a b c d"], [["a b c d e"], ["a b c"], ["a"]], tokenize="none")
    assert found.details["ref_len"] == 3


def test_bleu_counts_an_empty_reference() -> None:
    empty = bleu.score(["a"], [["a b c"], [""]])
    assert empty.signature.startswith("nrefs:2|")
    assert empty.details["ref_len"] == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"),
        (
            {"lowercase": True, "tokenize": "zh", "smooth_method": "floor"},
            "nrefs:1|case:lc|eff:no|tok:zh|smooth:floor[0.10]|version:2.6.0",
        ),
        (
            {"smooth_method": "add-k", "smooth_value": 2.0},
            "nrefs:1|case:mixed|eff:no|tok:13a|smooth:add-k[2.00]|version:2.6.0",
        ),
    ],
)
def test_bleu_signature_is_that_of_sacrebleu(options: dict, expected: str) -> None:
    found = bleu.score(["a b c d"], [["a b c d"]], **options)
    peer = BLEU(**options)
    peer.corpus_score(["a b c d"], [["a b c d"]])
    assert found.signature == expected == str(peer.get_signature())


def test_bleu_of_text_that_looks_tokenized_warns_unless_forced() -> None:
    lines = ["a b ."] * 100
    assert "100 lines" in bleu.score(lines, [lines]).details["warnings"][0]
    assert bleu.score(lines[1:], [lines[1:]]).details["warnings"] == []
    assert bleu.score(lines, [lines], force=True).details["warnings"] == []


def test_bleu_of_chinese_text_by_13a_warns() -> None:
    lines = ["今天天气很好，我们去公园。"]
    (warning,) = bleu.score(lines, [lines]).details["warnings"]
    assert "--tokenize zh" in warning
    assert bleu.score(lines, [lines], tokenize="zh").details["warnings"] == []
    assert bleu.score(["weather 天气"], [["weather 天气"]]).details["warnings"] == []


@pytest.mark.parametrize(
    "options",
    [
        {"smooth_method": "floor", "smooth_value": -1.0},
        {"smooth_method": "add-k", "smooth_value": math.nan},
    ],
)
def test_bleu_with_a_wrong_option_is_refused(options: dict) -> None:
    with pytest.raises(UsageError, match="must be"):
        bleu.score(["a"], [["a"]], **options)


def test_scores_without_sacrebleu_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bleu_tokens._borrow_tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UsageError, match=r"sacrebleu is not installed \(pip install sacrebleu\)$"):
        ter.score(["a"], [["a"]])
    with pytest.raises(UsageError, match=r"^the tokenizer intl: sacrebleu is not"):
        bleu.score(["a"], [["a"]], tokenize="intl")
    for metric in (bleu, chrf):
        assert metric.score(["a b c d"], [["a b c d"]]).score == pytest.approx(100)


def test_bleu_with_a_tokenizer_that_lacks_its_library_says_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(UsageError, match=r"ja-mecab cannot be used: .*pip install") as error:
        bleu.score(["a"], [["a"]], tokenize="ja-mecab")
    assert "\n" not in str(error.value)


def test_bleu_with_a_tokenizer_whose_model_cannot_be_fetched_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unreachable:
        def __init__(self) -> None:
            raise OSError("<urlopen error: no network>")

    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.Flores200Tokenizer", Unreachable)
    with pytest.raises(UsageError, match=r"flores200 cannot be used: .*from the network: <urlopen"):
        bleu.score(["a"], [["a"]], tokenize="flores200")


def test_bleu_loads_the_model_of_a_tokenizer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    class Flores:
        def __init__(self) -> None:
            loaded.append(self)

        def signature(self) -> str:
            return "flores200"

    bleu_tokens._borrow_tokenizer.cache_clear()
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.Flores200Tokenizer", Flores)
    for _ in range(3):  # as the resamples of -ci
        bleu.from_sums([4, 4, 4, 3, 2, 1, 4, 3, 2, 1], tokenize="flores200")
    bleu_tokens._borrow_tokenizer.cache_clear()
    assert len(loaded) == 1


def test_bleu_imports_the_standard_library_alone() -> None:
    code = (
        "import sys, json; from nlpkit.score.metrics import bleu;"
        "bleu.score(['a b.'], [['a b.']]); list(bleu.sentences(['中'], [['中']], tokenize='zh'));"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert not {"numpy", "sacrebleu", "torch", "pydantic", "regex"} & set(json.loads(shown.stdout))


def test_bleu_of_a_very_long_line_takes_no_quadratic_time() -> None:
    # 50,000 words of 10,000 kinds: parts of a second here would be minutes if each kind were
    # searched for.
    words = " ".join(str(index * index % 20011) for index in range(50_000))
    assert bleu.score([words], [[words]], tokenize="none").score == pytest.approx(100)


def assert_equal(metric: object, peer: object, hypotheses: list, references: list, **o) -> None:
    found = metric.score(hypotheses, references, **o)  # type: ignore[attr-defined]
    expected = peer.corpus_score(hypotheses, references)  # type: ignore[attr-defined]
    assert found.score.hex() == float(expected.score).hex()
    assert f"{found.name} = {found.score:.2f} {found.verbose}".strip() == str(expected)
    assert found.signature == str(peer.get_signature())  # type: ignore[attr-defined]


TED = [("ted.sys1.detok.eng", "ted.ref.detok.eng"), ("ted.sys2.eng", "ted.ref.eng")]


@pytest.mark.real_data
@pytest.mark.parametrize("files", TED)
@pytest.mark.parametrize(
    "options",
    [
        {"tokenize": "13a"},
        {"tokenize": "none"},
        {"tokenize": "char"},
        {"tokenize": "zh"},
        {"tokenize": "intl"},
        {"lowercase": True, "smooth_method": "add-k"},
    ],
)
def test_bleu_of_real_systems_is_that_of_sacrebleu(files: tuple[str, str], options: dict) -> None:
    hypotheses, reference = (lines_of(f"mt_outputs/{name}") for name in files)
    assert_equal(bleu, BLEU(**options), hypotheses, [reference], **options)


@pytest.mark.real_data
def test_bleu_of_real_systems_with_five_references_is_that_of_sacrebleu() -> None:
    names = [f"parallel/multi30k_task2.test2016.{number}.en" for number in range(1, 6)]
    hypotheses = lines_of("parallel/multi30k.test2016.en")
    references = [lines_of(name) for name in names]
    assert_equal(bleu, BLEU(), hypotheses, references)


@pytest.mark.real_data
def test_bleu_of_real_chinese_is_that_of_sacrebleu() -> None:
    chinese = [line.split("\t")[1] for line in lines_of("parallel/news_commentary13.en-zh.tsv")]
    # Each line against itself with a piece cut out of its middle.
    cut = [line[: len(line) // 3] + line[len(line) // 2 :] for line in chinese]
    for name in ("zh", "13a", "char"):
        assert_equal(bleu, BLEU(tokenize=name), cut, [chinese], tokenize=name)


@pytest.mark.real_data
@pytest.mark.parametrize(
    "options", [{}, {"word_order": 2}, {"lowercase": True, "whitespace": True, "beta": 1}]
)
def test_chrf_of_real_systems_is_that_of_sacrebleu(options: dict) -> None:
    hypotheses, reference = (lines_of(f"mt_outputs/{name}")[:300] for name in TED[0])
    references = [reference, [*reference[1:], ""]]
    assert_equal(chrf, CHRF(**options), hypotheses, references, **options)
    each = list(chrf.sentences(hypotheses[:20], references_of(references, 20), **options))
    for index, found in enumerate(each):
        lines = [lines[index] for lines in references]
        assert found.score == CHRF(**options).sentence_score(hypotheses[index], lines).score


@pytest.mark.real_data
@pytest.mark.parametrize(
    "options", [{}, {"case_sensitive": True, "normalized": True}, {"no_punct": True}]
)
def test_ter_of_real_systems_is_that_of_sacrebleu(options: dict) -> None:
    hypotheses, reference = (lines_of(f"mt_outputs/{name}")[:60] for name in TED[0])
    references = [reference, [*reference[1:], ""]]
    assert_equal(ter, TER(**options), hypotheses, references, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"normalized": True}, {"normalized": True, "asian_support": True},
     {"normalized": True, "no_punct": True}, {"no_punct": True, "asian_support": True}],
)  # fmt: skip
def test_ter_of_odd_lines_is_that_of_sacrebleu(options: dict) -> None:
    # References are prepared twice there: rules of `normalized` split some words only then.
    parts = ["a", "the", ".", "，", "猫", "it's", "U.S.", "3,000.5", "--", "&amp;", "(x)", "é",
             "5-6", "、", "（", " ", " "]  # fmt: skip
    rng = random.Random(0)

    def draw() -> str:
        return "".join(rng.choices(parts, k=rng.choice([0, 1, 4, 9])))

    lines = [(draw(), [draw() for _ in range(rng.choice([1, 2]))]) for _ in range(300)]
    fixed = {"asian_support": ("5-63,000.5 (x)", ["在 it's\t e\u0301 --"]),
             "no_punct": ("， &amp;", ["3,000.5坐（it's."])}  # fmt: skip
    for hypothesis, references in [*lines, *(fixed[name] for name in fixed if name in options)]:
        found = ter.score([hypothesis], [[each] for each in references], **options)
        theirs = TER(**options).sentence_score(hypothesis, references)
        assert found.score == pytest.approx(theirs.score, rel=1e-12), (hypothesis, references)


def references_of(references: list[list[str]], number: int) -> list[list[str]]:
    return [lines[:number] for lines in references]


@pytest.mark.parametrize("metric", [bleu, chrf, ter])
def test_scores_of_sums_are_those_of_the_corpus(metric: object) -> None:
    hypotheses = ["the cat are on the desk", "there is", "a b c"]
    references = [["the cat is on the desk", "there is a desk", "a b c d"]]
    rows = list(metric.statistics(hypotheses, references))  # type: ignore[attr-defined]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    found = metric.score(hypotheses, references)  # type: ignore[attr-defined]
    assert metric.from_sums(sums) == found.score  # type: ignore[attr-defined]


def test_options_of_scores_are_their_keyword_arguments() -> None:
    for metric in (bleu, chrf, ter):
        defaults = {option.name: option.default for option in metric.OPTIONS}
        plain = metric.score(["a b c d e"], [["a b c d f"]])
        assert metric.score(["a b c d e"], [["a b c d f"]], **defaults) == plain


def test_ter_of_lines_with_unequal_numbers_of_answers() -> None:
    lines = ["a cat sat on the mat", "no dog is here"]
    answers = [
        ["the cat sat", "a cat sat on it all day long"],
        ["there is no dog", "no dog here at all today", "no dog"],
    ]
    columns = [[row[k] if k < len(row) else None for row in answers] for k in range(3)]
    for name, oracle in (("ter", TER()), ("chrf", CHRF())):
        expected = oracle.corpus_score(lines, columns).score
        assert named.score(name, lines, answers).score == pytest.approx(expected)
