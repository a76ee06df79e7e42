"""Progress of long work: a bar on a terminal, a line now and then elsewhere, nothing with -q."""

import io
import itertools

import pytest

from nlpkit.train import log as logs
from nlpkit.train.log import Log
from nlpkit.train.progress import follow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _show(log: Log) -> None:
    with follow(log) as show:
        for done in range(1, 4):
            show("evaluated batches", done, 2000)
        log.info("a line between")
        show("written answers", 5, 9)


def test_progress_on_a_terminal_is_a_bar_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    _show(Log(stream=stream))
    text = stream.getvalue()
    assert "written answers" in text
    assert "5/9" in text
    assert "a line between\n" in text
    assert text.endswith("\x1b[2K")  # the line of the bar is erased
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is shown again


def test_progress_elsewhere_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=6.0)
    monkeypatch.setattr(logs.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    _show(Log(stream=stream))
    lines = [line[20:] for line in stream.getvalue().splitlines()]
    assert lines == ["evaluated batches: 3 of 2,000", "a line between"]


def test_progress_is_quiet_with_q(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=60.0)
    monkeypatch.setattr(logs.time, "monotonic", lambda: next(clock))
    for stream in (io.StringIO(), Terminal()):
        _show(Log(logs.QUIET, stream))
        assert stream.getvalue() == ""
