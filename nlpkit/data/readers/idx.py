"""Images in MNIST's idx format, plain or gzip: a file of images and a file of labels.

A header has 4-byte big-endian integers: 2051, count, height, width for images; 2049, count for
labels. Then follows one byte per pixel, row by row, or one byte per label. LeCun et al., "The MNIST
database of handwritten digits".
"""

import struct
from collections.abc import Sequence
from typing import IO

import numpy as np

from nlpkit.contracts.reader import Counts, Rows, TextFile
from nlpkit.data.lines import file_errors, open_bytes
from nlpkit.errors import DataError
from nlpkit.plural import number_of

ENDINGS = ("-idx3-ubyte", "-idx1-ubyte", ".idx3-ubyte", ".idx1-ubyte")
FILES = ("images", "labels")
DOCUMENTS = ""
_IMAGES, _LABELS = 2051, 2049
_MAX_PIXELS = 1 << 26  # per image; a header with more is broken
_KINDS = {_IMAGES: "images", _LABELS: "labels"}


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield `image`, uint8 (height, width), and `label`, an integer; the line is the row number.

    Raises:
        DataError: a header is broken, a file is cut short or too long, or the counts differ.
    """
    assert file.second is not None
    with open_bytes(file) as images, open_bytes(file.second) as labels:
        count, height, width = _header(file, images, _IMAGES, 3)
        (label_count,) = _header(file.second, labels, _LABELS, 1)
        if count != label_count:
            raise DataError(
                f"{file.name} has {number_of(count, 'images')} and {file.second.name} "
                f"{number_of(label_count, 'labels')}"
            )
        for number in range(1, count + 1):
            pixels = _read(file, images, height * width, f"image {number:,} of {count:,}")
            label = _read(file.second, labels, 1, f"label {number:,} of {count:,}")
            counts.lines += 1
            image = np.frombuffer(pixels, np.uint8).reshape(height, width)
            yield number, {"image": image, "label": label[0]}
        for part, stream in ((file, images), (file.second, labels)):
            with file_errors(part.name):
                more = stream.read(1)
            if more:
                raise DataError(f"{part.name}: its header says {count:,}, but there are more bytes")


def _header(file: TextFile, stream: IO[bytes], magic: int, dimensions: int) -> tuple[int, ...]:
    """Return the sizes in a header; raise `DataError` if its first number is not `magic`."""
    (number,) = struct.unpack(">I", _read(file, stream, 4, "the header"))
    if number != magic:
        hint = f"; it begins with {number}"
        if number in _KINDS:
            hint = f" but of {_KINDS[number]}; name images first, then labels"
        elif number >> 16 == 0x1F8B:
            hint = "; it looks like a gzip file, which must be named .gz"
        raise DataError(f"{file.name}: not an idx file of {_KINDS[magic]} ({magic}){hint}")
    sizes = struct.unpack(f">{dimensions}I", _read(file, stream, 4 * dimensions, "the header"))
    if sizes[1:] and not 0 < sizes[1] * sizes[2] <= _MAX_PIXELS:
        raise DataError(f"{file.name}: its header gives images of {sizes[1]} x {sizes[2]} pixels")
    return sizes


def _read(file: TextFile, stream: IO[bytes], size: int, what: str) -> bytes:
    with file_errors(file.name):
        data = stream.read(size)
    if len(data) < size:
        raise DataError(
            f"{file.name}: cut short in {what}: {len(data)} of {number_of(size, 'bytes')}"
        )
    return data
