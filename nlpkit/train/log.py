"""Writes the output of a run: `metrics.jsonl` for programs, and progress on stderr for people.

On a terminal, progress is a bar with loss, speed and remaining time. Otherwise, it is a line with a
time stamp every 10 seconds. Nothing is written to stdout.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from nlpkit.disk import name_path_in_errors, write_text

if TYPE_CHECKING:
    from nlpkit.train.trackers import Trackers

QUIET, NORMAL, VERBOSE = 0, 1, 2
LINE_SECONDS = 10.0  # between progress lines

# Keys of metrics.jsonl whose values differ between two runs of the same recipe.
TIME_KEYS = ("seconds", "tokens_per_second", "memory_bytes", "spent")


class _ErrorTolerantStream:
    """A stream without write errors: a closed terminal or a full disk must not end a run."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class Log:
    """Prints messages on stderr; `live` shows progress while it is open."""

    def __init__(self, verbosity: int = NORMAL, stream: IO[str] | None = None):
        self.verbosity = verbosity
        tolerant: Any = _ErrorTolerantStream(stream or sys.stderr)
        self.console = Console(file=tolerant, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task = TaskID(0)  # of `_progress`
        self._last_line = 0.0
        self._waits_since: float | None = None  # of `info_rarely`

    def info(self, text: str) -> None:
        """Print one line, unless `-q` is given."""
        if self.verbosity >= NORMAL:
            self._print(text)

    def detail(self, text: str) -> None:
        """Print one line, only if `-v` is given."""
        if self.verbosity >= VERBOSE:
            self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning, also if `-q` is given; of several processes, the first one does."""
        if self.verbosity >= QUIET:
            self._print(f"warning: {text}", style="yellow")

    def warn_all(self, texts: Iterable[str]) -> None:
        """Print warnings, a line each."""
        for text in texts:
            self.warn(text)

    def _print(self, text: str, style: str | None = None) -> None:
        stamp = "" if self.console.is_terminal else f"{datetime.now():%Y-%m-%d %H:%M:%S} "
        self.console.print(stamp + text, style=style, markup=False)

    @contextmanager
    def live(self, total: int | None, done: int, progress: float) -> Iterator[None]:
        """Show progress from step `done`, with this share of the run, to `total` while open.

        With a budget of time, `total` is None.
        """
        if not self.console.is_terminal or self.verbosity < NORMAL:
            yield
            return
        self._progress = Progress(
            TextColumn("step {task.fields[at]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[news]}"),
            console=self.console,
        )
        with self._progress:
            at = _of_total(done, total)
            self._task = self._progress.add_task("", total=1.0, at=at, news="")
            self._progress.update(self._task, completed=progress)
            yield
        self._progress = None

    def step(
        self,
        step: int,
        total: int | None,
        progress: float,
        loss: float,
        speed: float,
        left: float,
    ) -> None:
        """Show every step on a terminal, otherwise one step every `LINE_SECONDS`."""
        at = _of_total(step, total)
        news = f"loss {loss:.4f}  {speed:,.0f} tokens/s  {timedelta(seconds=round(left))} left"
        if self._progress is not None:
            self._progress.update(self._task, completed=progress, at=at, news=news)
        elif not self.console.is_terminal:
            now = time.monotonic()
            if self._last_line == 0 or now - self._last_line >= LINE_SECONDS or progress == 1:
                self._last_line = now
                share = "" if total else f" ({progress:.0%} of the budget)"
                self.info(f"step {at}{share}  {news}")

    def evaluating(self, done: int, total: int) -> None:
        """Show on a terminal how many batches of an evaluation are done."""
        if self._progress is not None:
            self._progress.update(self._task, news=f"evaluating, batch {done + 1}/{total}")

    def tokenizing(self, done: int, total: int) -> None:
        """Show how many bytes of text are tokenised, if it takes long."""
        self.info_rarely(f"tokenised {done / 1e6:,.0f} of {total / 1e6:,.0f} MB of text")

    def reading(self, texts: int) -> None:
        """Show how many texts a tokenizer is trained on so far, if it takes long."""
        self.info_rarely(f"tokenizer: {texts:,} texts read")

    def info_rarely(self, text: str) -> None:
        """Print a line when `LINE_SECONDS` are over since the first call, or since the last one."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since >= LINE_SECONDS:
            self._waits_since = now
            self.info(text)


def _of_total(step: int, total: int | None) -> str:
    return f"{step}/{total}" if total else str(step)


class Metrics:
    """`metrics.jsonl`: one JSON object for each logged step and each evaluation, in order."""

    def __init__(
        self,
        path: Path,
        last_step: int,
        evaluated_step: int,
        trackers: "Trackers | None" = None,
        warn: Callable[[str], None] = lambda message: None,
    ):
        """Open the file to append lines after `last_step`; later lines of a killed run are removed.

        `trackers` get each record after it is written.
        """
        self.path, self._trackers = path, trackers
        with name_path_in_errors(path):
            if path.exists():
                from nlpkit.train import kept_metrics

                write_text(path, kept_metrics.select(path, (last_step, evaluated_step), warn))
            # Unbuffered, because `close` must not repeat a failed write.
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(self, record: Mapping[str, object]) -> None:
        """Append a record."""
        with name_path_in_errors(self.path):
            line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            while line:
                line = line[self._file.write(line) :]
        if self._trackers:
            self._trackers.log(record)

    def close(self) -> None:
        """Close the file and the trackers."""
        self._file.close()
        if self._trackers:
            self._trackers.finish()
