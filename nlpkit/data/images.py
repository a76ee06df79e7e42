"""Images as arrays: patches, shifts, other sizes; those in rows.

H height, W width, D channels, P patches of an image. An array is (H, W, D).
"""

import numpy as np

from nlpkit.contracts.reader import Row, RowError
from nlpkit.data.lines import kind_of
from nlpkit.errors import UsageError, not_installed


def patches(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return (P, D * height * width), the patches row by row; in each, the channels come first."""
    rows, columns, channels = image.shape
    cut = image.reshape(rows // height, height, columns // width, width, channels)
    # The order in which a convolution of torch reads them.
    return cut.transpose(0, 2, 4, 1, 3).reshape(-1, channels * height * width)


def shift(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return the image moved by so many pixels; the pixels at its border fill the gap."""
    height, width, _ = image.shape
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    return image[rows[:, None], columns]


def resize(image: np.ndarray, height: int, width: int, resample: str = "bilinear") -> np.ndarray:
    """Return an image of bytes in another size, as by transformers' image processors.

    `resample` is one of pillow's filters, in small letters.

    Raises:
        UsageError: pillow is not installed.
        RowError: its pixels are others.
    """
    if not are_bytes(image):
        raise RowError("only images with integers from 0 to 255 can be resized")
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(f"objective.resize: {not_installed('pillow')}") from error
    channels = [
        Image.fromarray(np.ascontiguousarray(image[:, :, channel], np.uint8), "L").resize(
            (width, height), Image.Resampling[resample.upper()]
        )
        for channel in range(image.shape[2])
    ]
    return np.stack([np.asarray(channel) for channel in channels], axis=2)


def image_in(row: Row, column: str) -> np.ndarray:
    """Return the image in a column, (H, W, D); raise `RowError` if there is none."""
    value = row.value(column)
    if not isinstance(value, (np.ndarray, list)):
        raise RowError(f'"{column}" is {kind_of(value)}, not an image')
    try:
        image = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, float)
    except (ValueError, TypeError, OverflowError) as error:
        raise RowError(f'"{column}" has rows of different lengths, or no numbers') from error
    if image.ndim not in (2, 3) or not image.size:
        raise RowError(f'"{column}" has {image.ndim} dimensions; an image has 2 or 3')
    if not np.isfinite(image).all():  # null in JSON becomes NaN
        raise RowError(f'"{column}" has a pixel that is no number')
    return image[:, :, None] if image.ndim == 2 else image


def image_of_columns(row: Row, label: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the image whose pixels are all columns but the class; raise `RowError`."""
    cells = {name: cell for name, cell in row.values.items() if name != label}
    height, width, channels = shape
    if len(cells) != height * width * channels:
        raise RowError(
            f'{len(cells)} columns beside the class "{label}"; an image of {height} x {width} '
            f"with {channels} channel{'s' * (channels > 1)} has {height * width * channels}"
        )
    pixels = np.array([_number(cell) for cell in cells.values()], np.float32)
    wrong = np.flatnonzero(~np.isfinite(pixels))
    if len(wrong):
        name = [*cells][wrong[0]]
        raise RowError(f'"{name}" is {cells[name]!r}; a pixel is a number')
    image = pixels.reshape(shape)
    return image.astype(np.uint8) if are_bytes(image) else image


def _number(cell: object) -> float:
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return np.nan


def are_bytes(pixels: np.ndarray) -> bool:
    """Return whether all pixels are integers from 0 to 255."""
    return bool(((pixels >= 0) & (pixels <= 255) & (pixels % 1 == 0)).all())
