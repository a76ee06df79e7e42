"""SIGTERM, SIGINT and SIGHUP set a flag; whoever works asks for it at a place where it can stop."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nlpkit.errors import Stopped

_CAUGHT = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)


class StopFlag:
    """The first signal that asked to stop, or None."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def check(self) -> None:
        """Raise `Stopped` if a signal came; for phases in which there is nothing to save."""
        if self.signal is not None:
            raise self.stopped("nothing was trained yet")

    def stopped(self, what: str) -> Stopped:
        """Return the error that ends the program, saying `what` was kept."""
        number = self.signal or signal.SIGTERM
        return Stopped(f"stopped by {signal.Signals(number).name}; {what}", number)


@contextmanager
def catch_signals() -> Iterator[StopFlag]:
    """Yield a flag that the signals set; a second SIGINT leaves at once, with code 130."""
    flag = StopFlag()

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
