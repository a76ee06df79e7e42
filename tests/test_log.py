"""What people see of a run while it goes on."""

import io

from nlpkit.train.log import Log


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_live_line_says_how_far_an_evaluation_is(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    log = Log(stream=stream)
    with log.live(total=8, done=3):
        log.evaluating(11, 80)
    assert "step 3/8" in stream.getvalue()
    assert "evaluating, batch 12/80" in stream.getvalue()


def test_evaluation_is_no_news_outside_a_terminal() -> None:
    stream = io.StringIO()
    log = Log(stream=stream)
    with log.live(total=8, done=3):
        log.evaluating(11, 80)
    assert stream.getvalue() == ""
