"""docs/scripts: real launches on this node, also two nodes of them, and what Slurm is asked for."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import _tiny
from tests._processes import SHARDED

SCRIPTS = Path("docs/scripts").resolve()
SETS = ("--set", "model.dropout=0.0")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def one(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    run = tmp_path_factory.mktemp("one")
    _tiny.pretrain(tiny, run, "model.dropout=0.0")
    return run


def _program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    path.chmod(0o755)
    return path


def _environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment whose `nlpkit` is this one; programs in `folder` come first."""
    if not (folder / "nlpkit").exists():
        root = SCRIPTS.parents[1]
        _program(folder, "nlpkit", f'PYTHONPATH="{root}" exec "{sys.executable}" -m nlpkit "$@"')
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | more


def _start(folder: Path, script: str, *arguments: object, **more: str) -> subprocess.Popen[str]:
    shell = "bash" if script.endswith(".sbatch") else "sh"
    return subprocess.Popen(
        [shell, str(SCRIPTS / script), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env=_environment(folder, **more),
    )  # fmt: skip


def _same(one: Path, run: Path) -> None:
    for ours, theirs in _tiny.figures_of_both(one, run):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# What Slurm's programs do here: each task of a step is a process of this machine.
SRUN = """\
node=0; tasks=
while [ $node -lt $SLURM_NNODES ]; do
    SLURM_NODEID=$node "$@" & tasks="$tasks $!"; node=$((node + 1))
done
worst=0
for task in $tasks; do wait $task; code=$?; [ $code -gt $worst ] && worst=$code; done
exit $worst"""
SCONTROL = """\
case "$1" in
show) printf 'localhost\\nlocalhost\\n' ;;
*) echo "$@" >>asked ;;
esac"""


def _slurm(folder: Path, *arguments: object, nodes: int, **more: str) -> tuple[int, str, str]:
    """Run the body of the job; return its exit code, its output and what Slurm was asked for."""
    _program(folder, "srun", SRUN)
    _program(folder, "scontrol", SCONTROL)
    job = {"SLURM_JOB_ID": str(_port()), "SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": "x"}
    job |= {"SCRIPTS": str(SCRIPTS)}
    process = _start(folder, "slurm.sbatch", *arguments, **job, **more)
    out, err = process.communicate(timeout=900)
    asked = folder / "asked"
    said = asked.read_text("utf-8") if asked.exists() else ""
    return process.returncode, out + err, said.replace(job["SLURM_JOB_ID"], "JOB")


@pytest.mark.parametrize(
    ("code", "left", "asked"),
    [(0, 0, ""), (75, 0, "requeue JOB\n"), (143, 0, "requeue JOB\n"), (3, 3, "")],
)
def test_job_goes_back_into_the_queue_until_it_is_done(
    tmp_path: Path, code: int, left: int, asked: str
) -> None:
    # A launcher that, as torchrun does, starts the program and has an exit code of its own.
    launch = 'while [ "$1" != sh ]; do shift; done; LOCAL_RANK=0 "$@" || exit 1'
    _program(tmp_path, "torchrun", launch)
    _program(tmp_path, "nlpkit", f'echo "called: $*"; exit {code}')
    found = _slurm(tmp_path, "my recipe.yaml", "--set", "seed=2", nodes=1, TIME="2h")
    assert found[0] == left, found[1]
    assert found[2] == asked
    assert "called: pretrain my recipe.yaml --set seed=2 --max-time 2h\n" in found[1]


# What torchrun does with a signal: it passes it on to the groups of its processes, and ends with 1.
LAUNCHER = """\
while [ "$1" != sh ]; do shift; done
trap 'kill -s TERM -- -$worker' TERM
LOCAL_RANK=0 setsid "$@" & worker=$!
wait $worker; wait $worker
exit 1"""
SAVING = 'trap "echo saved; exit 143" TERM; : >started; for n in $(seq 3000); do sleep 0.01; done'


def _stop(process: subprocess.Popen[str], until: Callable[[], bool]) -> tuple[int, str, str]:
    """Send SIGTERM to a script alone, as `docker stop` does; return its code and its output."""
    end = time.monotonic() + 300
    while not until() and time.monotonic() < end and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("script", ["torchrun.sh", "accelerate.sh"])
def test_sigterm_to_a_script_alone_reaches_the_run_which_saves(tmp_path: Path, script: str) -> None:
    _program(tmp_path, script.removesuffix(".sh"), LAUNCHER)
    _program(tmp_path, "nlpkit", SAVING)
    process = _start(tmp_path, script, 1, "recipe.yaml")
    assert _stop(process, (tmp_path / "started").exists)[:2] == (143, "saved\n")


def test_sigterm_before_the_launcher_listens_starts_no_run(tmp_path: Path) -> None:
    # It cannot be ended yet, such as by SIGINT in the background.
    starting = "trap '' TERM; : >started; while [ ! -s \"$CODE_FILE\" ]; do sleep 0.01; done"
    _program(tmp_path, "torchrun", f"{starting}\n{LAUNCHER}")
    _program(tmp_path, "nlpkit", "echo trained; exit 0")
    process = _start(tmp_path, "torchrun.sh", 1, "recipe.yaml")
    assert _stop(process, (tmp_path / "started").exists) == (143, "", "")


def test_standard_input_reaches_the_run(tmp_path: Path) -> None:
    _program(tmp_path, "torchrun", 'while [ "$1" != sh ]; do shift; done; LOCAL_RANK=0 "$@"')
    _program(tmp_path, "nlpkit", "cat")
    command = ["sh", str(SCRIPTS / "torchrun.sh"), "1", "recipe.yaml"]
    environment = _environment(tmp_path)
    assert subprocess.check_output(command, input=b"text\n", env=environment) == b"text\n"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["torchrun.sh", "accelerate.sh"])
