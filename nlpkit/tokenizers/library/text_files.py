"""Checks the text for tokenizers, counts its characters, and reads and writes their files."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from nlpkit.disk import name_path_in_errors
from nlpkit.errors import DataError, FileError


def surrogate_error(text: str, error: UnicodeEncodeError) -> DataError:
    """Return the error for `text` with a lone surrogate, which cannot be encoded."""
    return DataError(
        f"character {error.start + 1} is the lone surrogate U+{ord(text[error.start]):04X},"
        " which is not valid text; repair the encoding of the source"
    )


def sound(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts; raise `DataError` for one that cannot be encoded in UTF-8."""
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
    if file.exists() and not file.is_file():  # reading a pipe or a device may never end
        raise FileError(f"{file}: not a regular file")
    try:
        return file.read_text(encoding="utf-8"), file
    except FileNotFoundError as error:
        raise FileError(f"{file}: no such file; expected a tokenizer's {name}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{file}: byte {error.start + 1} is not UTF-8") from error
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}") from error


def write(directory: str | Path, files: dict[str, str]) -> None:
    """Write the texts to files in `directory`, which is created if needed; raise `FileError`."""
    folder = Path(directory)
    with name_path_in_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")


def count_characters(words: Counter[str]) -> Counter[str]:
    """Return the frequency of each character, highest first; ties are sorted by character."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    return Counter(dict(sorted(characters.items(), key=lambda pair: (-pair[1], pair[0]))))
