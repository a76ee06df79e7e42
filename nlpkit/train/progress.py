"""Shows how far long work is: a bar on a terminal, elsewhere a line every `log.LINE_SECONDS`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from nlpkit.train.log import NORMAL, Log

# Takes what is counted, such as "evaluated batches", how many are done, and how many there are.
Show: TypeAlias = Callable[[str, int, int], None]


@contextmanager
def follow(log: Log) -> Iterator[Show]:
    """Yield the function that shows progress on stderr; the bar is gone when the work is done."""
    if not log.console.is_terminal or log.verbosity < NORMAL:
        yield lambda what, done, total: log.info_rarely(f"{what}: {done:,} of {total:,}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None))
    counts = (TextColumn("{task.completed:,.0f}/{task.total:,.0f}"), TimeRemainingColumn())
    bar = Progress(*columns, *counts, console=log.console, transient=True, refresh_per_second=4)
    shown: list[str] = []

    def show(what: str, done: int, total: int) -> None:
        if shown != [what]:
            for task in bar.task_ids:
                bar.remove_task(task)
            shown[:] = [what]
            bar.add_task(what, total=total)
        bar.update(bar.task_ids[0], completed=done, total=total)

    with bar:
        yield show


def show_nothing(what: str, done: int, total: int) -> None:
    """Show nothing, for work that nobody follows."""
