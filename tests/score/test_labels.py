"""Accuracy, F1, MCC and the correlations: hand arithmetic, scikit-learn and scipy as oracles."""

import random
import subprocess
import sys
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest

from nlpkit.contracts.metric import BadLine
from nlpkit.errors import DataError, UsageError
from nlpkit.score import named
from nlpkit.score.counts import labels, numbers
from nlpkit.score.metrics import accuracy, f1, mcc, pearson, spearman

# Right: 3 a, 2 b, 1 c. Predicted: a a b | b a | b.
RIGHT = ["a", "a", "a", "b", "b", "c"]
PREDICTED = ["a", "a", "b", "b", "a", "b"]


@pytest.fixture(scope="module")
def sklearn() -> ModuleType:
    import sklearn.metrics

    return sklearn.metrics


@pytest.fixture(scope="module")
def stats() -> ModuleType:
    import scipy.stats

    return scipy.stats


def _random_labels(rng: random.Random) -> tuple[list[str], list[str]]:
    classes = [str(k) for k in range(rng.randint(2, 6))]
    lines = rng.randint(2, 40)
    right = rng.choices(classes, k=lines)
    return [r if rng.random() < 0.5 else rng.choice(classes) for r in right], right


def test_accuracy_counts_right_lines() -> None:
    found = accuracy.score(PREDICTED, [RIGHT])
    assert found.score == 3 / 6
    assert found.verbose == "3 of 6 right"
    assert [s.score for s in accuracy.sentences(PREDICTED, [RIGHT])] == [1, 1, 0, 1, 0, 0]


def test_labels_surrounding_white_space_does_not_count() -> None:
    assert accuracy.score([" 1\t", "0"], [["1", "0 "]]).score == 1


@pytest.mark.parametrize("metric", [accuracy, f1, mcc])
def test_labels_empty_line_is_a_bad_line_with_its_place(metric: ModuleType) -> None:
    with pytest.raises(BadLine, match="there must be a label in every line") as caught:
        metric.score(["1", "0"], [["1", "  "]])
    assert (caught.value.file, caught.value.index) == (1, 1)
    with pytest.raises(BadLine) as caught:
        metric.score(["", "0"], [["1", "0"]])
    assert (caught.value.file, caught.value.index) == (0, 0)


def test_labels_that_a_model_did_not_write_are_wrong_answers() -> None:
    assert named.score("accuracy", ["a", " ", ""], ["a", "b", "c"]).score == pytest.approx(1 / 3)
    with pytest.raises(named.WrongScore, match="the prediction of row 1: "):
        named.score("pearson", ["", "2"], ["1", "2"])


@pytest.mark.parametrize("metric", [accuracy, f1, mcc])
def test_labels_that_are_never_right_are_said(metric: ModuleType) -> None:
    found = metric.score(["1.0", "1.0", "0"], [["1", "1", "0"]])
    assert "predicted, but never right: 1.0 (lines: 2)" in found.details["warnings"]


@pytest.mark.parametrize("metric", [accuracy, f1, mcc])
def test_labels_no_line_is_an_error(metric: ModuleType) -> None:
    with pytest.raises(DataError, match="no line to score"):
        metric.score([], [[]])


def test_labels_that_are_never_right_are_looked_up_a_few_times_for_each_line() -> None:
    looked_up = []

    class Label(str):
        def __hash__(self) -> int:
            looked_up.append(self)
            return super().__hash__()

    predicted = [Label(f"p{number}") for number in range(200)]
    found = labels.find_never_right(labels.Labels(list(predicted), ["r"] * 200, []))
    assert found == ["predicted, but never right: p0, p1, p10, p100, p101, ... (lines: 200)"]
    assert len(looked_up) <= 5 * len(predicted)


def test_labels_are_sorted_by_number_then_name() -> None:
    read = labels.read(["10", "x"], [["9", "-1"]])
    assert read.known == ["-1", "9", "10", "x"]


def test_f1_of_each_class_and_their_averages_by_hand() -> None:
    # a: 2 right of 3 predicted and 3 right; b: 1 of 3 and 2; c: 0 of 0 and 1.
    found = f1.score(PREDICTED, [RIGHT])
    classes = found.details["by_class"]
    assert classes["a"] == pytest.approx(
        {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3, "predicted": 3}
    )
    assert classes["b"] == pytest.approx(
        {"precision": 1 / 3, "recall": 1 / 2, "f1": 2 / 5, "support": 2, "predicted": 3}
    )
    assert classes["c"] == {"precision": 0, "recall": 0, "f1": 0, "support": 1, "predicted": 0}
    assert found.score == pytest.approx((2 / 3 + 2 / 5 + 0) / 3)
    assert found.details["warnings"] == ["precision is set to 0 for what is never predicted: c"]
    weighted = f1.score(PREDICTED, [RIGHT], average="weighted")
    assert weighted.score == pytest.approx((3 * 2 / 3 + 2 * 2 / 5) / 6)
    assert f1.score(PREDICTED, [RIGHT], average="micro").score == 3 / 6


