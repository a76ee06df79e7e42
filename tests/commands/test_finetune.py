"""`nlpkit finetune`, and `plan` and `report` of tasks, in real processes."""

import gzip
import json
import re
import shutil
import signal
import statistics
from pathlib import Path

import pytest

from nlpkit import recipe
from nlpkit.commands.finetune import _choose_lora_settings
from tests import _processes, _tiny, _tiny_tasks
from tests._faults import Ended, Server, done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny_tasks.three(tmp_path_factory.mktemp("tasks"))


def _refused(ended: Ended, code: int, *parts: str) -> str:
    assert ended.code == code, ended.stderr
    assert "Traceback" not in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("20")]
    assert len(lines) == 1, ended.stderr
    for part in parts:
        assert part in lines[0]
    return lines[0]


def test_finetune_without_a_checkpoint_says_in_one_line_what_makes_one(tmp_path: Path) -> None:
    for more in ([], ["--lora"], ["--dry-run"]):
        result = _tiny.command("finetune", *more, cwd=tmp_path)
        assert result.returncode == 4
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        assert "`nlpkit pretrain cpm_ant` makes one" in result.stderr
    assert not list(tmp_path.iterdir())


def test_finetune_from_takes_the_best_checkpoint_of_a_run_and_the_latest_without_one(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    run = folder / "cpm_ant-run"
    shutil.copytree(run, tmp_path / "other", symlinks=True)
    best = tmp_path / "other/checkpoints/best"
    assert best.resolve().name == "step-00000004"
    named = ("--from", tmp_path / "other/best", "--out", tmp_path / "named", "--dry-run")
    done(server.run("finetune", folder / "nlg.yaml", *named))
    best.unlink()
    one = done(server.run("finetune", folder / "nlg.yaml", "--out", tmp_path / "one"))
    assert one.stdout == f"{tmp_path}/one/checkpoints/step-00000008\n"
    two = done(
        server.run("finetune", folder / "nlg.yaml", "--out", tmp_path / "two",
                   "--from", tmp_path / "other")
    )  # fmt: skip
    assert two.stderr.splitlines()[0].endswith(f"run: {tmp_path}/two (new)")
    assert f"{tmp_path}/other: its latest checkpoint, step-00000004" in two.stderr
    assert _tiny.metrics(tmp_path / "one") == _tiny.metrics(tmp_path / "two")
    # A run that began so goes on, although its start is given as a run again, or is gone.
    again = done(
        server.run("finetune", folder / "nlg.yaml", "--out", tmp_path / "two",
                   "--from", tmp_path / "other")
    )  # fmt: skip
    assert "is finished; nothing to do" in again.stderr
    # Also one of f0ab896, which put the pointer in place of the run.
    kept = tmp_path / "two/recipe.yaml"
    text = kept.read_text("utf-8")
    assert f"init_from: {tmp_path}/other\n" in text
    text = text.replace(f"{tmp_path}/other\n", f"{tmp_path}/other/checkpoints/latest\n")
    kept.write_text(text, encoding="utf-8")
    again = done(
        server.run("finetune", folder / "nlg.yaml", "--out", tmp_path / "two",
                   "--from", tmp_path / "other")
    )  # fmt: skip
    assert "is finished; nothing to do" in again.stderr
    best.symlink_to("step-00000004")
    three = done(
        server.run("finetune", folder / "nlg.yaml", "--out", tmp_path / "three", "--dry-run",
                   "--from", tmp_path / "other")
    )  # fmt: skip
    assert f"{tmp_path}/other: its best checkpoint, step-00000004" in three.stderr
    gone = server.run("finetune", folder / "nlg.yaml", "--from", tmp_path / "nothing")
    _refused(gone, 4, f"{tmp_path}/nothing: no such checkpoint to start from")


@pytest.mark.parametrize(
    ("rate", "more", "sets", "lr"),
    [
        ("5.0e-4", "", [], "train.lr=0.005"),
        ("4.0e-3", "", ["lora.rank=4"], "train.lr=0.01"),  # with 0.04 they diverge
        ("0.2", "", [], "train.lr=0.2"),
        ("5.0e-4", "", ["train.lr=0.5"], None),
        ("5.0e-4", "lora: {rank: 4}\n", [], None),
    ],
)
def test_lora_option_takes_ten_times_the_rate_unless_one_is_meant_for_adapters(
    tmp_path: Path, rate: str, more: str, sets: list[str], lr: str | None
) -> None:
    path = tmp_path / "nlg.yaml"
    text = recipe.packaged()["cpm_ant_nlg"].read_text("utf-8")
    path.write_text(re.sub(r"lr: \S+", f"lr: {rate}", text) + more, encoding="utf-8")
    found = [
        each for each in _choose_lora_settings(recipe.load(str(path), sets)) if "train.lr" in each
    ]
    assert found == ([] if lr is None else [lr])


def test_finetune_lora_trains_adapters_in_a_run_of_its_own(server: Server, folder: Path) -> None:
    ended = done(server.run("finetune", folder / "nlu.yaml", "--lora", "--json"))
    found = Path(json.loads(ended.stdout)["checkpoint"])
    assert found == (folder / "runs/nlu-lora/checkpoints/best").resolve()
    assert (found / "adapter_model.safetensors").is_file()
    assert not (found / "model.safetensors").exists()
    assert re.search(r"[\d,]+ of the parameters are trained", ended.stderr)
    records = _tiny.metrics(folder / "runs/nlu-lora")
    # At most 1e-2, the rate of the recipe already, but --set wins.
    assert max(r["lr"] for r in records if "lr" in r) == pytest.approx(1e-2)
    done(server.run("finetune", folder / "nlu.yaml", "--lora", "--dry-run", "-q"))
    told = done(server.run("plan", folder / "nlu.yaml", "--set", "lora={}", "--no-probe", "--json"))
    model = json.loads(told.stdout)["model"]
    assert 0 < model["trained_parameters"] < model["parameters"]
    assert model["state_bytes"] == 4 * model["parameters"] + 12 * model["trained_parameters"]


@pytest.mark.slow
def test_finetune_seeds_give_mean_median_and_deviation_and_go_on(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    arguments = ("finetune", folder / "nlu.yaml", "--seeds", "2", "--out", tmp_path / "s",
                 "--set", "train.best_by=accuracy")  # fmt: skip
    dry = done(server.run(*arguments, "--dry-run"))
    assert "are in order" in dry.stderr
    assert not list(tmp_path.rglob("metrics.jsonl"))
    # The second seed is interrupted; the same command goes on with it.
    metrics = tmp_path / "s/seed-2/metrics.jsonl"
    stopped = server.run(*arguments, when=(metrics, '"step": 2'), signals={0: signal.SIGTERM})
    assert stopped.code in (0, 143)
    ended = done(server.run(*arguments))
    assert "seed-1 is finished" in ended.stderr
    head, *rows = [line.split("\t") for line in ended.stdout.splitlines()]
    assert head == ["figure", "mean", "median", "std", "seed 1", "seed 2"]
    best = []
    for seed in (1, 2):
        records = _tiny.metrics(tmp_path / f"s/seed-{seed}")
        figures = [r["held_out"] for r in records if "held_out" in r]
        best.append(max(f["metrics"]["accuracy"] for f in figures))
    assert [row[0] for row in rows] == ["loss", "accuracy"]
    expected = [statistics.fmean(best), statistics.median(best), statistics.stdev(best), *best]
    assert rows[1][1:] == [f"{value:.4f}" for value in expected]
    other = server.run(*arguments, "--set", "train.lr=0.5", "--dry-run", "-q")
    assert other.code == 2
    assert other.stderr.startswith(f"nlpkit: {tmp_path}/s/seed-1 was started with other settings")
    told = json.loads(done(server.run(*arguments, "--json")).stdout)
    assert told["seeds"] == [1, 2]
    assert told["figures"]["accuracy"]["values"] == best
    # The directory stands for its runs.
    evaluated = json.loads(done(server.run("eval", tmp_path / "s", "--json")).stdout)
    assert evaluated["seeds"] == [1, 2]
    # As the training evaluated them, by nlpkit's own code; batches differ, and so rounding.
    for name, row in told["figures"].items():
        assert evaluated["figures"][name]["values"] == pytest.approx(row["values"], rel=1e-5)
        assert evaluated["figures"][name]["std"] == pytest.approx(row["std"], rel=1e-3, abs=1e-6)
    table = done(server.run("eval", tmp_path / "s")).stdout.splitlines()
    assert table[0].split("\t") == head
    reported = done(server.run("report", tmp_path / "s"))
    page = tmp_path / "s/report.html"
    assert f"page: {page}" in reported.stderr
    rows = [line.split() for line in reported.stdout.partition("\n\n")[0].splitlines()]
    at = rows[0].index("held_out.accuracy")
    shown = {row[0]: row[at] for row in rows[1:]}
    assert shown == {f"seed-{n}": f"{value:.4f}" for n, value in enumerate(best, 1)}
    assert {"seed-1", "seed-2"} <= set(re.findall(r"seed-\d", page.read_text("utf-8")))
    written = server.run("eval", tmp_path / "s", "--predictions", tmp_path / "p")
    _refused(written, 2, f"--predictions: {tmp_path}/s holds runs of --seeds; name one of them")
    several = server.run("generate", tmp_path / "s")
    what = f"{tmp_path}/s: holds 2 runs with different seeds; give one: {tmp_path}/s/seed-1, "
    _refused(several, 4, what)


@pytest.mark.slow
def test_best_checkpoint_is_that_of_the_highest_score_and_patience_ends_the_run(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    sets = ("train.best_by=accuracy", "train.eval_every=2", "train.patience=2", "train.steps=40",
            "train.warmup_steps=0", "train.schedule=constant", "train.lr=1e-12")  # fmt: skip
    arguments = [word for each in sets for word in ("--set", each)]
    out = tmp_path / "run"
    ended = done(server.run("finetune", folder / "nlu.yaml", "--out", out, *arguments))
    # At such a rate nothing changes: the first evaluation is the best, two more are no better.
    assert "no improvement in 2 evaluations: stopping early at step 6" in ended.stderr
    # That is the checkpoint of the run for every command, also when nothing is left to train.
    best = f"{out}/checkpoints/step-00000002"
    assert ended.stdout == f"{best}\n"
    assert ended.stderr.splitlines()[0].endswith(f"run: {out} (new)")
    said = "checkpoint of the run: the best, by held-out accuracy: step-00000002"
    assert said in ended.stderr
    again = done(server.run("finetune", folder / "nlu.yaml", "--out", out, *arguments, "--json"))
    assert json.loads(again.stdout) == {"checkpoint": best}
    assert said in again.stderr
    assert json.loads(done(server.run("eval", out, "--json")).stdout)["checkpoint"] == best
    learned = tmp_path / "learned"
    sets = ("train.best_by=accuracy", "train.eval_every=2", "train.steps=16")
    arguments = [word for each in sets for word in ("--set", each)]
    command = ("finetune", folder / "nlu.yaml", "--out", learned, *arguments)
    # Killed after the first evaluation: a run whose best figure is a score goes on, too.
    server.run(*command, when=(learned / "metrics.jsonl", '"step": 5'), signals={0: signal.SIGKILL})
    resumed = done(server.run(*command)).stderr.splitlines()[0]
    newest = re.search(r"run: (.*) \(resumes from step [34]\)$", resumed)
    assert newest, resumed
    assert newest[1] == str(learned)
    accuracy = {
        r["step"]: r["held_out"]["metrics"]["accuracy"]
        for r in _tiny.metrics(learned)
        if "held_out" in r
    }
    first_highest = max(accuracy, key=lambda step: (accuracy[step], -step))
    assert (learned / "checkpoints/best").resolve().name == f"step-{first_highest:08d}"
    wrong = server.run("finetune", folder / "nlg.yaml", "--set", "train.best_by=exact_match")
    _refused(wrong, 2, "train.best_by: objective cpm_ant_nlg has no exact_match", "it has loss")


def test_log_names_the_data_files_and_what_is_too_long_in_each(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    sets = ("objective.max_length=16", "train.steps=2", "data.workers=1")
    arguments = [word for each in sets for word in ("--set", each)]
    trained = done(server.run("finetune", folder / "nlg.yaml", "--out", tmp_path / "run",
                              *arguments))  # fmt: skip
    found = re.findall(r"too long in the (\S+) data: (.*)", trained.stderr)
    assert [part for part, _ in found] == ["training", "held-out"]
    assert all(re.search(r"\d+ inputs cut", cut) for _, cut in found)
    for name, rows in (("train", 60), ("valid", 13)):
        assert f"data: {folder}/nlg.{name}.jsonl: {rows} rows, " in trained.stderr
    evaluated = done(server.run("eval", tmp_path / "run"))
    assert f"too long in the held-out data: {found[1][1]}" in evaluated.stderr


def test_same_file_may_be_train_and_valid_for_a_test_of_overfitting(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.jsonl").symlink_to(folder / "nlu.train.jsonl")
    sets = ("train.steps=2", f"data.valid={tmp_path}/link.jsonl")
    arguments = [word for each in sets for word in ("--set", each)]
    ended = done(server.run("finetune", folder / "nlu.yaml", "--out", tmp_path / "run",
                            *arguments))  # fmt: skip
    assert (
        f"data.valid: {tmp_path}/link.jsonl: also in data.train; the held-out loss" in ended.stderr
    )
    assert _tiny.metrics(tmp_path / "run")[-1]["held_out"]["metrics"]["accuracy"] >= 0
    other = done(server.run("finetune", folder / "nlu.yaml", "--out", tmp_path / "other",
                            "--dry-run"))  # fmt: skip
    assert "also in data.train" not in other.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["nlg", *(pytest.param(task, marks=pytest.mark.slow) for task in ("nlu", "classes"))]
)
def test_plan_and_dry_run_of_a_task_show_its_batch_and_mask(
    server: Server, folder: Path, tmp_path: Path, task: str
) -> None:
    path = folder / f"{task}.yaml"
    assert "first batch has" in done(server.run("finetune", path, "--dry-run")).stderr
    text = done(server.run("plan", path)).stdout
    assert re.search(r"^data.held_out.unigram_entropy +none$", text, re.MULTILINE)
    assert re.search(r"^estimate.total_seconds +[\d.]+ (s|min)", text, re.MULTILINE)
    one, two = (
        done(server.run("plan", path, "--json", "--no-probe", "--set", "objective.max_length=14"))
        for _ in range(2)
    )
    assert one.stdout == two.stdout
    described = json.loads(one.stdout)
    assert described["data"]["train"]["documents"] == 60
    assert any(name.startswith("tokens cut from ") for name in described["data"]["cut"])
    batch = done(server.run("plan", path, "--batch")).stdout.split("\n\n")
    head, *first = [line.split("\t") for line in batch[0].splitlines()]
    assert all(len(line) == len(head) for line in first)
    if task == "nlg":
        assert head[-1] == "target"
        assert first[-2][-1] == "</s>"
        assert [line[head.index("context")] for line in first][-1] == "False"
    else:
        order = "option" if task == "nlu" else "order"
        assert head[-2:] == [order, "label"]
        assert first[-1][-2] == "0"
        assert all(line[-2:] == ["", ""] for line in first[:-1])
    pytest.importorskip("matplotlib")
    drawn = done(server.run("plan", path, "--mask", tmp_path / "m.png", "--no-probe"))
    assert (tmp_path / "m.png").stat().st_size > 5000
    assert "Glyph" not in drawn.stderr


@pytest.mark.parametrize(
    "task", ["nlu", *(pytest.param(task, marks=pytest.mark.slow) for task in ("nlg", "classes"))]
)
def test_report_of_a_task_has_its_scores(server: Server, folder: Path, task: str) -> None:
    run = folder / f"runs/{task}"
    done(server.run("finetune", folder / f"{task}.yaml"))
    page = Path(done(server.run("report", run)).stdout.strip()).read_text(encoding="utf-8")
    assert ("Held out: accuracy" in page) == (task != "nlg")
    assert ("nats/target" in page) == (task != "nlg")
    accuracy = next(
        (r["held_out"]["metrics"]["accuracy"] for r in _tiny.metrics(run) if task != "nlg"
         and "held_out" in r), None,
    )  # fmt: skip
    if accuracy is not None:
        assert f"{accuracy:.4f}" in page


def test_wrong_rows_are_named_by_file_and_line(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    lines = (folder / "nlu.train.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[6]) | {"target": "one"}
    bad = tmp_path / "bad.jsonl.gz"
    bad.write_bytes(gzip.compress("\n".join([*lines[:6], json.dumps(row), *lines[7:]]).encode()))
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join([*lines[:8], '{"input": "a", ']), encoding="utf-8")
    (tmp_path / "empty.jsonl").write_text("")
    table = tmp_path / "no_header.csv"
    table.write_text("好,good\n坏,bad\n", encoding="utf-8")

    def run(task: str, *sets: str) -> Ended:
        words = [word for each in sets for word in ("--set", each)]
        return server.run("finetune", folder / f"{task}.yaml", "--out", tmp_path / "out", *words)

    _refused(
        run("nlu", f"data.train=[{bad}]"),
        3,
        f"{bad}:7: \"target\" is the string 'one', not the number of an option, 0 to 2",
    )
    _refused(run("nlu", f"data.train=[{broken}]"), 3, f"{broken}:9: ")
    _refused(run("nlu", f"data.train=[{tmp_path}/empty.jsonl]"), 3, "empty.jsonl: empty file")
    named = _refused(run("nlg", "objective.target=targt"), 3, 'no "targt", did you mean target?')
    assert f"{folder}/nlg.train.jsonl:1: " in named
    _refused(run("classes", f"data.train=[{table}]"), 3, f'{table}:2: no "text"; it has: ')
    numbered = ("objective.text='1'", "objective.label='2'")
    found = run("classes", f"data.train=[{table}]", "data.valid=[]", *numbered)
    assert found.code == 0, found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["nlg", *(pytest.param(task, marks=pytest.mark.slow) for task in ("nlu", "classes"))]
)
def test_killed_task_goes_on_bit_for_bit(
    server: Server, folder: Path, tmp_path: Path, task: str
) -> None:
    arguments = ("finetune", folder / f"{task}.yaml", "--out")
    done(server.run(*arguments, tmp_path / "whole"))
    out = tmp_path / "killed"
    killed = server.run(
        *arguments, out, when=(out / "metrics.jsonl", '"step": 5'), signals={0: signal.SIGKILL}
    )
    assert killed.code in (0, -signal.SIGKILL)
    done(server.run(*arguments, out))
    assert _tiny.metrics(out) == _tiny.metrics(tmp_path / "whole")
    weights = "checkpoints/step-00000008/model.safetensors"
    assert (out / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()


# The held-out rows of nlg are one batch: the second process has none.
@pytest.mark.slow
@pytest.mark.parametrize("task", ["nlg", pytest.param("nlu", marks=pytest.mark.slow)])
def test_two_processes_give_the_losses_and_scores_of_one(tmp_path: Path, task: str) -> None:
    run = _tiny_tasks.start(tmp_path, "cpm_ant", "model.dropout=0.0")
    path = _tiny_tasks.task(tmp_path, task, getattr(_tiny_tasks, task.upper()), run)
    one = _tiny.command("finetune", path, "--out", tmp_path / "one")
    assert one.returncode == 0, one.stderr
    verb = ("finetune", path, "--out", tmp_path / "two", "--device", "cpu")
    two = _processes.launched(2, *verb)
    assert two.returncode == 0, two.stderr
    assert two.stdout == one.stdout.replace("/one/", "/two/")
    assert len(_tiny.metrics(tmp_path / "one")) == 10
    for ours, theirs in _tiny.figures_of_both(tmp_path / "one", tmp_path / "two"):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)
        assert theirs["targets"] == ours["targets"]
        assert theirs.get("metrics") == ours.get("metrics")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["nlu", "nlg", "classes"])
def test_selftest_of_a_task_proves_what_applies_to_rows(
    server: Server, folder: Path, task: str
) -> None:
    told = json.loads(done(server.run("selftest", folder / f"{task}.yaml", "--json")).stdout)
    proven = [proof["name"] for proof in told["proofs"]]
    of_targets = ["noise floor", "no leak", "no neighbour leak"] if task == "nlg" else []
    of_rows = ["packed = alone", "batches", "accumulated = one", "resumed = whole"]
    assert proven == [*of_targets, *of_rows]
    assert told["passed"]
