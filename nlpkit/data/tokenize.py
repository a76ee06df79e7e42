"""Documents -> token files, in parallel: the order is the files', whatever the number of workers.

Big plain files are cut into byte ranges. A worker reads a range, tokenises it into files of its
own and reports line numbers relative to the range; the parent takes the ranges in order, adds the
lines that came before, and appends. So ids go through the disk, not through memory, and of several
malformed rows the first in file order is the one that is reported.
"""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np

from nlpkit.contracts.reader import Counts, RowError, TextFile
from nlpkit.contracts.tokenizer import Aligned, Tokenizer
from nlpkit.data import formats
from nlpkit.data.cache import Callbacks, write_errors
from nlpkit.data.documents import Document, finish, gather, read
from nlpkit.data.lines import LONGEST_LINE, open_bytes
from nlpkit.data.settings import Config, Part
from nlpkit.errors import DataError

# A range takes a second or so: short enough to share work evenly, long against its overhead.
RANGE_BYTES = 4 << 20
# Below this, starting processes costs more than they save.
_ALONE_BYTES = 16 << 20
_BATCH_CHARACTERS = 1 << 18  # of a call of the tokenizer
_BATCH_DOCUMENTS = 1 << 12


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens: by which tokenizer, without unknown ones, with which flags."""

    tokenizer: Tokenizer  # workers get a pickled copy
    drop_unknown: bool = False
    token_flags: tuple[str, ...] = ()  # in the order of their bits

    @property
    def dtype(self) -> np.dtype:
        """uint16 where every id fits, else uint32; little-endian."""
        return np.dtype("<u2" if self.tokenizer.vocab_size <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class Piece:
    """A file, the number `index` among all, or a range of it. `out` begins its files' names."""

    index: int
    file: TextFile
    out: Path


# The counts of a piece, and the row at which that stopped.
Result: TypeAlias = tuple[Counts, RowError | None]


@dataclass(frozen=True)
class Job:
    """Everything that tokenising a piece needs besides the piece; goes to the workers once."""

    config: Config
    part: Part
    encoding: Encoding

    def run(self, piece: Piece, should_stop: Callable[[], None] = lambda: None) -> Result:
        """Write tokens, lengths of documents and flags; return the row at which that stopped."""
        counts = Counts()
        documents = read(piece.file, self.config, counts, part=self.part)
        with write_errors(piece.out), ExitStack() as stack:
            outs = [stack.enter_context(open(f"{piece.out}.{kind}", "wb")) for kind in _KINDS]
            try:
                for batch in gather(documents, _BATCH_CHARACTERS, _BATCH_DOCUMENTS):
                    should_stop()
                    arrays = encode(batch, self.encoding, counts, piece.file.format == "sentences")
                    for out, array in zip(outs, arrays, strict=True):
                        out.write(array.tobytes())
            except RowError as bad:
                return counts, bad
        return counts, None


_KINDS = ("tokens", "lengths", "flags")


def tokenize(
    files: Sequence[TextFile], job: Job, folder: Path, workdir: Path, callbacks: Callbacks
) -> list[Counts]:
    """Write `tokens.bin`, `offsets.npy` and, where flags are wanted, `marks.bin` into `folder`.

    Pieces of them go into `workdir`. Return the counts of each file.

    Raise `DataError` at the first malformed row (or a file without documents), `FileError` when
    the disk is full.
    """
    total = sum(os.path.getsize(file.path) for file in files)
    counts = [Counts() for _ in files]
    at, done = 0, 0
    with write_errors(folder), ExitStack() as stack:
        places = (folder / "tokens.bin", workdir / "lengths", folder / "marks.bin")
        outs = [stack.enter_context(open(place, "wb")) for place in places]
        results = _results(files, job, workdir, total, callbacks.should_stop)
        for piece, (found, error) in stack.enter_context(closing(results)):
            while at < piece.index:
                finish(files[at], job.config, counts[at])
                at += 1
            _add(files[at], found, error, counts[at])
            for kind, out in zip(_KINDS, outs, strict=True):
                path = Path(f"{piece.out}.{kind}")
                with open(path, "rb") as source:
                    shutil.copyfileobj(source, out, 1 << 20)
                path.unlink()
            stop = piece.file.stop
            done += (os.path.getsize(piece.file.path) if stop is None else stop) - piece.file.start
            callbacks.progress(done, total)
        for last in range(at, len(files)):
            finish(files[last], job.config, counts[last])
    lengths = np.fromfile(workdir / "lengths", np.int64)
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]))
    if not job.encoding.token_flags:
        (folder / "marks.bin").unlink()
    return counts