def test_f1_binary_scores_the_positive_class_alone() -> None:
    predicted, right = ["1", "1", "0", "1"], ["1", "0", "1", "1"]
    found = f1.score(predicted, [right], average="binary")
    assert found.score == pytest.approx(2 / 3)
    assert found.signature == "avg:binary|classes:2|zero:0|positive:1"
    assert f1.score(predicted, [right], average="binary", positive="0").score == 0


def test_f1_binary_of_many_classes_or_an_absent_label_is_refused() -> None:
    with pytest.raises(UsageError, match="needs two classes, there are 3: choose macro"):
        f1.score(PREDICTED, [RIGHT], average="binary", positive="a")
    message = "positive label '1' is in neither file; labels: no, yes"
    with pytest.raises(UsageError, match=message):
        f1.score(["yes", "no"], [["yes", "yes"]], average="binary")
    with pytest.raises(DataError, match="neither file; labels: 0"):  # undefined, no mistake
        f1.score(["0", "0"], [["0", "0"]], average="binary")


def test_f1_per_class_shows_a_row_for_each() -> None:
    table = f1.score(PREDICTED, [RIGHT], per_class=True).verbose.split("\n")
    assert table[1].split() == ["class", "precision", "recall", "f1", "support"]
    assert table[3].split() == ["b", "0.3333", "0.5000", "0.4000", "2"]
    assert len(table) == 5


def test_mcc_of_two_classes_is_the_textbook_formula() -> None:
    # tp 3, tn 1, fp 1, fn 1; then tp 3, tn 2, fp 0, fn 1.
    one_each = mcc.score(list("110011"), [list("110110")])
    assert one_each.score == pytest.approx((3 * 1 - 1 * 1) / (4 * 4 * 2 * 2) ** 0.5)
    some = mcc.score(list("111000"), [list("111100")])
    assert some.score == pytest.approx(6 / 72**0.5)


def test_mcc_with_one_class_is_zero_and_said() -> None:
    found = mcc.score(["1", "1"], [["1", "0"]])
    assert found.score == 0
    assert found.details["warnings"] == ["undefined, set to 0: the only predicted label is 1"]
    assert mcc.score(["1", "1"], [["1", "1"]]).score == 0


def test_labels_equal_scikit_learn(sklearn: ModuleType) -> None:
    rng = random.Random(5)
    for _ in range(60):
        predicted, right = _random_labels(rng)
        assert accuracy.score(predicted, [right]).score == sklearn.accuracy_score(right, predicted)
        expected = sklearn.matthews_corrcoef(right, predicted)
        assert mcc.score(predicted, [right]).score == pytest.approx(expected, abs=1e-14)
        for average in ("macro", "micro", "weighted"):
            found = f1.score(predicted, [right], average=average).details
            *wanted, _ = sklearn.precision_recall_fscore_support(
                right, predicted, average=average, zero_division=0
            )
            ours = [found["precision"], found["recall"], found["f1"]]
            assert ours == pytest.approx(wanted, abs=1e-14)


def test_f1_binary_equals_scikit_learn(sklearn: ModuleType) -> None:
    rng = random.Random(6)
    for _ in range(30):
        lines = rng.randint(2, 20)
        predicted, right = (["1", "0", *rng.choices("01", k=lines)] for _ in range(2))
        expected = sklearn.f1_score(right, predicted, pos_label="1", zero_division=0)
        found = f1.score(predicted, [right], average="binary").score
        assert found == pytest.approx(expected, abs=1e-14)


def test_labels_sums_of_lines_decide_the_score() -> None:
    rng = random.Random(7)
    cases: list[tuple[Any, dict[str, str]]] = [(accuracy, {}), (mcc, {})]
    cases += [(f1, {"average": a}) for a in ("macro", "micro", "weighted")]
    for _ in range(20):
        predicted, right = _random_labels(rng)
        for metric, options in cases:
            rows = metric.statistics(predicted, [right], **options)
            sums = [sum(column) for column in zip(*rows, strict=True)]
            expected = metric.score(predicted, [right], **options).score
            assert metric.from_sums(sums, **options) == expected


def test_f1_of_a_resample_is_over_the_classes_that_are_in_it(sklearn: ModuleType) -> None:
    rows = list(f1.statistics(PREDICTED, [RIGHT]))
    sums = [sum(column) for column in zip(*rows[:5], strict=True)]
    expected = sklearn.f1_score(RIGHT[:5], PREDICTED[:5], average="macro")
    assert f1.from_sums(sums, average="macro") == pytest.approx(expected, abs=1e-15)
    assert f1.from_sums(sums, average="macro") == f1.score(PREDICTED[:5], [RIGHT[:5]]).score


