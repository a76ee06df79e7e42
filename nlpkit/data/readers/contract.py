"""What every reader of rows offers: a module with these names."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from nlpkit.data.lines import TextFile
from nlpkit.data.records import Counts, RowError

Values = dict[str, Any]  # strings, numbers, lists as in JSON, and arrays


class Reader(Protocol):
    """The rows of files of one format."""

    ENDINGS: tuple[str, ...]  # of file names, before .gz, that tell the format
    FILES: tuple[str, ...]  # what the files are that belong together, in the recipe's order
    INSIDE: str  # where a folder may be named as a whole, the glob of its files; else empty

    def rows(
        self, file: TextFile, columns: Sequence[str], counts: Counts
    ) -> Iterator[tuple[int, Values | RowError]]:
        """Yield line (from 1) and values, or what is wrong, of each row that is not blank.

        `columns` are those that the task reads. Lines, blank ones and empty texts are counted.

        Raises:
            DataError: the whole file is unfit.
        """