def _results(
    files: Sequence[TextFile], job: Job, workdir: Path, total: int, should_stop: Callable[[], None]
) -> Generator[tuple[Piece, Result], None, None]:
    parts = ((index, part) for index, file in enumerate(files) for part in split(file))
    pieces = (Piece(i, part, workdir / f"{n:08d}") for n, (i, part) in enumerate(parts))
    workers = job.config.workers
    if workers is None:
        workers = 1 if total <= _ALONE_BYTES else _count_cores()
    if workers == 1:
        for piece in pieces:
            should_stop()
            yield piece, job.run(piece, should_stop)
        return
    from nlpkit.data._worker_pool import run_in_workers

    # Spawned, because this process has threads (torch's, the tokenizer's).
    context = multiprocessing.get_context("spawn")
    yield from run_in_workers(
        job.run, pieces, workers, should_stop, setting="data.workers: 1", context=context
    )


def _count_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def split(file: TextFile) -> Iterator[TextFile]:
    """Yield ranges of about `RANGE_BYTES` of a file, which end where a row ends, in order.

    A gzip file, one to which a second belongs, one whose rows are no lines, and one of which only
    the first rows are read is one range.
    Documents between empty lines are cut there only.
    """
    total = os.path.getsize(file.path)
    by_line = formats.documents(file.format) == "lines" and file.second is None
    if file.gzip or not by_line or total <= RANGE_BYTES or file.max_rows is not None:
        yield file
        return
    start = 0
    with open_bytes(file) as stream:
        while start < total:
            # One byte back, so that a target that is a line's beginning stays one.
            stream.seek(start + RANGE_BYTES - 1)
            stream.readline(LONGEST_LINE + 1)  # a longer one is refused by whoever reads the range
            if file.format in ("paragraphs", "sentences"):
                while stream.readline(LONGEST_LINE + 1) not in (b"\n", b"\r\n", b""):
                    pass
            stop = min(stream.tell(), total)
            yield replace(file, start=start, stop=stop)
            start = stop


def _add(file: TextFile, found: Counts, error: RowError | None, counts: Counts) -> None:
    """Add a range's counts, with absolute line numbers; raise the error at which it stopped."""
    if error is not None:
        raise DataError(f"{file.name}:{counts.lines + error.line}: {error.what}")
    found.first_bad = [bad._replace(line=bad.line + counts.lines) for bad in found.first_bad]
    counts.add(found)


def encode(
    documents: Sequence[Document], encoding: Encoding, counts: Counts, by_line: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids (N,) of all documents, the lengths (D,) of those with tokens, and flags.

    The flags are (N,) uint8, or nothing where none are wanted; unknown tokens and documents without
    any token are counted.
    With the flag `second_side`, a pair of which one text has no tokens has none, either. With
    `by_line` each line is a sentence.
    """
    tokenizer, names = encoding.tokenizer, encoding.token_flags
    texts = [text for document in documents for text in document.texts]
    owner = np.repeat(np.arange(len(documents)), [len(d.texts) for d in documents])
    flags = np.empty(0, np.uint8)
    if names:
        from nlpkit.data.token_flags import encode_with_flags

        assert isinstance(tokenizer, Aligned)  # `store.build` has checked it
        is_second = np.diff(owner, prepend=-1) == 0
        encoded, flags = encode_with_flags(texts, is_second, tokenizer, names, by_line)
    else:
        encoded = tokenizer.encode_batch(texts)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    ids = np.fromiter(chain.from_iterable(encoded), np.int64, int(lengths.sum()))
    halves = np.unique(owner[lengths == 0])
    owner = np.repeat(owner, lengths)  # the document of each token
    if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        raise DataError(
            f"the tokenizer gave ids {ids.min()} to {ids.max()}, "
            f"outside its vocabulary of {tokenizer.vocab_size}: its ids may have a hole"
        )
    keep = np.ones(len(ids), bool)
    if tokenizer.unk_id is not None:
        known = ids != tokenizer.unk_id
        counts.unknown += int((~known).sum())
        keep &= known | (not encoding.drop_unknown)
    if "second_side" in names:  # one text without tokens leaves no pair
        keep &= ~np.isin(owner, halves)
    sizes = np.bincount(owner[keep], minlength=len(documents))
    counts.tokenless += int((sizes == 0).sum())
    ids = ids[keep].astype(encoding.dtype)
    return ids, sizes[sizes > 0].astype(np.int64), flags[keep] if names else flags
