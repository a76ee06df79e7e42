"""Documents -> token files, in parallel: the order is the files', whatever the number of workers.

Big plain files are cut into byte ranges. A worker reads a range, tokenises it into files of its
own and reports line numbers relative to the range; the parent takes the ranges in order, adds the
lines that came before, and appends. So ids go through the disk, not through memory, and of several
malformed rows the first in file order is the one that is reported.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from nlpkit.contracts.reader import Counts, RowError, TextFile
from nlpkit.contracts.tokenizer import Aligned, Tokenizer
from nlpkit.data.cache import Callbacks, write_errors
from nlpkit.data.documents import Document, Rows, finish, read
from nlpkit.data.lines import cuts
from nlpkit.data.settings import Config, Part
from nlpkit.disk import file_sha256
from nlpkit.errors import DataError

# A range takes a second or so: short enough to share work evenly, long against its overhead.
RANGE_BYTES = 4 << 20
# Below this, starting processes costs more than they save.
_ALONE_BYTES = 16 << 20
_BLOCK_TOKENS = 1 << 20
_BATCH_CHARACTERS = 1 << 18  # of a call of the tokenizer
_BATCH_DOCUMENTS = 1 << 12


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens: by which tokenizer, without unknown ones, with which marks."""

    tokenizer: Tokenizer  # workers get a pickled copy
    drop_unknown: bool = False
    marks: tuple[str, ...] = ()  # in the order of their bits


@dataclass(frozen=True)
class Range:
    """The bytes [start, stop) of a file: one piece of work. `out` begins its files' names."""

    file: int
    start: int
    stop: int | None
    out: Path


@dataclass
class ChunkResult:
    """What a range gave; lines count from its first. `error` is the row at which it stopped."""

    counts: Counts
    error: tuple[int, str] | None


@dataclass(frozen=True)
class BuildSpec:
    """Everything that tokenising a range needs besides the range; goes to the workers once."""

    files: tuple[TextFile, ...]
    rows: tuple[Rows, ...]
    config: Config
    part: Part
    encoding: Encoding

    @property
    def dtype(self) -> np.dtype:
        """uint16 where every id fits, else uint32; little-endian."""
        return np.dtype("<u2" if self.encoding.tokenizer.vocab_size <= 1 << 16 else "<u4")

    def run(self, piece: Range, should_stop: Callable[[], None]) -> ChunkResult:
        """Write the tokens, their marks and the document lengths of a range to its files."""
        counts = Counts()
        error = None
        file, rows = self.files[piece.file], self.rows[piece.file]
        within = piece.start, piece.stop
        documents = read(file, self.config, counts, rows=rows, part=self.part, within=within)
        with (
            write_errors(piece.out),
            open(f"{piece.out}.tokens", "wb") as tokens,
            open(f"{piece.out}.lengths", "wb") as lengths,
            open(f"{piece.out}.marks", "wb") as marks,
        ):
            try:
                for batch in batches(documents):
                    should_stop()
                    found = encode(batch, self.encoding, counts, rows.format == "sentences")
                    tokens.write(found.ids.astype(self.dtype).tobytes())
                    lengths.write(found.sizes.tobytes())
                    marks.write(found.marks.tobytes())
            except RowError as bad:
                error = (bad.line, bad.what)
        return ChunkResult(counts, error)


@dataclass
class Built:
    """What a build gave, for `meta.json`."""

    file_counts: list[Counts]
    histogram: np.ndarray
    documents: int
    tokens: int
    sha256: dict[str, str]


def build(spec: BuildSpec, folder: Path, workdir: Path, callbacks: Callbacks) -> Built:
    """Write `tokens.bin`, `offsets.npy` and, where marks are wanted, `marks.bin` into `folder`.

    Pieces of them go into `workdir`.

    Raise `DataError` at the first malformed row (or a file without documents), `FileError` when
    the disk is full.
    """
    from nlpkit.data._worker_pool import run_in_order

    total = sum(os.path.getsize(file.path) for file in spec.files)
    pieces = _pieces(spec.files, workdir)
    counts = [Counts() for _ in spec.files]
    histogram = np.zeros(spec.encoding.tokenizer.vocab_size, np.int64)
    digest = hashlib.sha256()
    at, done = 0, 0
    with (
        write_errors(folder),
        open(folder / "tokens.bin", "wb") as tokens,
        open(workdir / "lengths", "wb") as lengths,
        open((folder if spec.encoding.marks else workdir) / "marks.bin", "wb") as marks,
        closing(
            run_in_order(pieces, spec, _processes(spec, total), callbacks.should_stop)
        ) as results,
    ):
        for piece, result in results:
            while at < piece.file:
                finish(spec.files[at], spec.config, counts[at])
                at += 1
            _take(spec.files[at], result, counts[at])
            for block in _move(Path(f"{piece.out}.tokens"), tokens, callbacks.should_stop):
                digest.update(block)
                ids = np.frombuffer(block, spec.dtype)
                histogram += np.bincount(ids, minlength=len(histogram))
            for kind, out in (("lengths", lengths), ("marks", marks)):
                for _ in _move(Path(f"{piece.out}.{kind}"), out, callbacks.should_stop):
                    pass
            size = os.path.getsize(spec.files[at].path)
            done += (size if piece.stop is None else piece.stop) - piece.start
            callbacks.progress(done, total)
        for last in range(at, len(spec.files)):
            finish(spec.files[last], spec.config, counts[last])
    with write_errors(folder):
        documents = _write_offsets(workdir / "lengths", folder / "offsets.npy")
    hashes = {"tokens.bin": digest.hexdigest(), "offsets.npy": file_sha256(folder / "offsets.npy")}
    if spec.encoding.marks:
        hashes["marks.bin"] = file_sha256(folder / "marks.bin")
    return Built(counts, histogram, documents, int(histogram.sum()), hashes)


