"""Runs a command line in a process of its own: what fails or is killed there ends nothing here."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Forks:
    """Starts command lines one after the other, and passes signals on to the running one."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the first one that was received
        self._child = 0

    @contextmanager
    def pass_signals_on(self) -> Iterator[None]:
        """In this context a signal ends the running command line, not this process."""

        def handle(number: int, _: FrameType | None) -> None:
            self.signal = self.signal or number
            if self._child:
                os.kill(self._child, number)

        before = {number: signal.signal(number, handle) for number in _PASSED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, arguments: Sequence[str]) -> int:
        """Run `nlpkit ARGUMENTS`, its stdout thrown away; return its exit code.

        The code of a process that a signal has killed is 128 and the signal's number, as in shells.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        # Between `fork` and its own handlers, the new process must not pass signals on.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        child = os.fork()
        if child == 0:
            os.close(writing)
            _run_child(arguments, reading)
        self._child = child
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        os.close(reading)
        try:
            _, status = os.waitpid(child, 0)
        finally:
            self._child = 0
            os.close(writing)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def _run_child(arguments: Sequence[str], reading: int) -> None:
    """Run the command line and end this process."""
    code = 1
    try:
        # ^C reaches a group of processes at once; here the parent passes it on, once.
        os.setpgid(0, 0)
        for number in _PASSED_ON:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT
                          else signal.SIG_DFL)  # fmt: skip
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        threading.Thread(target=_end_with_parent, args=(reading,), daemon=True).start()
        from nlpkit import cli

        code = cli.run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _end_with_parent(reading: int) -> None:
    """Save and stop when the parent is gone, also one that was killed: its pipe is closed then."""
    os.read(reading, 1)
    os.kill(os.getpid(), signal.SIGTERM)
