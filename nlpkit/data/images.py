"""Images as arrays: patches, shifts, other sizes.

H height, W width, D channels, P patches of an image. An array is (H, W, D).
"""

import numpy as np

from nlpkit.errors import UsageError, not_installed


def patches(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return (P, D * height * width), the patches row by row; in each, the channels come first."""
    rows, columns, channels = image.shape
    cut = image.reshape(rows // height, height, columns // width, width, channels)
    # The order in which a convolution of torch reads them.
    return cut.transpose(0, 2, 4, 1, 3).reshape(-1, channels * height * width)


def shifted(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return the image moved by so many pixels; the pixels at its border fill the gap."""
    height, width, _ = image.shape
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    return image[rows[:, None], columns]


def resized(image: np.ndarray, height: int, width: int, resample: str = "bilinear") -> np.ndarray:
    """Return a uint8 image in another size, as by transformers' image processors.

    `resample` is one of pillow's filters, in small letters.

    Raises:
        UsageError: pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(f"objective.resize: {not_installed('pillow')}") from error
    channels = [
        Image.fromarray(np.ascontiguousarray(image[:, :, channel]), "L").resize(
            (width, height), Image.Resampling[resample.upper()]
        )
        for channel in range(image.shape[2])
    ]
    return np.stack([np.asarray(channel) for channel in channels], axis=2)
