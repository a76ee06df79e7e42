"""Worker processes whose results come back in order.

If the parent is killed, its workers end; if a worker is killed, the parent raises an error.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from nlpkit import registry
from nlpkit.errors import NlpkitError, OutOfMemory

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_POLL_SECONDS = 0.1
# How many finished pieces may wait for an earlier one that takes longer.
_AHEAD = 64

_work: Callable[[Any], object]  # that of a worker process


def run_in_workers(
    work: Callable[[Piece], Result],
    pieces: Iterator[Piece],
    processes: int,
    should_stop: Callable[[], None],
    *,
    setting: str,
    context: BaseContext,
    ahead: int = _AHEAD,
) -> Generator[tuple[Piece, Result], None, None]:
    """Yield every piece with its result, in the order of `pieces`, from worker processes.

    An error in a worker is raised at its piece's turn. Close the iterator to end the workers.

    Args:
        work: makes the result of a piece; it can be pickled unless the workers are forked.
        setting: what a user can set so that less memory is needed.
        ahead: how many results may wait for an earlier one.

    Raises:
        OutOfMemory: a worker was killed.
    """
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(processes, context, _begin, (work, registry.OUTSIDE))
    waiting: deque[tuple[Piece, Future[Result]]] = deque()
    try:
        while True:
            for piece in islice(pieces, processes + ahead - len(waiting)):
                with _interrupts_held():
                    waiting.append((piece, pool.submit(_run, piece)))
            if not waiting:
                return
            piece, future = waiting.popleft()
            yield piece, _wait_for(future, should_stop)
    except BrokenProcessPool as error:
        should_stop()  # the signal that ended the worker may have been sent to the parent, too
        raise OutOfMemory(
            "a worker process ended by itself (killed, usually for lack of memory); fewer workers "
            f"need less: {setting}"
        ) from error
    finally:
        for worker in multiprocessing.active_children():
            if worker not in others:
                worker.kill()
        pool.shutdown(cancel_futures=True)


def _wait_for(future: Future[Result], should_stop: Callable[[], None]) -> Result:
    while True:
        should_stop()
        with suppress(TimeoutError):
            return future.result(_POLL_SECONDS)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT in this context: processes that are started in it do not get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(work: Callable[[Piece], Result], outside: set[str]) -> None:
    global _work
    _work = work
    registry.OUTSIDE.update(outside)
    # These signals reach the whole process group, but only the parent ends its workers.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # There is one process for each core already, so none needs a pool of threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _run(piece: Any) -> Any:
    try:
        return _work(piece)
    except NlpkitError:
        raise
    except Exception as error:  # a bug, or a mistake in a user's part: not every one can be pickled
        from nlpkit.outside_parts import error_of_part

        found = error_of_part(error)
        raise found or RuntimeError(f"in a worker process:\n{traceback.format_exc()}") from None