def test_pearson_by_hand() -> None:
    # Deviations -1 0 1 and -1 1 0: covariance 1, norms sqrt(2) each.
    assert pearson.score(["1", "2", "3"], [["1", "3", "2"]]).score == pytest.approx(0.5)
    assert pearson.score(["1", "2", "4"], [["-8", "-16", "-32"]]).score == -1


def test_spearman_shares_ranks_of_equal_numbers() -> None:
    assert numbers.double_ranks([10, 30, 20, 30, 5]) == [4, 9, 6, 9, 2]
    # Ranks 1, 2.5, 2.5 and 1, 2, 3: covariance 1.5, variances 1.5 and 2.
    found = spearman.score(["1", "7", "7"], [["0", "5", "1e9"]])
    assert found.score == pytest.approx(1.5 / (1.5 * 2) ** 0.5)
    assert (found.details["ties_in_hypotheses"], found.details["ties_in_references"]) == (1, 0)


@pytest.mark.parametrize("metric", [pearson, spearman])
def test_correlation_of_a_constant_is_undefined_and_no_zero(metric: ModuleType) -> None:
    with pytest.raises(
        DataError, match=r"undefined correlation: all 3 numbers of the hypotheses are 0\.1"
    ):
        metric.score(["0.1", "0.10", "1e-1"], [["1", "2", "3"]])
    with pytest.raises(
        DataError, match="undefined correlation: all 2 numbers of the references are 4"
    ):
        metric.score(["1", "2"], [["4", "4.0"]])
    with pytest.raises(DataError, match="at least two lines, there is 1"):
        metric.score(["1"], [["2"]])


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize("line", ["", "nan", "inf", "1e999", "1 2", "1_0", "one", "１", "0x1"])
def test_correlation_line_without_a_number_is_a_bad_line(metric: ModuleType, line: str) -> None:
    with pytest.raises(BadLine, match="one finite number in every line") as caught:
        metric.score(["1", "2"], [["1", line]])
    assert (caught.value.file, caught.value.index) == (1, 1)


def test_pearson_of_huge_tiny_and_shifted_numbers_keeps_its_digits() -> None:
    x, y = ["1e308", "-1e308", "5e307"], ["1e-300", "-1e-300", "5e-301"]
    assert pearson.score(x, [y]).score == pytest.approx(1, abs=1e-15)
    shifted = [str(10**9 + k) for k in (1, 2, 4, 8)]
    exact = pearson.score(["1", "2", "4", "8"], [["3", "1", "2", "9"]]).score
    assert pearson.score(shifted, [["3", "1", "2", "9"]]).score == pytest.approx(exact, abs=1e-9)


def test_pearson_squared_equals_the_fraction() -> None:
    rng = random.Random(8)
    for _ in range(50):
        x, y = ([rng.randint(-50, 50) for _ in range(20)] for _ in range(2))
        dx, dy = ([Fraction(v) - Fraction(sum(s), 20) for v in s] for s in (x, y))
        top = sum(a * b for a, b in zip(dx, dy, strict=True))
        squared = top**2 / (sum(a * a for a in dx) * sum(b * b for b in dy))
        found = pearson.score(list(map(str, x)), [list(map(str, y))]).score
        assert found * abs(found) == pytest.approx(float(squared) * (1 if top > 0 else -1))


def test_correlations_equal_scipy(stats: ModuleType) -> None:
    rng = random.Random(9)
    for _ in range(60):
        lines = rng.randint(3, 60)
        x = [rng.choice([rng.gauss(0, 1), rng.randint(0, 3)]) for _ in range(lines)]
        y = [v + rng.gauss(0, 1) if rng.random() < 0.7 else rng.randint(0, 3) for v in x]
        texts = [repr(v) for v in x], [[repr(v) for v in y]]
        wanted = stats.pearsonr(x, y).statistic, stats.spearmanr(x, y).statistic
        assert pearson.score(*texts).score == pytest.approx(wanted[0], abs=1e-13)
        assert spearman.score(*texts).score == pytest.approx(wanted[1], abs=1e-13)


def test_scores_import_no_library() -> None:
    names = (
        "accuracy cer distinct exact_match f1 mcc pearson perplexity rouge spearman squad_f1 wer"
    )
    heavy = "sklearn scipy nltk numpy torch pydantic transformers rouge_score jiwer"
    code = (
        f"import sys\nfor n in {names!r}.split(): __import__('nlpkit.score.metrics.' + n)\n"
        f"print([m for m in {heavy!r}.split() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
