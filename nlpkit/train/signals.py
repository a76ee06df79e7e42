"""SIGTERM, SIGINT, SIGHUP or the end of the time set a flag; whoever works asks for it where it can
stop."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nlpkit.errors import Stopped, TryAgain

_CAUGHT = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)


class StopFlag:
    """Whether a signal came, or the time is up."""

    def __init__(self, max_seconds: float | None = None) -> None:
        self.signal: int | None = None
        self._deadline = None if max_seconds is None else time.monotonic() + max_seconds

    @property
    def raised(self) -> bool:
        """Return whether to save and leave."""
        return self.signal is not None or (
            self._deadline is not None and time.monotonic() >= self._deadline
        )

    def check(self) -> None:
        """Raise what ends the program if it is to stop; for phases with nothing to save."""
        if self.raised:
            raise self.ending("nothing was trained yet")

    def ending(self, what: str) -> Stopped | TryAgain:
        """Return the error that ends the program, saying `what` was kept."""
        if self.signal is None:
            return TryAgain(f"the time is up; {what}")
        return Stopped(f"stopped by {signal.Signals(self.signal).name}; {what}", self.signal)


@contextmanager
def catch_signals(max_seconds: float | None = None) -> Iterator[StopFlag]:
    """Yield a flag that the signals set; a second SIGINT leaves at once, with code 130."""
    flag = StopFlag(max_seconds)

    def handle(number: int, _: FrameType | None) -> None:
        if flag.signal is not None and number == signal.SIGINT:
            os._exit(130)
        flag.signal = flag.signal or number

    before = {number: signal.signal(number, handle) for number in _CAUGHT}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
