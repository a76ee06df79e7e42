"""How much training text there is, by the sizes of its files, without reading it."""

from pathlib import Path

from nlpkit.data.files import find_files, is_stream
from nlpkit.data.settings import Config

# English with 2,000 tokens has 3.74 bytes of its file for each, Chinese with CPM-Ant's words 3.66.
BYTES_PER_TOKEN = 3.7
_PACKED, _TIMES = (".gz", ".parquet"), 3  # how much smaller these make text, about


def about_tokens(config: Config, base: Path | None) -> float | None:
    """Return about the number of tokens of an epoch of `data.train`; None: stdin or a pipe.

    Raises:
        FileError: a name matches no file.
    """
    total = 0.0
    for source in config.train:
        form = source.format or config.format
        for name, files, _ in find_files(source, form, base):
            if name == "-" or any(is_stream(path, shown) for path, shown in files):
                return None
            for path, _ in files:
                times = _TIMES if path.suffix.lower() in _PACKED else 1
                total += source.weight * times * path.stat().st_size
    return total * (1 - config.valid_fraction) / BYTES_PER_TOKEN
