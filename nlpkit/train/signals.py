"""Handles SIGTERM, SIGINT, SIGHUP and the time limit: they set a flag, which the program checks.

Python runs signal handlers only between native calls, and one call may take minutes (training of a
tokenizer, initialization of a big model). Therefore a thread also receives the signals, through
`set_wakeup_fd`. It can run while a native call has released the GIL, as the calls of torch and
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

_CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
# `timeout` and similar programs send a signal to the process and to its group. Two SIGINTs within
# this time count as one.
_ONE_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0
_MAX_SECONDS = 1e9  # `setitimer` refuses much larger values
_CLOSED = 0  # no signal has this number

ExitNow = Callable[[Stopped | TryAgain], NoReturn]


class StopFlag:
    """The signal that was received, if any; SIGALRM means that the time limit is reached."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.nothing_to_save = False

    @property
    def raised(self) -> bool:
        """Whether to save and stop."""
        return self.signal is not None

    def check(self) -> None:
        """Raise `Stopped` or `TryAgain` if the flag is set; for phases with nothing to save."""
        if self.raised:
            raise self.ending("nothing was trained yet")

    @contextmanager
    def abortable(self) -> Iterator[None]:
        """In this context, a process that does not stop soon after a signal is ended."""
        self.nothing_to_save = True
        try:
            yield
        finally:
            self.nothing_to_save = False

    def ending(self, what: str) -> Stopped | TryAgain:
        """Return the error that ends the program; `what` describes what was saved."""
        if self.signal is None or self.signal == signal.SIGALRM:
            other = "" if self.signal else "another process was told to stop, or "
            return TryAgain(f"{other}the time limit is reached; {what}")
        return Stopped(f"stopped by {signal.Signals(self.signal).name}; {what}", self.signal)


@contextmanager
def catch_signals(exit_now: ExitNow, max_seconds: float | None = None) -> Iterator[StopFlag]:
    """Yield the flag that signals set; a second SIGINT ends the process at once, with code 130.

    `exit_now` is called from another thread, and only within `StopFlag.abortable`.
    """
    flag = StopFlag()

    def handle(number: int, _: FrameType | None) -> None:
        flag.signal = flag.signal or number

    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    # Control-C goes to all processes of the group: forked workers must not report it again.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    thread = threading.Thread(target=_listen, args=(flag, wakeup_read, exit_now), daemon=True)
    wakeup = signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # the run outlives its terminal
    before = {n: signal.signal(n, handle) for n in _CAUGHT if n != signal.SIGHUP or not nohup}
    thread.start()
    if max_seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, min(max(max_seconds, 1e-3), _MAX_SECONDS))
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


def _listen(flag: StopFlag, wakeup_read: int, exit_now: ExitNow) -> None:
    """Set the flag, and end the process if necessary, until `_CLOSED` is read."""
    patience: float | None = None
    first: float | None = None  # the time of the first signal
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
        # The handler may still wait for the end of a native call.
        flag.signal = flag.signal or number
        patience = _PATIENCE_SECONDS