def test_sigterm_to_a_script_alone_saves_and_the_same_command_goes_on(
    tiny: Path, one: Path, tmp_path: Path, script: str
) -> None:
    run = tmp_path / "run"
    log = run / "metrics.jsonl"
    process = _start(tmp_path, script, 2, tiny, "--out", run, *SETS)
    code, _, err = _stop(process, lambda: log.exists() and '"step": 1,' in log.read_text("utf-8"))
    assert code == 143, err
    assert "stopped by SIGTERM; saved at step" in err
    process = _start(tmp_path, script, 2, tiny, "--out", run, *SETS)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert "resuming from" in err
    _same(one, run)


@pytest.mark.parametrize("given", [(), (2,), ("r.yaml", 2)])
def test_scripts_without_a_recipe_say_how_they_are_called(
    tmp_path: Path, given: tuple[object, ...]
) -> None:
    for name in ("torchrun.sh", "accelerate.sh"):
        process = _start(tmp_path, name, *given)
        assert process.communicate() == ("", f"Usage: {name} PROCESSES RECIPE [OPTION...]\n")
        assert process.returncode == 2


def test_job_outside_slurm_says_how_it_is_started() -> None:
    command = ["bash", SCRIPTS / "slurm.sbatch", "r.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.endswith("SLURM_JOB_NODELIST: is not set: start this file with sbatch\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_failure_is_passed_on_through_the_launcher(tmp_path: Path) -> None:
    process = _start(tmp_path, "torchrun.sh", 1, "missing.yaml")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 4, err
    assert "missing.yaml" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("torchrun.sh", {}),
        ("torchrun.sh", {"ACCELERATE_USE_FSDP": "true"}),
        ("accelerate.sh", {}),
        ("accelerate.sh", {"FSDP": "1"}),
    ],
)
def test_launch_gives_the_losses_of_one(
    tiny: Path, one: Path, tmp_path: Path, script: str, more: dict[str, str]
) -> None:
    run = tmp_path / "run"
    process = _start(tmp_path, script, 2, tiny, "--out", run, *SETS, **more)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert out == f"{run}/checkpoints/step-00000012\n"
    assert "processes: 2" in err
    assert (SHARDED in err) == bool(more)
    _same(one, run)


@pytest.mark.slow
def test_two_nodes_of_one_process_give_the_losses_of_one(
    tiny: Path, one: Path, tmp_path: Path
) -> None:
    run, head = tmp_path / "run", f"localhost:{_port()}"
    agents = [
        _start(tmp_path, "torchrun.sh", 1, tiny, "--out", run, *SETS, NODES="2", HEAD=head)
        for _ in range(2)
    ]
    ends = [agent.communicate(timeout=900) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], ends
    assert sorted(out for out, _ in ends) == ["", f"{run}/checkpoints/step-00000012\n"]
    _same(one, run)


@pytest.mark.slow
def test_slurm_job_of_two_nodes_goes_back_and_goes_on(
    tiny: Path, one: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    verb = (tiny, "--out", run, *SETS)
    for limit in ("1s", "30s", "15m"):  # the first one ends in the middle or before the first step
        code, said, asked = _slurm(tmp_path, *verb, nodes=2, TIME=limit)
        assert code == 0, said
        if "nlpkit: done" in said:
            break
        # The launcher of the node that is the first to end stops the others by SIGTERM.
        assert re.search(r"exit code (75|143); back into the queue", said), said
        assert "requeue" in asked
    assert "nlpkit: done" in said
    _same(one, run)
