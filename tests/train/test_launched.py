"""Processes that a launcher started, or an environment that says so."""

import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from nlpkit.errors import UsageError
from nlpkit.train import processes
from nlpkit.train.log import NORMAL, Log
from tests import _tiny
from tests._processes import Process, wait_until

GROUP = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2, but no RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT;"),
        (
            {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},
            "WORLD_SIZE=2 RANK=1 LOCAL_RANK=1, but no MASTER_ADDR, MASTER_PORT;",
        ),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1, but no WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT;"),
        ({"RANK": "1"}, "RANK=1: RANK counts from 0 to WORLD_SIZE - 1;"),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0", **GROUP},
            "RANK=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1: RANK counts from 0 to ",
        ),
        (
            {
                "WORLD_SIZE": "1",
                "RANK": "0",
                "LOCAL_RANK": "0",
                **GROUP,
                "ACCELERATE_USE_DEEPSPEED": "true",
            },
            "ACCELERATE_USE_DEEPSPEED: not supported; accelerate launch --use_fsdp shards",
        ),
    ],
)
def test_half_of_the_environment_of_a_launcher_is_one_error(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], what: str
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", *GROUP):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as error:
        processes.form_group(False, Log(NORMAL))
    assert what in str(error.value)
    assert "; start the run with torchrun, or unset them" in str(error.value)


def test_group_that_does_not_form_is_one_error_and_waiting_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", **GROUP}.items():
        monkeypatch.setenv(name, value)

    def wait(cpu: bool) -> SimpleNamespace:
        time.sleep(0.2)
        raise RuntimeError("The server socket has failed to listen\nframe #0: c10")

    monkeypatch.setattr(processes, "_PATIENCE", 0.01)
    monkeypatch.setattr(processes, "PartialState", wait)
    with pytest.raises(UsageError, match="form no group: The server socket has failed to listen;"):
        processes.form_group(True, Log(NORMAL))
    assert "process 0 of 2 waits for the others at 127.0.0.1:1; were all of them started?" in (
        capsys.readouterr().err
    )


def test_environment_is_looked_at_before_the_run_begins(tmp_path) -> None:
    path = _tiny.write(tmp_path)
    done: subprocess.CompletedProcess[str] = _tiny.command(
        "pretrain", path, "--out", tmp_path / "run", env={"WORLD_SIZE": "2"}
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("nlpkit: environment: WORLD_SIZE=2, but no RANK")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_process_that_waits_for_others_can_be_stopped(tmp_path) -> None:
    path = _tiny.write(tmp_path)
    group = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", **GROUP}
    waiting = Process("pretrain", path, "--out", tmp_path / "run", env=group)
    wait_until(lambda: "waits for the others" in waiting.stderr_so_far(), waiting)
    waiting.send_signal(signal.SIGTERM)
    _, said = waiting.communicate(timeout=60)
    assert "stopped by SIGTERM; nothing was trained yet" in said
    assert waiting.returncode == 143