def _pieces(files: Sequence[TextFile], workdir: Path) -> Iterator[Range]:
    number = 0
    for index, file in enumerate(files):
        for start, stop in cuts(file, RANGE_BYTES):
            yield Range(index, start, stop, workdir / f"{number:08d}")
            number += 1


def _processes(spec: BuildSpec, total: int) -> int:
    sizes = [1 if f.gzip else -(-os.path.getsize(f.path) // RANGE_BYTES) for f in spec.files]
    if spec.config.workers is None and total <= _ALONE_BYTES:
        return 1
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    return max(1, min(spec.config.workers or cores, sum(sizes)))


def _take(file: TextFile, result: ChunkResult, counts: Counts) -> None:
    """Add a range's counts, its line numbers made absolute; raise the error it stopped at."""
    before = counts.lines
    if result.error is not None:
        line, what = result.error
        raise DataError(f"{file.name}:{before + line}: {what}")
    result.counts.first_bad = [
        bad._replace(line=bad.line + before) for bad in result.counts.first_bad
    ]
    counts.add(result.counts)


def _move(path: Path, out: BinaryIO, should_stop: Callable[[], None]) -> Iterator[bytes]:
    """Append a piece to `out` and remove it; yield its blocks, whole tokens each."""
    with open(path, "rb") as piece:
        while block := piece.read(4 * _BLOCK_TOKENS):
            should_stop()
            out.write(block)
            yield block
    path.unlink()


def _write_offsets(lengths: Path, out: Path) -> int:
    """Write the (D + 1,) int64 offsets that belong to a file of D int64 lengths; return D."""
    count = lengths.stat().st_size // 8
    with open(out, "wb") as stream, open(lengths, "rb") as source:
        header = {"descr": "<i8", "fortran_order": False, "shape": (count + 1,)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(np.zeros(1, "<i8").tobytes())
        offset = 0
        while block := source.read(8 * _BLOCK_TOKENS):
            ends = offset + np.cumsum(np.frombuffer(block, np.int64))
            stream.write(ends.astype("<i8").tobytes())
            offset = int(ends[-1])
    return count


class Encoded(NamedTuple):
    """The N tokens of the D documents that have any."""

    ids: np.ndarray  # (N,) int64
    marks: np.ndarray  # (N,) uint8, or nothing where none are wanted
    sizes: np.ndarray  # (D,) int64


def batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Yield the documents in lists, each long enough for one call of the tokenizer."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += sum(map(len, document.texts))
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def encode(
    documents: Sequence[Document], encoding: Encoding, counts: Counts, by_line: bool = False
) -> Encoded:
    """Return the tokens of all documents; unknown ones and documents without any are counted.

    With the mark `second_side`, a pair of which one text has no tokens has none, either. With
    `by_line` each line is a sentence.
    """
    tokenizer, marks = encoding.tokenizer, encoding.marks
    texts = [text for document in documents for text in document.texts]
    owner = np.repeat(np.arange(len(documents)), [len(d.texts) for d in documents])
    if marks:
        encoded, marked = _encode_with_marks(texts, owner, tokenizer, marks, by_line)
    else:
        encoded, marked = tokenizer.encode_batch(texts), np.empty(0, np.uint8)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    ids = np.fromiter(chain.from_iterable(encoded), np.int64, int(lengths.sum()))
    halves = np.unique(owner[lengths == 0])
    owner = np.repeat(owner, lengths)  # the document of each token
    if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        raise ValueError(
            f"the tokenizer gave ids {ids.min()} to {ids.max()}, "
            f"outside its vocabulary of {tokenizer.vocab_size}"
        )
    if tokenizer.unk_id is not None:
        known = ids != tokenizer.unk_id
        counts.unknown += int((~known).sum())
        if encoding.drop_unknown:
            ids, owner = ids[known], owner[known]
            marked = marked[known] if marks else marked
    if "second_side" in marks:  # one text without tokens leaves no pair
        whole = ~np.isin(owner, halves)
        ids, owner, marked = ids[whole], owner[whole], marked[whole]
    sizes = np.bincount(owner, minlength=len(documents))
    counts.tokenless += int((sizes == 0).sum())
    return Encoded(ids, marked, sizes[sizes > 0].astype(np.int64))


def _encode_with_marks(
    texts: list[str],
    owner: np.ndarray,
    tokenizer: Tokenizer,
    names: Sequence[str],
    by_line: bool,
) -> tuple[list[list[int]], np.ndarray]:
    """Return the ids of each text, and the marks (N,) uint8 of all their tokens."""
    from nlpkit.data.marks import mark_tokens

    assert isinstance(tokenizer, Aligned)  # `store.build` has checked it
    found = tokenizer.encode_with_offsets(texts)
    is_second = np.diff(owner, prepend=-1) == 0
    marks = [
        mark_tokens(text, offsets, names, bool(second), by_line)
        for text, (_, offsets), second in zip(texts, found, is_second, strict=True)
    ]
    return [ids for ids, _ in found], np.concatenate([np.empty(0, np.uint8), *marks])
