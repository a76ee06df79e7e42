"""Worker processes whose results come back in order.

Each worker has its own pipe. If the parent is killed, the worker finds its pipe closed and ends; if
a worker is killed, the parent raises an error at the turn of the piece that is lost.
"""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Generic, Protocol, TypeVar, cast

from nlpkit import registry
from nlpkit.errors import NlpkitError, OutOfMemory

Piece = TypeVar("Piece")
Result = TypeVar("Result")
PieceIn = TypeVar("PieceIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)

_POLL_SECONDS = 0.1
# How many finished pieces may wait for an earlier one that takes longer.
_AHEAD = 64
_GROUP_SIGNALS = {"SIGINT", "SIGTERM", "SIGHUP"} & signal.Signals.__members__.keys()


class Job(Protocol[PieceIn, ResultOut]):
    """Turns a piece of work into a result; it can be pickled unless its workers are forked."""

    def run(self, piece: PieceIn, should_stop: Callable[[], None]) -> ResultOut: ...


def run_in_order(
    pieces: Iterator[Piece],
    job: Job[Piece, Result],
    processes: int,
    should_stop: Callable[[], None],
) -> Generator[tuple[Piece, Result], None, None]:
    """Yield every piece with its result, in the order of `pieces`; one process is this one.

    An error in a worker is raised at its piece's turn. Close the iterator to end the workers. They
    are started by `spawn`, because the parent has threads (torch's, the tokenizer's).
    """
    if processes == 1:
        for piece in pieces:
            should_stop()
            yield piece, job.run(piece, should_stop)
        return
    yield from run_in_workers(
        *(pieces, job, processes, should_stop),
        setting="data.workers: 1",
        context=multiprocessing.get_context("spawn"),
    )


def run_in_workers(
    pieces: Iterator[Piece],
    job: Job[Piece, Result],
    processes: int,
    should_stop: Callable[[], None],
    *,
    setting: str,
    context: BaseContext,
    ahead: int = _AHEAD,
) -> Generator[tuple[Piece, Result], None, None]:
    """Yield every piece with its result, in the order of `pieces`, from worker processes.

    Args:
        setting: what a user can set so that less memory is needed.
        ahead: how many results may wait for an earlier one.

    Raises:
        OutOfMemory: a worker was killed.
    """
    pool = _WorkerPool(job, processes, should_stop, setting, context)
    try:
        yield from pool.results(pieces, ahead)
    finally:
        pool.end()


class _WorkerPool(Generic[Piece, Result]):
    def __init__(
        self,
        job: Job[Piece, Result],
        size: int,
        should_stop: Callable[[], None],
        setting: str,
        context: BaseContext,
    ):
        self._should_stop, self._setting = should_stop, setting
        self._workers: dict[Connection, BaseProcess] = {}
        with _interrupts_held():
            for _ in range(size):
                ours, theirs = context.Pipe()
                # A forked worker has the parent's ends of all pipes: none would be closed when the
                # parent is killed.
                inherited = [*self._workers, ours] if context.get_start_method() == "fork" else []
                worker = context.Process(  # type: ignore[attr-defined]
                    target=_serve, args=(theirs, inherited, job, registry.OUTSIDE), daemon=True
                )
                worker.start()
                theirs.close()
                self._workers[ours] = worker

    def results(self, pieces: Iterator[Piece], ahead: int) -> Iterator[tuple[Piece, Result]]:
        idle = list(self._workers)
        busy: dict[Connection, int] = {}
        waiting: deque[tuple[int, Piece]] = deque()
        ready: dict[int, object] = {}
        number = 0
        more = True
        while True:
            self._should_stop()
            is_ready = bool(waiting) and waiting[0][0] in ready
            seconds = 0 if is_ready or not busy else _POLL_SECONDS
            for pipe in cast(list[Connection], wait(list(busy), timeout=seconds)):
                ready[busy.pop(pipe)] = self._receive(pipe)
                idle.append(pipe)
            # Before a result is yielded, so that workers prepare others while it is used.
            while more and idle and len(waiting) < ahead + len(self._workers):
                try:
                    piece = next(pieces)
                except StopIteration:
                    more = False
                    break
                pipe = idle.pop()
                if error := self._send(pipe, piece):
                    ready[number] = error
                else:
                    busy[pipe] = number
                waiting.append((number, piece))
                number += 1
            if not waiting:
                return
            if waiting[0][0] in ready:
                index, piece = waiting.popleft()
                yield piece, cast(Result, _unwrap(ready.pop(index)))

    def _send(self, pipe: Connection, piece: Piece) -> NlpkitError | None:
        try:
            pipe.send(piece)
        except OSError:
            return self._died(pipe)
        return None

    def _receive(self, pipe: Connection) -> object:
        try:
            return pipe.recv()
        except (EOFError, OSError):
            return self._died(pipe)

    def _died(self, pipe: Connection) -> NlpkitError:
        worker = self._workers[pipe]
        worker.join(1)
        # The signal that ended the worker may have been sent to the parent, too.
        self._should_stop()
        return OutOfMemory(
            f"a worker process ended by itself (exit status {worker.exitcode}; -9 is usually lack "
            f"of memory); fewer workers need less: {self._setting}"
        )

    def end(self) -> None:
        for pipe, worker in self._workers.items():
            worker.kill()
            pipe.close()
        for worker in self._workers.values():
            worker.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT in this context: processes that are started in it do not get it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unwrap(answer: object) -> object:
    if isinstance(answer, NlpkitError):
        raise answer
    if isinstance(answer, _Bug):
        raise RuntimeError(f"in a worker process:\n{answer.trace}")
    return answer


class _Bug:
    """A traceback as text: an exception of any kind need not survive pickling."""

    def __init__(self, trace: str):
        self.trace = trace


def _serve(
    pipe: Connection, inherited: list[Connection], job: Job[Piece, Result], outside: set[str]
) -> None:
    """Run the job on each piece from the pipe until it is closed."""
    registry.OUTSIDE.update(outside)
    for other in inherited:
        other.close()
    # These signals reach the whole process group, but only the parent ends its workers.
    for name in _GROUP_SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    # There is one process for each core already, so none needs a pool of threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    while True:
        answer: object
        try:
            piece = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = job.run(piece, lambda: None)
        except NlpkitError as error:
            answer = error
        except Exception as error:  # a bug, which the parent raises with this traceback
            answer = registry.error_of_part(error) or _Bug(traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:
            return
