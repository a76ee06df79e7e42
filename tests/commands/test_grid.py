"""`--grid` and `--seeds`: which runs there are, that each is the run alone, and what goes wrong."""

import json
import os
import shlex
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from nlpkit import cli
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.commands import _grid, _runs
from nlpkit.errors import RunsFailed, Stopped, UsageError
from nlpkit.train.log import Log
from tests import _processes, _tiny

SMALL = ("--set", "train.steps=2", "--set", "train.eval_every=null", "--set", "train.save_every=1")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    text = _tiny.RECIPE.replace("data: {", f"data: {{cache: {folder / 'cache'}, ")
    return _tiny.write(folder / "input", text=text)


def names(*options: str) -> list[str]:
    return [*_grid.list_points(_grid.parse(options))]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2, 3", ["1", "2", "3"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{a: [1, 2], b: 3},null", ["{a: [1, 2], b: 3}", "null"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("'it''s, so','x'", ["'it''s, so'", "'x'"]),
        ('"a\\",b",c', ['"a\\",b"', "c"]),
        ('["a,]", b],c', ['["a,]", b]', "c"]),
        ("don't,won't", ["don't", "won't"]),  # quotes inside of a word are letters
        ("a,", ["a"]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(text, values):
    assert _grid.split("a", text) == values


def test_names_are_readable_and_depend_on_keys_and_own_values_alone():
    assert names("train.lr=1e-3,2e-5", "seed=1..2") == [
        "lr-0.001/seed-1", "lr-0.001/seed-2", "lr-2e-05/seed-1", "lr-2e-05/seed-2",
    ]  # fmt: skip
    # The same number, written otherwise, is the same run.
    assert names("train.lr=0.001") == names("train.lr=1.0e-3") == ["lr-0.001"]
    assert names("train.clip=1.0") == names("train.clip=1") == ["clip-1"]
    assert names("train.lr=1e-2,0.01") == ["lr-0.01"]
    assert names("seed=3,1") == ["seed-3", "seed-1"]
    assert names("train.optimizer.name=muon", "objective.name=mlm") == [
        "optimizer-muon_objective-mlm"
    ]
    assert names("a.x=1", "b.x=2") == ["a.x-1_b.x-2"]
    assert names("a.b=true,null") == ["b-true", "b-null"]


def test_values_that_are_no_names_have_different_names():
    found = names("a=a/b,a-b,../b,'1',1,[1],[[1]],'[1]','true',true,''")
    assert len(set(found)) == 11
    assert all("/" not in name and not name.endswith(".") for name in found)
    long = names(f"a={'x' * 300},{'x' * 301}")
    assert len(set(long)) == 2
    assert max(map(len, long)) < 60


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a="], "--grid a=: expected V1,V2 as in YAML, where text with brackets needs quotes"),
        (["a"], "--grid a: expected KEY=V1,V2, such as train.lr=1e-3,2e-3"),
        (["a..b=1"], "--grid a..b=1: expected KEY=V1,V2, such as train.lr=1e-3,2e-3"),
        (
            ["a=1,,2"],
            "--grid a=1,,2: expected V1,V2 as in YAML, where text with brackets needs quotes",
        ),
        (["a=1", "a=2"], "--grid a: is in the grid already; give all values at once"),
        (["out=a,b"], "--grid out: each run has its own; name their folder with --out"),
        (["a=3..1"], "--grid a: 3..1 has 0 values; 1 to 10,000"),
        (["a=1..20000"], "--grid a: 1..20000 has 20,000 values; 1 to 10,000"),
    ],
)
def test_grid_that_makes_no_sense_is_one_line(options, said):
    with pytest.raises(UsageError) as caught:
        _grid.parse(options)
    assert str(caught.value) == said


