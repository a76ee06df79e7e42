"""`nlpkit report` of several runs: the table, its order, and whether two settings differ.

Runs are written by hand; expected intervals come from scipy.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from nlpkit import cli, report
from nlpkit.errors import FileError, UsageError
from nlpkit.report import sweep
from nlpkit.report.seeds import t_cdf, t_quantile, welch


def write_run(
    path: Path,
    losses: list[float | None],
    *,
    lr: float = 0.1,
    seed: int = 1,
    state: str = "finished",
    best_by: str = "loss",
    more: str = "",
    **scores: float,
) -> Path:
    """Write a run with an evaluation every 10 steps."""
    path.mkdir(parents=True)
    path.joinpath("recipe.yaml").write_text(
        f"name: {path.name}\nseed: {seed}\nout: {path}\n"
        f"train: {{steps: 40, lr: {lr}, best_by: {best_by}, {more}}}\n"
    )
    status = {"finished": state == "finished", "diverged": state == "diverged"}
    path.joinpath("run.json").write_text(json.dumps(status))
    with open(path / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step, loss in enumerate(losses, 1):
            file.write(json.dumps({"step": 10 * step, "tokens": step, "loss": 2.5}) + "\n")
            held_out = {"loss": loss, "metrics": scores}
            if loss is not None:
                file.write(json.dumps({"step": 10 * step, "held_out": held_out}) + "\n")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A grid of three rates and two seeds, of which one diverged and one has no evaluation."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "g"
    for lr, seed, losses, state in (
        (0.1, 1, [3.0, 2.0, 2.25], "finished"),
        (0.1, 2, [2.5], "finished"),
        (0.2, 1, [1.0], "finished"),
        (0.2, 2, [1.75], "diverged"),
        (0.9, 1, [None], "not finished"),
    ):
        write_run(out / f"lr-{lr}/seed-{seed}", losses, lr=lr, seed=seed, state=state)
    return out


def printed(capsys, *arguments: object, code: int = 0) -> tuple[str, str]:
    assert cli.run(["report", *map(str, arguments)]) == code
    return capsys.readouterr()


def test_table_has_the_settings_that_differ_and_the_best_evaluation_sorted(folder, capsys):
    out, err = printed(capsys, folder)
    runs, groups = out.split("\n\n")
    assert [line.split() for line in runs.splitlines()] == [
        ["run", "seed", "train.lr", "state", "steps", "loss", "best_step", "held_out.loss"],
        ["lr-0.2/seed-1", "1", "0.2", "finished", "10", "2.5000", "10", "1.0000"],
        ["lr-0.2/seed-2", "2", "0.2", "diverged", "10", "2.5000", "10", "1.7500"],
        ["lr-0.1/seed-1", "1", "0.1", "finished", "30", "2.5000", "20", "2.0000"],
        ["lr-0.1/seed-2", "2", "0.1", "finished", "10", "2.5000", "10", "2.5000"],
        ["lr-0.9/seed-1", "1", "0.9", "not", "finished", "10", "2.5000", "–", "–"],
    ]
    # Means of the finished runs; the deviation of 2.0 and 2.5 is 0.25 sqrt 2.
    assert [line.split() for line in groups.splitlines()] == [
        ["train.lr", "seeds", "mean", "held_out.loss", "std"],
        ["0.2", "1", "1.0000", "–"],
        ["0.1", "2", "2.2500", "0.3536"],
        ["0.9", "0", "–", "–"],
    ]
    assert f"page: {folder}/report.html" in err
    assert (folder / "report.html").is_file()


def test_table_as_json_and_as_cells_for_csv(folder, capsys):
    found = json.loads(printed(capsys, folder, "--json", "--sort", "train.lr")[0])
    assert found["report"] == f"{folder}/report.html"
    assert [row["settings"]["train.lr"] for row in found["rows"]] == [0.1, 0.1, 0.2, 0.2, 0.9]
    assert found["rows"][0] == {
        "run": "lr-0.1/seed-1",
        "path": f"{folder}/lr-0.1/seed-1",
        "state": "finished",
        "settings": {"seed": 1, "train.lr": 0.1},
        "figures": {"steps": 30, "loss": 2.5, "best_step": 20, "held_out.loss": 2.0,
                    "held_out.perplexity": None, "held_out.bits_per_character": None},
    }  # fmt: skip
    assert found["groups"] == []  # no figure is the one of the table
    table = sweep.make_table(report.read([folder], may_be_empty=True))
    assert table.columns == ["run", "seed", "train.lr", "state", "steps", "loss", "best_step",
                             "held_out.loss"]  # fmt: skip
    cells = table.cells()
    assert [cells[0][name] for name in table.columns] == [
        "lr-0.2/seed-1", 1, 0.2, "finished", 10, 2.5, 10, 1.0,
    ]  # fmt: skip
    assert all(isinstance(v, str | int | float | None) for row in cells for v in row.values())


def test_scores_are_sorted_from_the_highest_and_error_rates_from_the_lowest(tmp_path, capsys):
    for seed, (accuracy, wer) in enumerate([(0.5, 0.3), (0.9, 0.1), (0.7, 0.2)]):
        write_run(tmp_path / f"r{seed}", [1.0 + seed], seed=seed, best_by="accuracy",
                  accuracy=accuracy, wer=wer)  # fmt: skip
    for options, order in (
        ([], [1, 2, 0]),  # by train.best_by
        (["--sort", "held_out.accuracy"], [1, 2, 0]),
        (["--sort", "held_out.wer"], [1, 2, 0]),
        (["--sort", "held_out.loss"], [0, 1, 2]),
        (["--sort", "seed"], [0, 1, 2]),
        (["--sort", "run"], [0, 1, 2]),
    ):
        found = json.loads(printed(capsys, tmp_path, "--json", *options)[0])
        assert [row["run"] for row in found["rows"]] == [f"r{n}" for n in order], options


def test_sort_by_what_is_no_column_names_the_nearest(folder, capsys):
    _, err = printed(capsys, folder, "--sort", "held_out.los", code=2)
    assert err == "nlpkit: --sort held_out.los: no such column, did you mean held_out.loss?\n"
    with pytest.raises(UsageError, match=r"columns: run, seed, train\.lr, state, steps, loss"):
        sweep.make_table(report.read([folder]), "zzz")


def test_run_that_has_made_no_step_is_in_the_table_and_not_on_the_page(folder, capsys):
    write_run(folder / "lr-0.3/seed-1", [], lr=0.3, state="not finished")
    out, _ = printed(capsys, folder)
    assert "lr-0.3/seed-1" in out
    assert "lr-0.3/seed-1" not in (folder / "report.html").read_text("utf-8")
    alone = write_run(folder.parent / "h/r", [])
    with pytest.raises(FileError, match="nothing to report yet"):
        report.write([alone.parent])
    out, err = printed(capsys, alone.parent)
    assert out.splitlines()[1].split() == ["r", "finished", "0"]
    assert err.endswith("no page: no run has made a step\n")
    empty = folder.parent / "empty"
    empty.mkdir()
    assert cli.run(["report", str(empty)]) == 4
    assert "not a run directory: it has no recipe.yaml" in capsys.readouterr().err


def test_seeds_are_in_the_order_of_numbers(tmp_path):
    for seed in (10, 9, 1):
        write_run(tmp_path / f"lr-1/seed-{seed}", [1.0], seed=seed)
    labels = [history.label for history in report.read([tmp_path])]
    assert labels == [f"lr-1/seed-{seed}" for seed in (1, 9, 10)]


def seeds(folder: Path, name: str, losses: list[float], lr: float) -> Path:
    for seed, loss in enumerate(losses, 1):
        write_run(folder / name / f"seed-{seed}", [loss], seed=seed, lr=lr)
    return folder / name


def test_difference_of_two_directories_of_seeds_is_welchs(tmp_path, capsys, monkeypatch):
    from scipy import stats

    monkeypatch.chdir(tmp_path)
    a, b = [2.0, 2.1, 1.9], [1.0, 1.3, 1.1, 0.9]
    seeds(tmp_path, "a", a, 0.1)
    seeds(tmp_path, "b", b, 0.2)
    write_run(tmp_path / "b/seed-5", [9.0], seed=5, lr=0.2, state="diverged")  # left out
    out, err = printed(capsys, "a", "b")
    expected = stats.ttest_ind(b, a, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert out.splitlines()[-1] == (
        f"held_out.loss: a 2.0000 (3 seeds), b 1.0750 (4 seeds): difference -0.9250, "
        f"95 % interval {low:+.4f} to {high:+.4f} (Welch, p = {expected.pvalue:.2g}): they differ"
    )
    assert "1 not finished, so not compared" in err
    [found] = json.loads(printed(capsys, "a", "b", "--json")[0])["differences"]
    assert found["verdict"] == "difference"
    assert found["interval"] == pytest.approx([low, high], rel=1e-9)
    assert found["p"] == pytest.approx(expected.pvalue, rel=1e-9)
    # The runs named one by one are the same question.
    paths = sorted([*Path("b").iterdir(), *Path("a").iterdir()])
    [again] = json.loads(printed(capsys, *paths, "--json")[0])["differences"]
    assert again["interval"] == found["interval"]
    assert (again["first"], again["other"]) == ("a/seed-1", "b/seed-1")


def test_equal_settings_are_no_difference_and_one_seed_cannot_tell(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seeds(tmp_path, "a", [2.0, 2.1, 1.9], 0.1)
    seeds(tmp_path, "b", [2.0, 2.1, 1.9], 0.2)  # equal runs of equal seeds
    seeds(tmp_path, "c", [1.0], 0.3)
    out, _ = printed(capsys, "a", "b", "c")
    of_b, of_c = out.splitlines()[-2:]
    assert of_b.endswith("(Welch, p = 1): no difference")
    assert of_c == (
        "held_out.loss: a 2.0000 (3 seeds), c 1.0000 (1 seed): difference -1.0000; one seed "
        "cannot tell: train both with --seeds 3 or more"
    )
    # Of two runs the page's path is the result, as always.
    out, err = printed(capsys, "a/seed-1", "c/seed-1")
    assert out == "report.html\n"
    assert "one seed cannot tell" in err
    out, err = printed(capsys, "a/seed-1", "a/seed-2")  # they differ in the seed alone
    assert (out, err) == ("report.html\n", "")


def test_directory_of_several_settings_is_not_one_side(folder, capsys):
    other = seeds(folder.parent, "x", [1.0, 1.1], 0.5)
    out, err = printed(capsys, other, folder)
    assert f"{folder} holds runs of several settings: no difference is computed" in err
    assert "Welch" not in out


@pytest.mark.slow
@pytest.mark.parametrize("draws", [800, 2000])
def test_equal_settings_are_called_no_difference_in_95_percent_of_draws(draws):
    # The shares that are expected are 0.98, 0.97 and 0.96: with 2,000 draws they do not vary much.
    for count in (2, 3, 5):
        draw = np.random.default_rng(count)
        pairs = draw.normal(3, 0.1, (draws, 2, count))
        verdicts = [welch(*pair.tolist()).verdict for pair in pairs]
        assert verdicts.count("no difference") >= 0.95 * draws
        # Also where equal seeds have results that rise and fall together.
        pairs = draw.normal(3, 0.1, (400, 1, count)) + draw.normal(0, 0.05, (400, 2, count))
        verdicts = [welch(*pair.tolist()).verdict for pair in pairs]
        assert verdicts.count("no difference") >= 0.95 * 400


def test_real_difference_is_found():
    # Three deviations with five seeds: the power of the test is 0.985 (by scipy, 100,000 draws).
    draw = np.random.default_rng(0)
    pairs = draw.normal([[3.0], [3.3]], 0.1, (400, 2, 5))
    verdicts = [welch(*pair.tolist()).verdict for pair in pairs]
    assert verdicts.count("difference") >= 0.95 * 400


def test_student_t_is_scipys():
    from scipy import stats

    for freedom in (1, 1.3, 2, 3.7, 8, 40, 1000):
        for t in (-30, -2, -0.1, 0, 0.3, 1, 5, 100):
            assert t_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), rel=1e-9, abs=1e-14)
        for q in (0.6, 0.9, 0.975, 0.99999):
            assert t_quantile(q, freedom) == pytest.approx(stats.t.ppf(q, freedom), rel=1e-9)
    draw = np.random.default_rng(1)
    for few, more in ((2, 2), (2, 7), (5, 3)):
        a, b = draw.normal(0, 1, few), draw.normal(1, 3, more)
        expected = stats.ttest_ind(b, a, equal_var=False)
        found = welch(a.tolist(), b.tolist())
        assert [found.low, found.high] == pytest.approx(
            list(expected.confidence_interval(0.95)), rel=1e-9
        )
        assert found.p == pytest.approx(expected.pvalue, rel=1e-9)


def test_values_without_any_deviation():
    assert welch([1.0, 1.0], [1.0, 1.0]).verdict == "no difference"
    assert welch([1.0, 1.0], [2.0, 2.0]).verdict == "difference"
    assert welch([1.0], [2.0, 2.1]).verdict == "one seed cannot tell"
