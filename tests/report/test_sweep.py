"""`nlpkit report` of several runs: the table, its order, and whether two settings differ.

Runs are written by hand; expected intervals come from scipy.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from nlpkit import cli, report
from nlpkit.errors import FileError, UsageError
from nlpkit.report import differences, history, sweep
from nlpkit.report import seeds as noise
from nlpkit.report.seeds import both_tails, t_quantile


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


def test_setting_that_is_null_or_absent_is_no_column(tmp_path, capsys, monkeypatch):
    """As `model` of a tuned run, beside one from nothing, which has `model.family`."""
    monkeypatch.chdir(tmp_path)
    for name, model in (("a", "null"), ("b", "{family: gpt2}")):
        run = write_run(tmp_path / name, [1.0], lr=0.1)
        with open(run / "recipe.yaml", "a", encoding="utf-8") as file:
            file.write(f"model: {model}\n")
    header = printed(capsys, tmp_path)[0].splitlines()[0].split()
    assert "model.family" in header
    assert "model" not in header


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
    _, err = printed(capsys, folder / "lr-0.2/seed-1", "--sort", "loss")
    assert "--sort: has no effect: it is for a directory of runs" in err  # which has a table
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


def test_runs_of_a_suite_with_rates_are_found(tmp_path):
    run = tmp_path / "tone/pretrained/lr-0.001/seed-1"
    run.mkdir(parents=True)
    (run / "recipe.yaml").touch()
    assert report.find_runs(tmp_path) == [run]


def test_seeds_are_in_the_order_of_numbers(tmp_path):
    for seed in (10, 9, 1):
        write_run(tmp_path / f"lr-1/seed-{seed}", [1.0], seed=seed)
    labels = [history.label for history in report.read([tmp_path])]
    assert labels == [f"lr-1/seed-{seed}" for seed in (1, 9, 10)]


def test_run_that_is_named_twice_is_one_seed(folder, capsys):
    once = printed(capsys, folder, "--sort", "held_out.loss")[0].splitlines()
    both = [str(folder), "--sort", "held_out.loss", f"{folder}/lr-0.1", f"{folder}/lr-0.1/seed-1"]
    assert len(printed(capsys, *both)[0].splitlines()) == len(once)


def seeds(folder: Path, name: str, losses: list[float], lr: float) -> Path:
    for seed, loss in enumerate(losses, 1):
        write_run(folder / name / f"seed-{seed}", [loss], seed=seed, lr=lr)
    return folder / name


def test_difference_of_two_directories_of_seeds_is_welchs(tmp_path, capsys, monkeypatch):
    from scipy import stats

    monkeypatch.chdir(tmp_path)
    a, b = [2.0, 2.1, 1.9, 2.0], [1.0, 1.3, 1.1, 0.9]
    seeds(tmp_path, "a", a, 0.1)
    seeds(tmp_path, "b", b, 0.2)
    write_run(tmp_path / "b/seed-5", [9.0], seed=5, lr=0.2, state="diverged")  # left out
    out, err = printed(capsys, "a", "b")
    expected = stats.ttest_ind(b, a, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert out.splitlines()[-1] == (
        f"held_out.loss: a 2.0000 (4 seeds), b 1.0750 (4 seeds): difference -0.9250, "
        f"95 % interval {low:+.4f} to {high:+.4f} (Welch, p = {expected.pvalue:.2g}): differ"
    )
    assert "1 not finished, so not compared" in err
    [found] = json.loads(printed(capsys, "a", "b", "--json")[0])["differences"]
    assert found["verdict"] == "differ"
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
    assert of_b.endswith("(Welch, p = 1): no difference seen")
    assert of_c == (
        "held_out.loss: a 2.0000 (3 seeds), c 1.0000 (1 seed): difference -1.0000: too few "
        "seeds: train both with --seeds 3 or more"
    )
    # Of two runs the page's path is the result, as always.
    out, err = printed(capsys, "a/seed-1", "c/seed-1")
    assert out == "report.html\n"
    assert "too few seeds" in err
    out, err = printed(capsys, "a/seed-1", "a/seed-2")  # they differ in the seed alone
    assert (out, err) == ("report.html\n", "")


def test_losses_and_scores_are_compared_alike(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for side, right in (("a", [0.5, 0.52, 0.51]), ("b", [0.7, 0.69, 0.72])):
        for seed, accuracy in enumerate(right):
            write_run(Path(side) / f"seed-{seed}", [1.0 + seed], seed=seed, lr=len(side) + right[0],
                      accuracy=accuracy, pairs=1 - accuracy)  # fmt: skip
    expected = {"held_out.loss": "no difference seen", "held_out.accuracy": "differ"}
    for pairs in ({"held_out.pairs": "differ"}, {}):
        found = json.loads(printed(capsys, "a", "b", "--json")[0])["differences"]
        assert {each["figure"]: each["verdict"] for each in found} == expected | pairs
        for run in Path("b").iterdir():
            with open(run / "recipe.yaml", "a", encoding="utf-8") as file:
                file.write("eval: {pairs: [other.jsonl]}\n")


def test_pairs_of_other_files_or_number_are_not_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for side in "ab":
        for seed in (1, 2):
            write_run(Path(side) / f"seed-{seed}", [1.0], seed=seed, lr=len(side), pairs=0.5)
    pairs = {"judged": 9, "method": "log-probability", "sha256": "0"}
    for other in ({}, {"judged": 8}, {"sha256": "1"}, {"method": "mntp"}):
        for run in [*Path("a").iterdir(), *Path("b").iterdir()]:
            status = json.loads((run / "run.json").read_text())
            changed = pairs | (other if run.parent.name == "b" else {})
            (run / "run.json").write_text(json.dumps(status | {"pairs": changed}))
        said = printed(capsys, "a", "b")[1]
        assert ("b is judged by other pairs than a (eval.pairs)" in said) == bool(other)


def test_what_is_not_comparable_is_said_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = seeds(tmp_path, "a", [2.0, 2.1], 0.1), seeds(tmp_path, "b", [1.0, 1.1], 0.2)
    for seed in (1, 2):
        write_run(tmp_path / f"c/seed-{seed}", [None], seed=seed, lr=0.3)
    out, err = printed(capsys, "a", "b", "c")
    assert "not comparable: no finished run of c has held_out.loss" in err
    assert out.count("Welch") == 1
    for run in b.iterdir():
        (run / "tokenizer").mkdir()
        (run / "tokenizer/vocab.txt").write_text("a")
    # A run that diverges before its first checkpoint has no tokenizer yet.
    for seed in (1, 2):
        write_run(tmp_path / f"d/seed-{seed}", [None], seed=seed, lr=0.3, state="diverged")
    for others in (["b"], ["c", "d"]):
        err = printed(capsys, *others, "d")[1]
        assert "no finished run of" in err
        assert "another tokenizer" not in err
    # Nor are training losses, by which a table may be sorted.
    out, err = printed(capsys, "a", "b", "--sort", "loss")
    assert "\nloss: " not in out
    out, err = printed(capsys, "a", "b")
    assert "not comparable: the loss of b is per token of another tokenizer than that of a" in err
    assert "Welch" not in out
    for run in [*a.iterdir(), *b.iterdir()]:
        with open(run / "recipe.yaml", "a", encoding="utf-8") as file:
            file.write("data: {valid: [v.txt]}\n")
        record = {"valid": [[{"sha256": run.parent.name}]]}  # another file of this name
        (run / "data_files.json").write_text(json.dumps(record))
    for sides in (["a", "b"], ["a/seed-1", "b/seed-1"]):
        out, err = printed(capsys, *sides)
        assert "is evaluated on other data than a" in err
        assert err.count("not comparable") == 1
        assert "Welch" not in out


@pytest.mark.parametrize("other", ["objective", "tokenizer"])
def test_bits_per_character_are_compared_between_tokenizers_alone(
    other, tmp_path, capsys, monkeypatch
):
    """The bits of another objective, such as those of masked tokens, are of other targets."""
    monkeypatch.chdir(tmp_path)
    for run in [*seeds(tmp_path, "a", [2.0, 2.1], 0.1).iterdir(),
                *seeds(tmp_path, "b", [1.0, 1.1], 0.2).iterdir()]:  # fmt: skip
        text = (run / "metrics.jsonl").read_text()
        text = text.replace('"held_out": {', '"held_out": {"bits_per_character": 1.5, ')
        (run / "metrics.jsonl").write_text(text)
        is_other = run.parent.name == "b"
        with open(run / "recipe.yaml", "a", encoding="utf-8") as file:
            name = "mlm" if other == "objective" and is_other else "clm"
            file.write(f"objective: {{name: {name}}}\n")
        if other == "tokenizer" and is_other:
            (run / "tokenizer").mkdir()
            (run / "tokenizer/vocab.txt").write_text("a")
    out, err = printed(capsys, "a", "b")
    assert f"another {other}" in err
    assert ("held_out.bits_per_character: " in out + err) == (other == "tokenizer")


def test_time_of_steps_that_are_not_logged_counts(tmp_path):
    run = write_run(tmp_path / "a", [2.0, 1.9])  # steps 10 and 20
    lines = [json.dumps({"step": n, "tokens": n, "loss": 2.5, "seconds": 0.5}) for n in (10, 20)]
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert history.read(run, "a").seconds == 10.0  # 0.5 for each of 20


def test_csv_of_runs_has_the_figures_that_some_run_has(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seeds(tmp_path, "a", [2.0, 2.1], 0.1)
    out, _ = printed(capsys, "a", "--csv")
    names = out.splitlines()[0].split(",")
    assert "held_out.loss" in names
    assert "held_out.perplexity" not in names
    assert out.count("\n") == 3


def write_rows(run: Path, credit: list[float]) -> None:
    lines = [json.dumps({"place": f"x/p:{n}", "credit": of}) for n, of in enumerate(credit)]
    (run / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_rows_are_compared_by_pairs_and_by_seeds(tmp_path, capsys, monkeypatch):
    from scipy import stats

    monkeypatch.chdir(tmp_path)
    a, b = seeds(tmp_path, "a", [2.0, 2.1], 0.1), seeds(tmp_path, "b", [1.0], 0.2)
    one, two = [1, 1, 0, 0.5, 1, 0], [0, 1, 0, 0.5, 1, 1]
    other = [1, 1, 1, 1, 1, 0]
    for run, credit in ((a / "seed-1", one), (a / "seed-2", two), (b / "seed-1", other)):
        write_rows(run, credit)
    found = json.loads(printed(capsys, "a", "b", "--rows", "rows.jsonl", "--json")[0])
    by_seeds, by_rows = found["differences"][-2:]
    assert (by_seeds["seeds"], by_seeds["verdict"]) == ([2, 1], "too few seeds")
    expected = stats.ttest_rel(other, np.mean([one, two], 0))
    assert by_rows["p"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert by_rows["interval"] == pytest.approx(list(expected.confidence_interval()), rel=1e-9)
    out, _ = printed(capsys, "a", "b", "--rows", "rows.jsonl")
    assert "a 0.5833 (6 rows), b 0.8333 (6 rows)" in out.splitlines()[-1]
    assert out.endswith(": no difference seen (noise of rows, not of seeds)\n")


def test_row_with_several_right_answers_is_right_by_any_of_them(tmp_path):
    # U+2028 is no end of a line.
    rows = [("Paris", ["Paris", "paris city"]), ("Bonn", ["Paris"]), ("a\u2028b", "a\u2028b")]
    made = [{"prediction": prediction, "target": target} for prediction, target in rows]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made))
    assert differences.read_rows(file)[1] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("first", "second", "comparable"),
    [
        ("objective: [{name: nsp}, {name: mlm}]", "objective: [{name: sop}, {name: mlm}]", False),
        ("objective: [{name: nsp}, {name: mlm}]", "objective: [{name: nsp}, {name: mlm}]", True),
        ("data: {valid: [{max_rows: 9}]}", "data: {valid: [{max_rows: null}]}", False),
        ("data: {text_key: body}", "data: {text_key: text}", False),
        ("data: {rows: null}", "data: {valid: [{text_key: null}]}", True),
        (
            "objective: {name: mixture, of: [{name: clm}]}",
            "objective: {name: mixture, of: [{name: mlm}]}",
            False,
        ),
    ],
)
def test_losses_of_other_objectives_and_other_rows_of_a_file_are_not_compared(
    tmp_path, capsys, monkeypatch, first, second, comparable
):
    monkeypatch.chdir(tmp_path)
    for name, more in (("a", first), ("b", second)):
        for number in (1, 2):
            run = write_run(tmp_path / name / f"seed-{number}", [2.0 + number], seed=number)
            with open(run / "recipe.yaml", "a") as file:
                file.write(f"{more}\n")
            files = {"valid": [[{"sha256": "ab"}]], "train": []}
            (run / "data_files.json").write_text(json.dumps(files))
    out, err = printed(capsys, "a", "b")
    assert ("not comparable" not in err) is comparable
    assert ("held_out.loss: a" in out) is comparable


@pytest.mark.parametrize(
    ("content", "said", "code"),
    [
        (None, "rows.jsonl: cannot be read: write it with --predictions b/seed-1/rows.jsonl", 4),
        ("", "rows.jsonl: 0 rows; at least 2 can be compared", 3),
        ('{"credit": NaN, "place": "x"}\n', "b/seed-1/rows.jsonl:1: no row of --predictions", 3),
        ('{"credit": 1}\n', "b/seed-1/rows.jsonl:1: no row of --predictions", 3),
        (
            '{"target": "0.25", "prediction": "0.251931"}\n' * 2,
            "rows.jsonl: predictions are numbers, of which none is right or wrong",
            3,
        ),
        ('{"target": "x", "prediction": "x"}\n' * 2, "has other rows than a/seed-1/rows.jsonl", 3),
    ],
)
def test_wrong_files_of_rows_give_one_line(tmp_path, capsys, monkeypatch, content, said, code):
    monkeypatch.chdir(tmp_path)
    a, b = seeds(tmp_path, "a", [2.0], 0.1), seeds(tmp_path, "b", [1.0], 0.2)
    write_rows(a / "seed-1", [1, 0])
    if content is not None:
        (b / "seed-1/rows.jsonl").write_text(content)
    _, err = printed(capsys, "a", "b", "--rows", "rows.jsonl", code=code)
    assert said in err.splitlines()[-1]
    assert not Path("report.html").exists()


def test_directory_of_several_settings_is_not_one_side(folder, capsys):
    other = seeds(folder.parent, "x", [1.0, 1.1], 0.5)
    out, err = printed(capsys, other, folder)
    assert f"{folder} holds runs of several settings: no difference is computed" in err
    assert "Welch" not in out


@pytest.mark.slow
def test_equal_settings_are_called_no_difference_in_95_percent_of_draws():
    # The shares that are expected are 0.977, 0.965, 0.974, 0.977 (by scipy, 200,000 draws).
    for counts in ((2, 2), (3, 3), (2, 5), (2, 10)):
        draw = np.random.default_rng(sum(counts)).normal(3, 0.1, (250, sum(counts)))
        verdicts = [noise.compare(*np.split(each, counts[:1])).verdict for each in draw]
        assert verdicts.count("no difference seen") >= 0.95 * 250, counts


@pytest.mark.slow
def test_real_difference_is_found():
    # Three deviations with five seeds: the power of the test is 0.985 (by scipy, 100,000 draws).
    draw = np.random.default_rng(0)
    pairs = draw.normal([[3.0], [3.3]], 0.1, (400, 2, 5))
    verdicts = [noise.compare(*pair.tolist()).verdict for pair in pairs]
    assert verdicts.count("differ") >= 0.95 * 400


def test_student_t_is_scipys():
    from scipy import stats

    for freedom in (1, 1.3, 2, 3.7, 8, 40, 1000):
        for t in (-30, -2, -0.1, 0, 0.3, 1, 5, 100):
            expected = 2 * stats.t.sf(abs(t), freedom)
            assert both_tails(t, freedom) == pytest.approx(expected, rel=1e-9)
        for share in (0.8, 0.2, 0.05, 0.00002):
            expected = stats.t.isf(share / 2, freedom)
            assert t_quantile(share, freedom) == pytest.approx(expected, rel=1e-9)
    draw = np.random.default_rng(1)
    for few, more in ((2, 2), (2, 7), (5, 3)):
        a, b = draw.normal(0, 1, few), draw.normal(1, 3, more)
        tests = {"Student": stats.ttest_ind(b, a), "Welch": stats.ttest_ind(b, a, equal_var=False)}
        found = noise.compare(a.tolist(), b.tolist())
        wider = max(tests.values(), key=lambda test: test.confidence_interval().high)
        assert found.interval == pytest.approx(tuple(wider.confidence_interval()), rel=1e-9)
        assert found.p == pytest.approx(tests[found.test].pvalue, rel=1e-9)


def test_values_without_any_deviation():
    assert noise.compare([1.0, 1.0], [1.0, 1.0]).verdict == "no difference seen"
    assert noise.compare([0.7] * 3, [0.7] * 2).verdict == "no difference seen"
    assert noise.compare([1.0, 1.0], [2.0, 2.0]).verdict == "differ"
    assert noise.compare([1.0], [2.0, 2.1]).verdict == "too few seeds"


def test_perplexities_that_blew_up_are_compared():
    # Their squares are no floats: the largest is exp(700).
    for scale in (1e-200, 1e100, 1e304):
        one, two = [[scale * x for x in side] for side in ((1.0, 2.0), (5.0, 6.5, 7.0))]
        found, plain = noise.compare(one, two), noise.compare([1.0, 2.0], [5.0, 6.5, 7.0])
        assert found.p == pytest.approx(plain.p)
        assert found.interval == pytest.approx([scale * x for x in plain.interval])
