"""PNG files in one folder per class: `digits/3/0001.png` is an image of the class `3`.

Needs pillow.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nlpkit.contracts.reader import Counts, RowError, Rows, TextFile
from nlpkit.data.lines import open_bytes
from nlpkit.errors import UsageError, not_installed

ENDINGS = (".png",)
INSIDE = "*/*.png"
DOCUMENTS = ""
_GREY, _COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P")


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the one row of a file: `image`, uint8 (height, width) or (height, width, 3), `label`.

    Transparency is ignored. An image with 16 bits per pixel is a `RowError`.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise UsageError(f"{file.name}: {not_installed('pillow')}") from error
    counts.lines += 1
    with open_bytes(file) as stream:
        try:
            with Image.open(stream, formats=["PNG"]) as picture:
                mode = "L" if picture.mode in _GREY else "RGB"
                if picture.mode not in (*_GREY, *_COLOUR):
                    yield 1, RowError(f"pixels of kind {picture.mode}; 8 bits a colour are needed")
                    return
                image = np.asarray(picture.convert(mode))
        # Pillow raises these errors for a damaged picture.
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            # The message of this error is the Python object of the file.
            cause = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
            yield 1, RowError(f"not a PNG file{cause}")
            return
    yield 1, {"image": image, "label": Path(file.path).parent.name}
