"""Verdicts on expectations: the permutation test is scipy's, and what few seeds can say."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import permutation_test

from nlpkit.errors import RecipeError
from nlpkit.evaluate import experiment_table, suite
from nlpkit.evaluate.experiment import Expectation, Experiment, Rule
from nlpkit.report import seeds
from nlpkit.report.sweep import is_lower_better

BETTER = {by: Expectation(better=["a"], than=["b"], by=by) for by in ("accuracy", "loss")}
NAN = float("nan")


def judge(first: list[float], other: list[float], by: str = "accuracy") -> dict:
    return experiment_table.judge(BETTER[by], Rule(), first, other)


@pytest.mark.parametrize("sizes", [(3, 3), (4, 3), (5, 5)])
@pytest.mark.parametrize(("by", "sign"), [("accuracy", 1), ("loss", -1)])
def test_p_is_that_of_the_exact_permutation_test(
    sizes: tuple[int, int], by: str, sign: int
) -> None:
    draw = np.random.default_rng(sum(sizes))
    first, other = draw.normal(0.5, 1, sizes[0]), draw.normal(0, 1, sizes[1])
    expected = permutation_test(
        (sign * first, sign * other),
        lambda x, y: np.mean(x) - np.mean(y),
        n_resamples=np.inf,
        alternative="greater",
    )
    found = judge(first.tolist(), other.tolist(), by)
    assert found["p"] == pytest.approx(expected.pvalue)
    assert found["difference"] == pytest.approx(sign * (first.mean() - other.mean()))


@pytest.mark.parametrize(
    ("first", "other", "verdict"),
    [
        ([3.0, 4.0, 5.0], [0.0, 1.0, 2.0], "reproduced"),
        ([0.0, 1.0, 2.0], [3.0, 4.0, 5.0], "not reproduced"),
        ([0.0, 1.0, 5.0], [3.0, 4.0, 2.0], "no difference seen"),
        ([3.0, 4.0], [0.0, 1.0], "too few seeds"),  # 1 of 6 splits is the least p
        ([3.0], [0.0], "too few seeds"),
        ([3.0, 4.0, 5.0], [NAN, NAN, NAN], "reproduced"),
        ([NAN, 4.0, 5.0], [NAN, 3.0, 2.0], "no difference seen"),
    ],
)
def test_verdict(first: list[float], other: list[float], verdict: str) -> None:
    assert judge(first, other)["verdict"] == verdict


def test_lower_is_better_where_the_figure_says_so() -> None:
    assert judge([0.0, 1.0, 2.0], [3.0, 4.0, 5.0], "loss")["verdict"] == "reproduced"
    for by in ("loss.mlm", "loss.rtd"):
        assert is_lower_better(f"held_out.{by}")
    # What objectives count beside their losses, in `parts`: shares of right answers.
    for by in ("loss.rtd_accuracy", "loss.rtd_recall", "loss.nsp_accuracy", "loss.reward_margin"):
        assert not is_lower_better(f"held_out.{by}")


@pytest.mark.parametrize(
    ("first", "verdict"),
    [
        ([1.0, 1.001, 1.002], "reproduced"),
        ([2.0, 2.001, 2.002], "not reproduced"),
        ([0.0, 1.0, 2.0], "too few seeds"),  # the interval is wider than what is allowed
        ([1.0, 1.0, NAN], "not reproduced"),
    ],
)
def test_the_same_within_a_share(first: list[float], verdict: str) -> None:
    same = Expectation(same=["a"], than=["b"], within=0.02)
    found = experiment_table.judge(same, Rule(), first, [1.0, 1.001, 0.999])
    assert found["verdict"] == verdict


@pytest.mark.slow
def test_equal_settings_are_seldom_called_different() -> None:
    draw = np.random.default_rng(7)
    sets = draw.normal(size=(400, 2, 3)).tolist()
    found = [judge(*each)["verdict"] for each in sets]
    # One-sided at 0.05 each way: at most a tenth, 40; 5 standard errors above.
    assert 0 < found.count("reproduced") + found.count("not reproduced") <= 70


def test_ranks_of_ties_stand_for_values_if_a_run_diverged() -> None:
    # Ranks 2.5, 2.5 against 0.5, 4, 0.5: 3 of the 10 pairs have a sum of 5 or more, all but these
    # and the pairs of 2.5 and 4 one of 5 or less.
    assert seeds.permute([2.0, 2.0], [NAN, 5.0, NAN]) == (0.3, 0.8, 0.1)


def test_several_conditions_count_as_their_mean_of_each_seed() -> None:
    one, other = {"seed-1": 0.5, "seed-2": NAN, "seed-3": 1.0}, {"seed-2": 0.5, "seed-1": 0.75}
    mean = experiment_table._average([one, other])
    assert mean == pytest.approx([0.625, NAN], nan_ok=True)  # seed 3 is not there yet


def test_figure_is_called_as_eval_calls_it() -> None:
    found = Expectation(better=["a"], than=["b"], by="f1:average=binary, positive=good")
    assert found.by == "f1:average=binary,positive=good"


def test_changes_of_an_experiment_are_named_with_their_places(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(
        "name: e\nconditions: {a: {recipe: x}, b: {recipe: x, data: {train: y}}}\n"
        "equal: {steps: 2}\nexpect: [{better: a, than: b}]\n"
    )
    before = suite.read(file, "e.yaml", Experiment)[0].dump()
    sets = ("equal.steps=5", "conditions.a.train.lr=0.1", "eval.beam=4")
    found, document = suite.read(file, "e.yaml", Experiment, sets)
    with pytest.raises(RecipeError) as error:
        found.check_unchanged(before, document, Path("o"))
    advice = "has changed since the first run (o); a new experiment needs another name"
    named = {each.partition("=")[0] for each in sets}
    assert {*error.value.problems} == {f"--set {name}: {advice}" for name in named}
    found.check_unchanged(found.dump(), document, Path("o"))