def test_values_that_are_the_same_are_one_run():
    assert names("a=1,true,'1','true',1.0,1e0", "seed=1..3") == names(
        "a=1,true,'1','true'", "seed=1,2,3"
    )


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    done = _processes.command(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_mistakes_in_any_combination_are_said_once_before_anything_is_written(
    recipe, tmp_path, capsys
):
    def refused(*options: str) -> list[str]:
        arguments = ["pretrain", str(recipe), "--out", str(tmp_path / "g"), *options]
        assert cli.run(arguments) == 2
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().err.splitlines()

    seeds = ("--grid", "seed=1..9")
    assert refused(*seeds, "--grid", "train.lrr=1,2") == [
        "--grid train.lrr: unknown setting, did you mean lr?"
    ]
    assert refused("--grid", "train.lr=1e-3,-1,x", *seeds) == [
        "--grid train.lr: must be greater than 0, got -1",
        '--grid train.lr: expected a number, got the text "x"',
    ]
    assert refused("--seeds", "2", "--grid", "train.lrr=1,2") == [
        "--grid train.lrr: unknown setting, did you mean lr?"
    ]
    assert refused("--grid", "train.lr=1,2", "--set", "sed=1") == [
        "--set sed: unknown setting, did you mean seed?"
    ]
    assert refused(*seeds, "--set", "seed=1") == ["nlpkit: --set seed: excludes --grid seed"]
    both = ("--grid", "train.budget=1s,3s", "--budget", "2s")
    assert refused(*both) == ["nlpkit: --budget: excludes --grid train.budget"]
    assert refused(*seeds, "--seeds", "2") == ["nlpkit: --seeds excludes --grid seed"]
    assert refused("--print") == [
        "nlpkit: --print needs --grid KEY=V1,V2 or --seeds N, whose runs it prints"
    ]
    [said] = refused(*seeds, "--smoke-test")
    assert said.startswith("nlpkit: --smoke-test excludes --grid")
    [said] = refused(*seeds, "--resume", "x")
    assert said.startswith("nlpkit: --resume PATH resumes one run")
    [said] = refused("--grid", "data.train=-,x")
    assert said == "nlpkit: data: -: stdin can be read by one run only; write it into a file"


def test_missing_data_of_one_run_end_the_grid_before_the_first_run(recipe, tmp_path, capsys):
    values = f"data.train={recipe.parent / 'train.txt'},nothing.txt"
    out = tmp_path / "g"
    assert cli.run(["pretrain", str(recipe), "--grid", values, "--out", str(out)]) == 4
    assert "no such file: nothing.txt" in capsys.readouterr().err
    assert not out.exists()


def test_print_gives_one_safe_line_for_each_run_and_writes_nothing(recipe, tmp_path, capsys):
    out = tmp_path / "a b"
    arguments = ["pretrain", str(recipe), "--grid", "objective.max_length=32,64", "--seeds", "2",
                 "--set", "data.line_break='$x; y'", "--set", "train.schedule=linear",
                 "--set", "train.warmup_steps=0", "--budget", "3m", "--device", "cpu", "-q",
                 "--allow-change", "--max-time", "5m", "--out", str(out), "--print"]  # fmt: skip
    assert cli.run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    common = ["--budget", "3m", "--device", "cpu", "--max-time", "5m", "--allow-change", "-q",
              "--set", "data.line_break='$x; y'", "--set", "train.schedule=linear",
              "--set", "train.warmup_steps=0"]  # fmt: skip
    assert [shlex.split(line) for line in lines] == [
        ["nlpkit", "pretrain", str(recipe), *common,
         "--set", f"objective.max_length={length}", "--set", f"seed={seed}",
         "--out", f"{out}/max_length-{length}/seed-{seed}"]
        for length in (32, 64) for seed in (1, 2)
    ]  # fmt: skip
    assert not out.exists()
    assert cli.run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"commands": lines}


