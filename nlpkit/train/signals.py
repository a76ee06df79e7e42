"""SIGTERM, SIGINT, SIGHUP or the end of the time set a flag; whoever works asks for it where it can
stop.

Python runs a signal's handler only between native calls, of which one may take minutes (a tokenizer
learns, a big model is built). So a thread hears of the signals too, through `set_wakeup_fd`, and
does what cannot wait. It runs where the native call lets go of the GIL, as those of torch and of
`tokenizers` do.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from nlpkit.errors import Stopped, TryAgain

_CAUGHT = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGALRM")
    if hasattr(signal, name)
)
# `timeout` and other programs that pass on a signal give it to the process and to its group: two
# SIGINTs so close together are one.
_ONE_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0
_LONGEST_SECONDS = 1e9  # a timer counts no further than some centuries
_CLOSED = 0  # no signal has this number

ExitNow = Callable[[Stopped | TryAgain], NoReturn]


class StopFlag:
    """Whether a signal came; SIGALRM stands for the end of the time."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.nothing_to_save = False

    @property
    def raised(self) -> bool:
        """Return whether to save and leave."""
        return self.signal is not None

    def check(self) -> None:
        """Raise what ends the program if it is to stop; for phases with nothing to save."""
        if self.raised:
            raise self.ending("nothing was trained yet")

    @contextmanager
    def abortable(self) -> Iterator[None]:
        """Be a phase with nothing to save: what is not left soon after a signal is ended."""
        self.nothing_to_save = True
        try:
            yield
        finally:
            self.nothing_to_save = False

    def ending(self, what: str) -> Stopped | TryAgain:
        """Return the error that ends the program, saying `what` was kept."""
        if self.signal is None or self.signal == signal.SIGALRM:
            return TryAgain(f"the time is up; {what}")
        return Stopped(f"stopped by {signal.Signals(self.signal).name}; {what}", self.signal)


@contextmanager
def catch_signals(exit_now: ExitNow, max_seconds: float | None = None) -> Iterator[StopFlag]:
    """Yield a flag that the signals set; a second SIGINT leaves at once, with code 130.

    `exit_now` ends the process from another thread where `StopFlag.abortable` says that it may.
    """
    flag = StopFlag()

    def handle(number: int, _: FrameType | None) -> None:
        flag.signal = flag.signal or number

    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    # Forked workers must not tell us of the signals that they get themselves: one control-C, which
    # goes to the whole group, would be many.
    os.register_at_fork(after_in_child=_forget)
    thread = threading.Thread(target=_listen, args=(flag, wakeup_read, exit_now), daemon=True)
    wakeup = signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handle) for number in _CAUGHT}
    thread.start()
    if max_seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, min(max(max_seconds, 1e-3), _LONGEST_SECONDS))
    try:
        yield flag
    finally:
        if max_seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.write(wakeup_write, bytes([_CLOSED]))
        thread.join()
        os.close(wakeup_write)
        os.close(wakeup_read)


def _forget() -> None:
    signal.set_wakeup_fd(-1)


def _listen(flag: StopFlag, wakeup_read: int, exit_now: ExitNow) -> None:
    """Do what cannot wait for the main thread, until `_CLOSED` is read."""
    patience: float | None = None
    first: float | None = None  # when the first signal came
    while True:
        if not select.select([wakeup_read], [], [], patience)[0]:
            patience = None
            if flag.nothing_to_save:
                exit_now(flag.ending("nothing was trained yet"))
            continue
        number = os.read(wakeup_read, 1)[0]
        if number == _CLOSED:
            return
        if number not in _CAUGHT:
            continue
        if number == signal.SIGINT and first is not None:
            if time.monotonic() - first > _ONE_SECONDS:
                os._exit(130)
        elif number != signal.SIGALRM and first is None:
            first = time.monotonic()
        # The handler may still be waiting for the end of a native call.
        flag.signal = flag.signal or number
        patience = _PATIENCE_SECONDS
