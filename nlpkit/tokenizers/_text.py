"""What every tokenizer needs around the text: sound input, and files read and written whole."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nlpkit.errors import DataError, FileError


def surrogate_error(text: str, error: UnicodeEncodeError) -> DataError:
    """Return the one-line reason why `text`, holding half of a surrogate pair, has no ids."""
    return DataError(
        f"character {error.start + 1} is the lone surrogate U+{ord(text[error.start]):04X},"
        " which is no text; repair the source's encoding"
    )


def sound(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts; raise `DataError` at one that UTF-8 cannot write."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise surrogate_error(text, error) from error
        yield text


def read(path: str | Path, name: str) -> tuple[str, Path]:
    """Return the UTF-8 text of the file `path`, or of `name` in the directory `path`; its path."""
    file = Path(path)
    if file.is_dir():
        file /= name
    if file.exists() and not file.is_file():  # the end of a pipe or a device might never come
        raise FileError(f"{file}: not a regular file")
    try:
        return file.read_text(encoding="utf-8"), file
    except FileNotFoundError as error:
        raise FileError(f"{file}: no such file; expected a tokenizer's {name}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{file}: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}") from error


def write(directory: str | Path, files: dict[str, str]) -> None:
    """Write the named texts into `directory`, made where absent; raise `FileError` if it fails."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise FileError(f"{folder}: cannot be written: {error.strerror}") from error
