"""Faults on demand: the N-th operation on a disk fails or kills, signals come at chosen moments."""

import builtins
import contextlib
import errno
import io
import itertools
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests._processes import Process

ENOSPC, EIO, KILL = "ENOSPC", "EIO", "KILL"
TERM, TWICE = "TERM", "TWICE"  # a signal comes at the operation, which then succeeds
_SIGNALS = {TERM: [signal.SIGTERM], TWICE: [signal.SIGINT, signal.SIGINT]}


class Disk:
    """Counts what is done to files below `root`; operation number `at` fails as `how` says.

    ENOSPC on a file that is opened is the kernel's own: what is opened is /dev/full.
    """

    def __init__(self, root: Path, at: int | None = None, how: str = ENOSPC):
        self.root = os.path.realpath(root)
        self.at = at
        self.how = how
        self.seen: list[str] = []

    def hit(self, operation: str, path: Any) -> bool:
        """Note an operation; return whether it is to fail (if it is to kill, it has)."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path = os.path.abspath(os.fspath(path))
        if not path.startswith(self.root + os.sep):
            return False
        self.seen.append(f"{operation} {os.path.relpath(path, self.root)}")
        if len(self.seen) == self.at and self.how in _SIGNALS:
            for number in _SIGNALS[self.how]:
                os.kill(os.getpid(), number)
                time.sleep(0.2)  # closer together they would be taken for one
            return False
        return len(self.seen) == self.at

    def fail(self, path: Any) -> None:
        """Kill this process, or raise the error."""
        if self.how == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, self.how)
        raise OSError(number, os.strerror(number), None if isinstance(path, int) else str(path))

    @contextmanager
    def armed(self) -> Iterator["Disk"]:
        """Replace the functions that change files while open."""
        from safetensors import torch as safetensors

        from nlpkit.checkpoints import hf_writing

        with contextlib.ExitStack() as stack:
            for name in ("fsync", "rename", "replace", "mkdir", "symlink", "unlink", "rmdir"):
                # a symlink's second argument is the file that appears
                which = 1 if name == "symlink" else 0
                # no power is cut here: what fsync does, beyond failing, would only take time
                real = _nothing if name == "fsync" else getattr(os, name)
                wrapped = self._before(name, real, which)
                stack.enter_context(mock.patch.object(os, name, wrapped))
            for module in (builtins, io):
                stack.enter_context(mock.patch.object(module, "open", self._open(module.open)))
            save_file = self._save_file(safetensors.save_file)
            stack.enter_context(mock.patch.object(hf_writing, "save_file", save_file))
            yield self

    def _before(self, name: str, real: Any, which: int) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            path = arguments[which]
            folder = options.get("dir_fd")
            if folder is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
            # Rubbish that cannot be removed is no error, but a kill may come there, too.
            removes = folder is not None or name == "rmdir"
            idle = (removes and self.how != KILL) or (name == "mkdir" and os.path.isdir(path))
            if not idle and self.hit(name, path):
                self.fail(arguments[which])
            return real(*arguments, **options)

        return wrapped

    def _open(self, real: Any) -> Any:
        def wrapped(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            writes = not isinstance(path, int) and set(mode) & set("wax+")
            if writes and self.hit("open", path):
                real(path, mode, *arguments, **options).close()
                # A device cannot be truncated, and an empty file fits on a full one.
                real_device = "+" not in mode and not str(path).endswith("/.metrics.jsonl")
                if self.how == ENOSPC and real_device:
                    return real("/dev/full", mode.replace("a", "w"), *arguments, **options)
                self.fail(path)
            return real(path, mode, *arguments, **options)

        return wrapped

    def _save_file(self, real: Any) -> Any:
        def wrapped(tensors: Any, path: Any, **options: Any) -> None:
            from safetensors import SafetensorError

            if self.hit("save_file", path):
                real(tensors, path, **options)
                os.truncate(path, os.path.getsize(path) // 2)
                if self.how == KILL:
                    self.fail(path)
                number = getattr(errno, self.how)
                raise SafetensorError(
                    f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})"
                )
            real(tensors, path, **options)

        return wrapped


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Give this process so many bytes of addresses, as `ulimit -v` does."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    yield


@contextmanager
def signal_in_evaluation(at: int, number: int) -> Iterator[None]:
    """Send this process a signal when the `at`-th held-out batch (1, 2, ...) is made."""
    from nlpkit.train import held_out

    made = itertools.count(1)
    real = held_out.held_out_batches

    def wrapped(*arguments: Any) -> Any:
        bins, batch = real(*arguments)

        def make(index: int) -> Any:
            if next(made) == at:
                os.kill(os.getpid(), number)
            return batch(index)

        return bins, make

    with mock.patch.object(held_out, "held_out_batches", wrapped):
        yield


@contextmanager
def signals_in_learning(numbers: list[int], apart: float, patience: float = 2.0) -> Iterator[None]:
    """Send this process these signals, so many seconds apart, when the library has all the text of
    a unigram tokenizer and learns: one native call. It is waited for `patience` seconds."""
    from nlpkit.tokenizers import unigram
    from nlpkit.train import signals as handling

    def send() -> None:
        for number in numbers:
            time.sleep(apart)
            os.kill(os.getpid(), number)

    real = unigram.repeat

    def wrapped(words: Any) -> Iterator[str]:
        yield from real(words)
        threading.Thread(target=send, daemon=True).start()

    with (
        mock.patch.object(unigram, "repeat", wrapped),
        mock.patch.object(handling, "_PATIENCE_SECONDS", patience),
    ):
        yield


def _nothing(handle: int) -> None:
    pass


@dataclass
class Ended:
    """How a process ended: its exit code (negative: the signal that killed it), and its output."""

    code: int
    stdout: str
    stderr: str
    seconds: float


def done(ended: Ended) -> Ended:
    """Return `ended`; fails unless it ended well."""
    assert ended.code == 0, ended.stderr
    return ended


class Server:
    """Runs command lines in processes of their own."""

    def run(
        self,
        *arguments: object,
        signals: dict[float, int] | None = None,
        when: tuple[Path, str] | None = None,
        disk: tuple[Path, int, str] | None = None,
        evaluation: tuple[int, int] | None = None,
        learning: tuple[list[int], float] | tuple[list[int], float, float] | None = None,
    ) -> Ended:
        """Run a command line to its end.

        `signals` (seconds -> number) are sent so long after the start or, with `when` = (file,
        text), after the file holds that text. `disk` = (root, at, how) arms a `Disk`, `evaluation`
        and `learning` are the arguments of `signal_in_evaluation` and `signals_in_learning`.
        """
        began = time.monotonic()
        process = Process(*arguments, around=partial(_armed, disk, evaluation, learning))
        if when is not None:
            path, text = when

            def is_there() -> bool:
                return path.exists() and text in path.read_text(errors="replace")

            while not is_there() and process.poll() is None:
                time.sleep(0.002)
        reference = time.monotonic()
        for seconds, number in sorted((signals or {}).items()):
            while time.monotonic() < reference + seconds and process.poll() is None:
                time.sleep(min(0.01, max(0.0, reference + seconds - time.monotonic())))
            process.send_signal(number)
        code = process.wait()
        seconds = time.monotonic() - began
        return Ended(code, *process.communicate(), seconds)


@contextmanager
def _armed(disk: Any, evaluation: Any, learning: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if disk:
            stack.enter_context(Disk(*disk).armed())
        if evaluation:
            stack.enter_context(signal_in_evaluation(*evaluation))
        if learning:
            stack.enter_context(signals_in_learning(*learning))
        yield
