"""The interface of a reader of rows: a module with these names."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from nlpkit.data.lines import TextFile
from nlpkit.data.records import Counts, RowError

Values = dict[str, Any]  # strings, numbers, lists as in JSON, and arrays


class Reader(Protocol):
    """The rows of files of one format."""

    ENDINGS: tuple[str, ...]  # endings of file names, before .gz
    FILES: tuple[str, ...]  # the kinds of files that belong together, in the recipe's order
    INSIDE: str  # the glob for the files in a folder; empty if a folder cannot be given

    def rows(
        self, file: TextFile, columns: Sequence[str], counts: Counts
    ) -> Iterator[tuple[int, Values | RowError]]:
        """Yield for each row that is not blank its line (from 1), and its values or the error.

        The task reads `columns`. Lines, blank lines and empty texts are added to `counts`.

        Raises:
            DataError: the file cannot be used.
        """
