"""`pretrain` and `plan` in real processes: streams, exit codes, signals, several processes."""

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit import cli
from nlpkit.checkpoints import integrity
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.errors import NlpkitError
from tests import _server, _tiny
from tests._processes import FSDP, SHARDED, Process, launched, wait_until


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A recipe, its finished run and what the command printed on stdout."""
    folder = tmp_path_factory.mktemp("done 目录")
    path = _tiny.write(folder)
    result = _tiny.command("pretrain", path, "--out", folder / "run")
    assert result.returncode == 0, result.stderr
    return path, folder / "run", result.stdout


def _wait_for_step(run: Path, step: int, process: Process) -> None:
    """Wait until `metrics.jsonl` has the record of `step`."""
    path = run / "metrics.jsonl"
    record = f'{{"step": {step},'
    wait_until(lambda: path.exists() and record in path.read_text(encoding="utf-8"), process)


def test_stdout_is_the_checkpoint_alone(done) -> None:
    _, run, stdout = done
    assert stdout == f"{run}/checkpoints/step-00000012\n"


def test_checkpoint_to_resume_that_is_missing_is_named_before_any_work(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    for more in ((), ("--dry-run",)):
        result = _tiny.command(
            "pretrain", path, "--out", tmp_path / "run", "--resume", tmp_path / "gone", *more
        )
        assert result.returncode == 4
        assert result.stderr == f"nlpkit: --resume {tmp_path}/gone: no such checkpoint\n"
        assert not (tmp_path / "run").exists()


def test_finished_run_says_so_without_torch(done) -> None:
    path, run, stdout = done
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.name != "lock"}
    code = (
        "import sys; from nlpkit.cli import run; code = run(sys.argv[1:]);"
        "print([m for m in ('torch', 'transformers', 'accelerate') if m in sys.modules]);"
        "sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "pretrain", str(path), "--out", str(run)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0
    assert result.stdout == stdout + "[]\n"
    assert "is finished; nothing to do" in result.stderr
    assert before == {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.name != "lock"}


def test_quiet_says_nothing_and_json_is_one_object(done) -> None:
    path, run, stdout = done
    result = _tiny.command("pretrain", path, "--out", run, "-q", "--json")
    assert result.stderr == ""
    assert json.loads(result.stdout) == {"checkpoint": stdout.strip()}


def test_setting_without_effect_is_warned_of_once(done) -> None:
    path, run, _ = done
    for words in (("pretrain", path, "-q", "--out", run), ("plan", path, "--no-probe", "-q")):
        result = _tiny.command(*words, "--set", "eval.length_penalty=2.0")
        assert result.returncode == 0, result.stderr
        (line,) = [each for each in result.stderr.splitlines() if "warning" in each]
        assert "warning: --set eval.length_penalty: has no effect with an objective" in line


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_signal_saves_leaves_and_the_same_command_goes_on(
    done, tmp_path: Path, number: int, code: int
) -> None:
    path, _, _ = done
    run = tmp_path / "run"
    # long enough for the signal to arrive in the middle
    process = Process("pretrain", path, "--out", run, "--set", "train.steps=100000")
    _wait_for_step(run, 6, process)
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert process.returncode == code, stderr
    assert stdout == ""
    name = signal.Signals(number).name
    assert f"nlpkit: stopped by {name}; saved at step" in stderr
    assert "Traceback" not in stderr
    saved = integrity.find_newest_valid(run, lambda line: None)
    assert saved is not None
    assert saved.step == max(record["step"] for record in _tiny.metrics(run))


@pytest.mark.slow
def test_time_limit_saves_and_is_exit_75_and_the_same_command_goes_on(done, tmp_path: Path) -> None:
    path, _, _ = done
    command = ("pretrain", path, "--out", tmp_path, "--set", "train.steps=100000")
    for start in ("step 1/", "resuming from"):
        for limit in ("1s", "2s", "8s", "30s"):  # a busy machine may need some seconds to begin
            result = _tiny.command(*command, "--max-time", limit)
            assert result.returncode == 75, result.stderr
            if "nothing was trained yet" not in result.stderr:
                break
        assert start in result.stderr
        assert "nlpkit: the time limit is reached; saved at step" in result.stderr
        assert result.stdout == ""


def test_killed_run_goes_on_with_the_metrics_of_an_uninterrupted_one(done, tmp_path: Path) -> None:
    path, whole, _ = done
    for step in (2, 9):  # before the first save, and between two
        process = Process("pretrain", path, "--out", tmp_path)
        _wait_for_step(tmp_path, step, process)
        process.kill()
        process.communicate()
    result = _tiny.command("pretrain", path, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert _tiny.metrics(tmp_path) == _tiny.metrics(whole)


def test_second_process_on_a_run_leaves_at_once_naming_the_first(done, tmp_path: Path) -> None:
    path, _, _ = done
    process = Process("pretrain", path, "--out", tmp_path, "--set", "train.steps=100000")
    _wait_for_step(tmp_path, 1, process)
    result = _tiny.command("pretrain", path, "--out", tmp_path)
    process.kill()
    process.communicate()
    assert result.returncode == 75
    assert f"is in use by process {process.pid} on " in result.stderr


def test_changed_recipe_is_exit_2_and_allow_change_goes_on(done, tmp_path: Path) -> None:
    path, _, _ = done
    assert (
        _tiny.command("pretrain", path, "--out", tmp_path, "--set", "train.steps=4").returncode == 0
    )
    refused = _tiny.command("pretrain", path, "--out", tmp_path, "--set", "train.steps=6")
    assert refused.returncode == 2
    assert "train.steps: 4 then, 6 now" in refused.stderr
    accepted = _tiny.command(
        "pretrain", path, "--out", tmp_path, "--set", "train.steps=6", "--allow-change"
    )
    assert accepted.returncode == 0, accepted.stderr
    assert accepted.stdout.endswith("step-00000006\n")
    assert "changed since the start of the run: train.steps\n" in accepted.stderr
    size = ("--set", "train.steps=6", "--set", "tokenizer.vocab_size=100", "--allow-change")
    refused = _tiny.command("pretrain", path, "--out", tmp_path, *size)
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].endswith(
        "tokenizer.vocab_size: 200 then, 100 now; a run keeps its tokenizer, also with "
        f"--allow-change; start another run from this one: --out DIR and init_from: {tmp_path}"
    )


def test_dry_run_refuses_a_run_with_other_settings_as_training_does(done) -> None:
    path, run, _ = done
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    for more in (["--set", "train.lr=1e-5"], ["--resume", "never"]):
        dry = _tiny.command("pretrain", path, "--out", run, *more, "--dry-run", "-q")
        assert dry.returncode == 2
        assert "was started with other settings" in dry.stderr or more[0] == "--resume"
        assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before
        assert _tiny.command("pretrain", path, "--out", run, *more, "-q").returncode == 2
        before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    allowed = ("--set", "train.lr=1e-5", "--allow-change", "--dry-run", "-q")
    assert _tiny.command("pretrain", path, "--out", run, *allowed).returncode == 0
    kept = _tiny.command("pretrain", path, "--out", run, "--dry-run")
    assert (kept.returncode, "in order" in kept.stderr) == (0, True)
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_run_with_checkpoints_is_not_resumed_where_this_is_not_wanted(done, tmp_path: Path) -> None:
    path, out = done[0], tmp_path / "run"
    sets = ("train.steps=4", "train.save_every=2")
    with pytest.raises(NlpkitError):
        _tiny.pretrain(path, out, *sets, stop=_tiny.StopAtStep(out, 2))
    words = [word for each in sets for word in ("--set", each)]
    refused = _tiny.command("pretrain", path, "--out", out, *words, "--resume", "never")
    assert refused.returncode == 2, refused.stderr
    assert f"{out} has checkpoints of a run; give --out another directory" in refused.stderr
    assert not RunDirectory(out).finished()


def test_dry_run_checks_and_writes_no_run(done, tmp_path: Path) -> None:
    path, _, _ = done
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"text": 3}\n' + '{"text": "天地人山水花鸟鱼虫春夏秋冬日月星云"}\n' * 40, encoding="utf-8"
    )
    skips = ("--set", f"data.train=[{rows}]", "--set", "data.on_error=skip")
    result = _tiny.command("pretrain", path, "--out", tmp_path / "run", "--dry-run", *skips)
    assert result.returncode == 0, result.stderr
    assert "the first batch has" in result.stderr
    assert "; left out: 1 malformed row" in result.stderr
    assert f"warning: skipped {rows}:1: " in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "run").exists()


def test_error_in_data_names_file_and_line(done, tmp_path: Path) -> None:
    path, _, _ = done
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "天地人山水花"}\n{"text": 3}\n', encoding="utf-8")
    result = _tiny.command(
        "pretrain", path, "--out", tmp_path / "r", "--set", f"data.train=[{bad}]"
    )
    assert result.returncode == 3
    assert result.stderr.splitlines()[-1].startswith(f"nlpkit: {bad}:2: ")
    assert result.stdout == ""


def test_plan_json_is_stable_and_complete(done) -> None:
    path, _, _ = done
    first = _tiny.command("plan", path, "--json", "--no-probe", "-q")
    second = _tiny.command("plan", path, "--json", "--no-probe", "-q")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    plan = json.loads(first.stdout)
    assert plan["packing"]["fill"] > 0.9
    assert 0.3 < plan["packing"]["share_of_tokens_with_loss"] < 0.7
    assert plan["data"]["train"]["documents"] == 120
    assert plan["settings"]["train"]["steps"] == 12
    assert plan["origin"]["train.steps"].endswith("tiny.yaml:8")
    assert plan["origin"]["train.beta1"] == "default"


def test_plan_for_people_has_settings_with_their_origin_and_an_estimate(done) -> None:
    path, _, _ = done
    result = _tiny.command("plan", path, "--set", "seed=5")
    assert result.returncode == 0, result.stderr
    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line}
    assert lines["seed"] == ["5", "command", "line"]
    assert float(lines["estimate.seconds_per_step"][0]) > 0
    # 200 words, 16 prompts, 4 segments of 32; 48 x 4 biases; 2 x (4 x 32^2 + 3 x 32 x 48 + 64); 32
    assert lines["model.parameters"] == ["24,800"]


def test_plan_batch_decodes_the_first_batch(done) -> None:
    path, _, _ = done
    result = _tiny.command("plan", path, "--batch", "-q")
    header, *rows = [line.split("\t") for line in result.stdout.splitlines() if line]
    assert header[:2] == ["sequence", "token"]
    assert header[-1] == "target"
    column = {name: i for i, name in enumerate(header)}
    predicted = [
        (row, following) for row, following in itertools.pairwise(rows) if row[column["target"]]
    ]
    assert predicted
    for row, following in predicted:  # the target is the next token, and that one is hidden
        assert row[column["target"]] == following[column["token"]]
        assert following[column["context"]] == "False"


def test_plan_into_head_is_quiet(done) -> None:
    path, _, _ = done
    result = subprocess.run(
        f"{_server.function()}nlpkit plan '{path}' --batch -q | head -1",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stdout.startswith("sequence\ttoken")
    assert result.stderr == ""


@pytest.mark.slow
def test_plan_draws_the_mask(done, tmp_path: Path) -> None:
    path, _, _ = done
    picture = tmp_path / "mask.png"
    result = _tiny.command("plan", path, "--mask", picture, "--no-probe")
    assert result.returncode == 0, result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


_LAUNCHERS = {
    # On a machine without a GPU, too, accelerate starts several processes only with --multi_gpu.
    "accelerate": (
        *("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
        *("--num_cpu_threads_per_process", "1", "--main_process_port", "0"),
    ),
    "fsdp": (
        *("accelerate.commands.launch", "--use_fsdp"),
        *("--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"),
        *("--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"),
        *("--main_process_port", "0"),
    ),
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
}
_SETS = ("--set", "model.dropout=0.0", "--set", "train.keep=3")


@pytest.fixture(scope="module")
def one(done, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    run = tmp_path_factory.mktemp("one")
    result = _tiny.command("pretrain", done[0], "--out", run, *_SETS)
    assert result.returncode == 0, result.stderr
    return run


def _is_run_of_two(result: subprocess.CompletedProcess[str], run: Path, one: Path) -> None:
    """Fail unless two processes gave the losses of one."""
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{run}/checkpoints/step-00000012\n"
    assert "processes: 2" in result.stderr
    for ours, theirs in _tiny.figures_of_both(one, run):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)
        assert theirs["targets"] == ours["targets"]


@pytest.mark.slow  # test_processes.py has a part of it
def test_two_processes_give_the_losses_of_one(done, one: Path, tmp_path: Path) -> None:
    _is_run_of_two(launched(2, "pretrain", done[0], "--out", tmp_path, *_SETS), tmp_path, one)


@pytest.mark.slow
def test_two_processes_with_shards_go_on_with_a_run_of_one(done, one: Path, tmp_path: Path) -> None:
    more = ("--out", tmp_path, "--resume", one / "checkpoints/step-00000008", *_SETS)
    two = launched(2, "pretrain", done[0], *more, **FSDP)
    assert two.returncode == 0, two.stderr
    assert f"{SHARDED}, 2 layers" in two.stderr
    losses, resumed = (
        {step["step"]: step["loss"] for step in _tiny.metrics(run) if "loss" in step}
        for run in (one, tmp_path)
    )
    assert [*resumed] == [9, 10, 11, 12]
    assert resumed == pytest.approx({step: losses[step] for step in resumed}, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", _LAUNCHERS)
def test_every_launcher_gives_the_losses_of_one(
    done, one: Path, tmp_path: Path, launcher: str
) -> None:
    verb = ["nlpkit", "pretrain", str(done[0]), "--out", str(tmp_path), *_SETS]
    two = subprocess.run(
        [sys.executable, "-m", *_LAUNCHERS[launcher], "-m", *verb],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    _is_run_of_two(two, tmp_path, one)
    assert (SHARDED in two.stderr) == (launcher == "fsdp")


def test_process_that_is_earlier_than_the_first_needs_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("nlpkit.runs.pretrain.pretrain", lambda *given, **_: trained.append(given))
    path = _tiny.write(tmp_path)
    assert cli.run(["pretrain", str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert len(trained) == 1
    assert not (tmp_path / "run").exists()
