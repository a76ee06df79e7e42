"""Signals during native calls that take long, between which alone Python runs its handlers."""

import os
import signal
import time
from pathlib import Path
from typing import NoReturn

import pytest

from nlpkit.errors import NlpkitError
from nlpkit.train import signals
from tests import _tiny
from tests._faults import Ended


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose tokenizer the library learns in ten seconds or more, in one call."""
    kind = "{kind: cpm_ant, vocab_size: 200, min_frequency: 1}"
    text = _tiny.RECIPE.replace(kind, "{kind: unigram, vocab_size: 400}")
    assert text != _tiny.RECIPE
    return _tiny.write(tmp_path_factory.mktemp("text"), documents=5_000, text=text)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library learn on one core: what is learned is thrown away."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")


# How long the native call is waited for after a signal; two seconds for users.
_PATIENCE = 0.5


def _was_learned() -> bool:
    return any(Path(os.environ["NLPKIT_CACHE"]).glob("tokenizers/[!.]*"))


def _said(ended: Ended) -> list[str]:
    assert "Traceback" not in ended.stderr
    return [line for line in ended.stderr.splitlines() if line.startswith("nlpkit: ")]


@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(n, marks=pytest.mark.slow) for n in ("SIGINT", "SIGHUP"))]
)
def test_signal_while_the_library_learns_ends_the_run_soon(
    server, recipe: Path, tmp_path: Path, name: str
) -> None:
    number = getattr(signal, name)
    ended = server.run("pretrain", recipe, "--out", tmp_path, learning=([number], 0.3, _PATIENCE))
    assert ended.code == 128 + number, ended.stderr
    assert _said(ended) == [f"nlpkit: stopped by {name}; nothing was trained yet"]
    assert not _was_learned()


@pytest.mark.slow
def test_end_of_the_time_while_the_library_learns_is_exit_75(
    server, recipe: Path, tmp_path: Path
) -> None:
    ended = server.run(
        *("pretrain", recipe, "--out", tmp_path, "--max-time", "2s"), learning=([], 0.0, _PATIENCE)
    )
    assert ended.code == 75, ended.stderr
    assert _said(ended) == ["nlpkit: the time limit is reached; nothing was trained yet"]
    assert not _was_learned()


@pytest.mark.slow
def test_second_interrupt_while_the_library_learns_leaves_at_once(
    server, recipe: Path, tmp_path: Path
) -> None:
    twice = [signal.SIGINT, signal.SIGINT]
    ended = server.run("pretrain", recipe, "--out", tmp_path, learning=(twice, 0.3))
    assert ended.code == 130
    # before the patience with the first was at its end
    assert _said(ended) == []
    assert not _was_learned()


@pytest.mark.slow
def test_interrupt_of_tokenizer_train_ends_it_soon_and_leaves_nothing(
    server, recipe: Path, tmp_path: Path
) -> None:
    ended = server.run(
        *("tokenizer", "train", recipe, "--out", tmp_path / "made"),
        learning=([signal.SIGINT], 0.3, _PATIENCE),
    )
    assert ended.code == 130, ended.stderr
    assert _said(ended) == ["nlpkit: stopped by SIGINT; nothing was trained yet"]
    assert list(tmp_path.iterdir()) == []


def _exit_now(error: NlpkitError) -> NoReturn:
    raise AssertionError(error)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes with which this process would have left at once."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def test_signals_of_a_forked_worker_are_its_own(exits: list[int]) -> None:
    with signals.catch_signals(_exit_now) as stop:
        worker = os.fork()
        if worker == 0:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGKILL
        assert not stop.raised
    assert exits == []


@pytest.mark.parametrize(("apart", "code"), [(0.01, []), (0.3, [130])])
def test_interrupt_passed_on_twice_is_one(exits, apart: float, code: list[int]) -> None:
    # as `timeout -s INT` does: to the process, then to its group
    with signals.catch_signals(_exit_now) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(apart)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        assert stop.signal == signal.SIGINT
    assert exits == code


def test_signals_are_as_before_afterwards() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    handles = len(os.listdir("/proc/self/fd"))
    with signals.catch_signals(_exit_now, 1e12):
        pass
    with signals.catch_signals(_exit_now, 1e-9) as stop:
        time.sleep(0.1)
        assert stop.raised
    assert [signal.getsignal(number) for number in numbers] == before
    assert len(os.listdir("/proc/self/fd")) == handles
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.set_wakeup_fd(-1) == -1


def test_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.catch_signals(_exit_now) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            stop.check()
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
