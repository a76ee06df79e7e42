"""What people see of a run while it goes on."""

import io

import pytest

from nlpkit import plan, recipe
from nlpkit.train import log as run_log
from nlpkit.train.log import QUIET, Log
from tests import _tiny


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_live_line_says_how_far_an_evaluation_is(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    log = Log(stream=stream)
    with log.live(total=8, done=3, progress=3 / 8):
        log.evaluating(11, 80)
    assert "step 3/8" in stream.getvalue()
    assert "evaluating, batch 12/80" in stream.getvalue()


def test_evaluation_is_no_news_outside_a_terminal() -> None:
    stream = io.StringIO()
    log = Log(stream=stream)
    with log.live(total=8, done=3, progress=3 / 8):
        log.evaluating(11, 80)
    assert stream.getvalue() == ""


def test_warning_comes_from_the_first_process_alone() -> None:
    stream = io.StringIO()
    log = Log(QUIET, stream)
    log.warn("told once")
    log.verbosity = -1  # as `make_accelerator` has it in the other processes
    log.warn("told again")
    assert stream.getvalue().endswith("warning: told once\n")


@pytest.mark.parametrize(("seconds", "told"), [(0.0, True), (1000.0, False)])
def test_text_that_takes_long_to_read_is_told_of(tmp_path, monkeypatch, seconds, told) -> None:
    monkeypatch.setattr(run_log, "LINE_SECONDS", seconds)
    monkeypatch.setenv("NLPKIT_CACHE", str(tmp_path / "cache"))
    stream = io.StringIO()
    log = Log(stream=stream)
    plan.make(recipe.load(str(_tiny.write(tmp_path))), tmp_path / "none", "cpu", log)
    assert ("tokenizer: 120 texts read" in stream.getvalue()) == told
    assert ("tokenised 0 of 0 MB of text" in stream.getvalue()) == told
