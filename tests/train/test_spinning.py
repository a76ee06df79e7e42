"""Threads sleep while they wait if other programs need the processors, and spin again after it."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nlpkit.errors import UsageError
from nlpkit.runs import build, pretrain
from nlpkit.runs.run import Data
from nlpkit.train import spinning
from nlpkit.train.spinning import Look, Watch
from tests import _processes, _tiny


class _NoThreads:
    """Stands for `Sleepers`."""

    ended = 0

    def __init__(self, threads: int):
        assert threads == 2

    def end(self) -> None:
        type(self).ended += 1


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, list[str]]:
    monkeypatch.setattr(spinning, "Sleepers", _NoThreads)
    said: list[str] = []
    return Watch(2, 2, said.append), said


def _look(watch: Watch, others: float) -> bool:
    """Return whether threads sleep after a second in which other programs used so much."""
    watch.decide(Look(5.0, 100.0, 40.0), Look(6.0, 101.5 + others, 41.5))
    return watch.sleeping is not None


def test_threads_sleep_beside_others_and_spin_when_it_is_quiet_for_a_while(
    watch: tuple[Watch, list[str]],
) -> None:
    watching, said = watch
    assert not _look(watching, 0.0)
    assert not _look(watching, 0.2)  # too little to matter
    assert said == []
    assert _look(watching, 1.2)
    text = "other processes use 1.2 of 2 processors: threads sleep while they wait for each other"
    assert said == [text]
    assert [_look(watching, 0.0) for _ in range(3)] == [True] * 3
    assert _look(watching, 0.2)  # not quiet: it begins anew
    assert [_look(watching, 0.0) for _ in range(4)] == [True, True, True, False]
    assert _NoThreads.ended == 1
    assert _look(watching, 2.0)
    assert said == [text]  # once


def test_run_is_watched_from_when_its_text_is_tokenised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, build_data = list[str](), build.build_data

    def read(*given: Any) -> Data:
        data = build_data(*given)
        done.append("read")
        return data

    def start(note: object) -> None:
        raise UsageError(f"watched after {done}")

    monkeypatch.setattr(pretrain, "get_num_threads", lambda: 2)
    monkeypatch.setattr(build, "build_data", read)
    monkeypatch.setattr(spinning, "start", start)
    with pytest.raises(UsageError, match=r"watched after \['read'\]"):
        _tiny.pretrain(_tiny.write(tmp_path), tmp_path / "run")


def test_free_processors_are_for_others(watch: tuple[Watch, list[str]]) -> None:
    watching, _ = watch
    watching.processors = 4
    assert not _look(watching, 2.0)
    assert _look(watching, 2.5)


def test_only_several_threads_are_watched_and_never_what_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    monkeypatch.setattr(spinning, "Watch", lambda *given: started.append(given))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    spinning.start()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    spinning.start()
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(spinning, "look", lambda: None)  # no /proc
    spinning.start()
    assert started == []


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="of Linux")
def test_a_look_counts_the_time_of_this_process() -> None:
    before = spinning.look()
    x = torch.ones(300, 300)
    for _ in range(60):
        x = (x @ x).clamp(-1, 1)
    after = spinning.look()
    assert before is not None
    assert after is not None
    assert after.time > before.time
    assert after.own > before.own
    assert after.busy >= before.busy


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _teams() -> None:
    torch.set_num_threads(2)
    torch.zeros(2**18).add_(1)
    alone = _threads()
    torch.set_num_threads(1)  # as while a precision is chosen
    team = spinning.Sleepers(2)
    assert torch.get_num_threads() == 1
    beside = _threads()
    team.end()
    for _ in range(1000):
        if _threads() == alone:
            break
        time.sleep(0.01)
    print(beside - alone, _threads() - alone)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux")
def test_the_second_team_is_there_until_its_end() -> None:
    assert _processes.printed(_teams) == "2 0\n"