def test_print_of_finetune_names_its_options(capsys, tmp_path):
    (tmp_path / "ckpt").mkdir()
    arguments = ["finetune", "cpm_ant_nlg", "--from", str(tmp_path / "ckpt"), "--lora",
                 "--grid", "lora.rank=4,8", "--print"]  # fmt: skip
    assert cli.run(arguments) == 0
    first, _ = capsys.readouterr().out.splitlines()
    assert shlex.split(first) == [
        "nlpkit", "finetune", "cpm_ant_nlg", "--from", str(tmp_path / "ckpt"), "--lora",
        "--set", "lora.rank=4", "--out", "runs/cpm_ant_nlg-lora/rank-4",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def made(recipe, tmp_path_factory) -> tuple[Path, str, str]:
    """A finished grid of two rates and two seeds: its directory, stdout and stderr."""
    out = tmp_path_factory.mktemp("made") / "g"
    sets = ("--set", "train.steps=4", "--set", "train.eval_every=4")
    stdout, stderr = run("pretrain", recipe, "--grid", "train.lr=1e-2,3e-2", "--seeds", "2",
                         "--out", out, *sets)  # fmt: skip
    return out, stdout, stderr


def test_each_run_of_a_grid_is_the_run_alone(made, recipe, tmp_path):
    out, stdout, _ = made
    found = sorted(str(path.parent.relative_to(out)) for path in out.rglob("recipe.yaml"))
    assert found == [f"lr-{lr}/seed-{seed}" for lr in ("0.01", "0.03") for seed in (1, 2)]
    _tiny.pretrain(recipe, tmp_path / "alone", "train.lr=3e-2", "seed=2", "train.steps=4",
                   "train.eval_every=4")  # fmt: skip
    assert _tiny.metrics(out / "lr-0.03/seed-2") == _tiny.metrics(tmp_path / "alone")
    head, *rows = [line.split() for line in stdout.partition("\n\n")[0].splitlines()]
    assert head[:4] == ["run", "seed", "train.lr", "state"]
    assert sorted(row[0] for row in rows) == found
    losses = [float(row[head.index("held_out.loss")]) for row in rows]
    assert losses == sorted(losses)


@pytest.mark.slow
def test_finished_runs_are_not_run_again_and_values_can_be_added(made, recipe):
    out, _, _ = made
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    arguments = ("pretrain", recipe, "--out", out, "--set", "train.steps=4",
                 "--set", "train.eval_every=4")  # fmt: skip
    _, stderr = run(*arguments, "--grid", "train.lr=1e-2,0.03", "--grid", "seed=1..2")
    assert stderr.count("is finished; nothing to do") == 4
    run(*arguments, "--grid", "train.lr=1e-2,5e-2", "--grid", "seed=1", "-q")
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert (out / "lr-0.05/seed-1/checkpoints/latest").exists()
    # Another grid, or another recipe, in the same directory: nothing is begun.
    _, said = run(*arguments, "--grid", "train.clip=1,2", code=2)
    assert said.startswith(f"nlpkit: {out} holds runs of another grid: lr-0.01/seed-2 differs in ")
    assert said.endswith("; give --out another directory\n")
    _, said = run(*arguments, "--grid", "train.lr=0.01,9", "--seeds", "2",
                  "--set", "train.clip=3", code=2)  # fmt: skip
    assert said.startswith(f"nlpkit: {out}/lr-0.01/seed-1 was started with other settings:")
    _, said = run(*arguments[:3], out / "lr-0.01/seed-1", "--grid", "train.steps=4,5", code=2)
    assert "seed-1 is a run; give --out another directory for the grid" in said
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


@pytest.mark.parametrize("plan", [(), ("--dry-run",)])
def test_plain_run_in_the_directory_of_a_grid_is_refused(made, recipe, plan):
    out, _, _ = made
    _, said = run("pretrain", recipe, "--out", out, *SMALL, *plan, code=2)
    assert said == (
        f"nlpkit: {out} holds runs of a grid (lr-0.01/seed-1); give --out another directory\n"
    )
    assert not (out / "recipe.yaml").exists()


def test_pretrain_seeds_print_mean_and_deviation(made, recipe, capsys):
    out, _, _ = made
    sets = ("--set", "train.steps=4", "--set", "train.eval_every=4", "--set", "train.lr=0.01")
    stdout, _ = run("pretrain", recipe, "--seeds", "2", "--out", out / "lr-0.01", *sets, "-q")
    head, row = [line.split("\t") for line in stdout.splitlines()]
    assert head == ["figure", "mean", "median", "std", "seed 1", "seed 2"]
    values = [
        _tiny.metrics(out / f"lr-0.01/seed-{seed}")[-1]["held_out"]["loss"] for seed in (1, 2)
    ]
    assert row[4:] == [f"{value:.4f}" for value in values]
    assert row[1] == f"{sum(values) / 2:.4f}"


def test_run_that_diverges_is_reported_and_the_others_finish(recipe, tmp_path):
    out = tmp_path / "g"
    arguments = ("pretrain", recipe, "--grid", "train.lr=1e30,1e-2", "--out", out, *SMALL,
                 "--set", "train.clip=1e30", "--set", "train.steps=3", "-q")  # fmt: skip
    stdout, stderr = run(*arguments, code=5)
    assert stderr.endswith("1 of 2 runs failed: lr-1e+30 (diverged)\n")
    states = {line.split()[0]: line.split()[2] for line in stdout.splitlines()[1:]}
    assert states == {"lr-0.01": "finished", "lr-1e+30": "diverged"}


@pytest.mark.slow
def test_killed_grid_goes_on_where_it_was(recipe, tmp_path):
    """The command itself is killed, which no handler sees: its run is saved, and ends."""
    out = tmp_path / "g"
    first, second = out / "seed-1", out / "seed-2"
    arguments = ("pretrain", recipe, "--seeds", "2", "--out", out, *SMALL,
                 "--set", "train.steps=60", "--set", "train.save_every=1000")  # fmt: skip
    process = _processes.Process(*arguments)
    _processes.wait_until(lambda: _has_step(second, 2), process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    _processes.wait_until(lambda: any(second.glob("checkpoints/step-*/manifest.json")))
    _processes.wait_until(lambda: "finished" in json.loads((second / "run.json").read_text()))
    _, stderr = run(*arguments)
    assert f"{first} is finished; nothing to do" in stderr
    assert f"{second} (resumes from step" in stderr
    alone = tmp_path / "alone"
    run("pretrain", recipe, "--set", "seed=2", "--out", alone, *arguments[6:])
    assert _tiny.metrics(second) == _tiny.metrics(alone)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_signal_saves_the_running_run_and_begins_no_other(recipe, tmp_path, number):
    out = tmp_path / "g"
    process = _processes.Process(
        "pretrain", recipe, "--seeds", "3", "--out", out, *SMALL, "--set", "train.steps=500",
        "--set", "train.save_every=1000",
    )  # fmt: skip
    _processes.wait_until(lambda: _has_step(out / "seed-1", 2), process)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == 128 + number
    assert f"stopped by {number.name} in run 1 of 3; the same command goes on" in stderr
    assert (out / "seed-1/checkpoints/latest").exists()
    assert not (out / "seed-2").exists()


def test_a_signal_before_a_run_has_begun_ends_it_without_a_traceback(capfd) -> None:
    runner = _runs.Runner(Log(0))
    runner.signal = signal.SIGINT
    runner._start(1, SimpleNamespace(name="", arguments=["--version"], draft=Path(os.devnull)))
    with pytest.raises(Stopped, match="SIGINT in run 1 of 1"):
        runner._wait(0, 1)
    assert capfd.readouterr().err == ""


def test_runs_outlive_their_terminal_with_nohup() -> None:
    runner, before = _runs.Runner(Log(0)), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runner._signals_passed_on():
            os.kill(os.getpid(), signal.SIGHUP)
        assert runner.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def _has_step(path: Path, step: int) -> bool:
    file = path / "metrics.jsonl"
    return file.exists() and f'"step": {step}' in file.read_text("utf-8")


def test_time_limit_is_that_of_all_runs(recipe, tmp_path):
    _, stderr = run("pretrain", recipe, "--seeds", "9", "--out", tmp_path / "g", *SMALL[:2],
                    "--set", "train.steps=100000", "--max-time", "2s", code=75)  # fmt: skip
    assert "the time limit is reached in run 1 of 9; the same command goes on" in stderr


def test_run_that_is_in_use_is_passed_over(made, recipe):
    from nlpkit.checkpoints.run_directory import RunDirectory

    out, _, _ = made
    arguments = ("pretrain", recipe, "--out", out, "--set", "train.steps=4",
                 "--set", "train.eval_every=4", "-q")  # fmt: skip
    with RunDirectory(out / "lr-0.07/seed-1").locked():
        (out / "lr-0.07/seed-1/kept").mkdir()
        _, stderr = run(*arguments, "--grid", "train.lr=0.07,0.01", "--grid", "seed=1", code=75)
    assert "lr-0.07/seed-1 is in use by process" in stderr
    assert "1 of 2 runs failed: lr-0.07/seed-1 (in use)" in stderr


@pytest.mark.slow
def test_launched_processes_train_the_runs_together(recipe, tmp_path):
    arguments = ("pretrain", recipe, "--seeds", "2", "--out", tmp_path / "g", *SMALL)
    done = _processes.launched(2, *arguments)
    assert done.returncode == 0, done.stderr
    for seed in (1, 2):
        status = json.loads((tmp_path / f"g/seed-{seed}/run.json").read_text("utf-8"))
        assert (status["finished"], status["processes"]) == (True, 2)


@pytest.mark.parametrize(("codes", "code"), [([75, 5, 7], 5), ([75], 75), ([137, 5], 137)])
def test_exit_code_of_failed_runs_is_that_of_the_first_real_failure(codes, code):
    assert RunsFailed("x", codes).exit_code == code


def test_grid_is_checked_and_printed_without_torch(recipe):
    import subprocess
    import sys

    code = "import sys; from nlpkit import cli; code = cli.run(sys.argv[1:]); "
    code += "sys.exit(code or 'torch' in sys.modules)"
    arguments = ["pretrain", str(recipe), "--grid", "seed=1,2", "--print"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("asked", "chosen", "said"),
    [
        ("auto", ["bf16", "fp32", "bf16"], "auto has chosen bf16 in 2 and fp32 in 1 of the runs"),
        ("auto", ["bf16", "bf16", "bf16"], ""),
        ("bf16", ["bf16", "fp32", "bf16"], ""),  # a grid of train.precision
    ],
)
def test_runs_that_auto_computes_in_several_types_are_told_once(
    asked: str, chosen: list[str], said: str, tmp_path: Path, capsys
) -> None:
    recipe = SimpleNamespace(train=SimpleNamespace(precision=asked))
    runs = [
        SimpleNamespace(
            name=f"seed-{number}",
            path=tmp_path / str(number),
            output=None,
            resolved=SimpleNamespace(recipe=recipe),
            is_finished=True,
        )
        for number in range(3)
    ]
    for run, kind in zip(runs, chosen, strict=True):
        run.path.mkdir()
        RunDirectory(run.path).set_status(precision=kind)
    runner = _runs.Runner(Log(0))
    runner.train(runs)
    runner.train(runs)
    told = capsys.readouterr().err
    assert told.count("train.precision") == bool(said)
    assert said in told
