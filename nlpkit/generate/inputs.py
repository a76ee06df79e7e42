"""Reads the inputs of generation, one per line, from a file or stdin without waiting for more."""

import os
import select
from collections import deque
from collections.abc import Iterator

from nlpkit.contracts.reader import RowError, TextFile
from nlpkit.data.lines import check_characters, decode, lines
from nlpkit.data.readers import jsonl
from nlpkit.data.template import text_at
from nlpkit.errors import DataError

_STDIN = 0
_AT_ONCE = 1 << 16  # bytes
_UTF8_MARK = b"\xef\xbb\xbf"


class Inputs:
    """The texts of `path` (`-`: stdin); with `key`, lines are JSON objects with the text in `key`.

    Reading ends at a malformed line, which `error` describes. The lines before it are used.
    """

    def __init__(self, path: str, key: str | None):
        self.name = "stdin" if path == "-" else path
        self.error: DataError | None = None
        self.blank = 0  # empty lines between the JSON objects
        self._key = key
        self._pipe = _Pipe(_STDIN) if path == "-" else None
        self._file = TextFile(path, path, "text", gzip=path.endswith(".gz"))

    @property
    def is_terminal(self) -> bool:
        """Return whether the input is a terminal."""
        return self._pipe is not None and os.isatty(_STDIN)

    def ready(self) -> bool:
        """Return whether the next line, or the end, can be read without waiting."""
        return self._pipe is None or self._pipe.ready(self._key is None)

    def __iter__(self) -> Iterator[str]:
        raw_lines = iter(self._pipe) if self._pipe else lines(self._file)
        number = 0
        try:
            for raw in raw_lines:
                number += 1
                if self._key is not None and not raw.strip():
                    self.blank += 1
                    continue
                text = decode(raw)
                if self._key is not None:
                    text = text_at(jsonl.parse(text, self._key), self._key)
                check_characters(text)
                yield text
        except RowError as error:
            self.error = DataError(f"{self.name}:{number}: {error.what}")
        except DataError as error:
            self.error = error


class _Pipe:
    """The lines of a file descriptor, without `\\n`, `\\r\\n` and the byte order mark.

    With Python's own buffer, `ready` could not find out whether there is a complete line.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._partial = b""  # a line whose end was not read yet
        self._first = True
        self._ended = False

    def ready(self, blank: bool) -> bool:
        """Return whether a line, with `blank` also an empty one, or the end is there."""
        while not self._ended and not any(blank or line.strip() for line in self._lines):
            if not self._is_readable(0):
                return False
            self._read()
        return True

    def _is_readable(self, seconds: float) -> bool:
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def __iter__(self) -> Iterator[bytes]:
        while True:
            while not self._lines and not self._ended:
                self._read()
            if not self._lines:
                return
            line = self._lines.popleft().removesuffix(b"\r")
            yield line.removeprefix(_UTF8_MARK) if self._first else line
            self._first = False

    def _read(self) -> None:
        # A signal right before `read` would wait for the next line: Python looks after each second.
        while not self._is_readable(1):
            pass
        chunk = os.read(self._descriptor, _AT_ONCE)
        *complete, self._partial = (self._partial + chunk).split(b"\n")
        self._lines.extend(complete)
        if not chunk:
            self._ended = True
            if self._partial:
                self._lines.append(self._partial)
