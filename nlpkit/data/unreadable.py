"""What is said of files that cannot be read: other encodings, other compression, other endings."""

import shlex
from pathlib import Path

from nlpkit.contracts.reader import RowError
from nlpkit.data import formats
from nlpkit.errors import DataError, UsageError

# Compressed files that are not read: the program, and what they begin with.
_PACKED = {
    ".bz2": ("bzip2", b"BZh"),
    ".xz": ("xz", b"\xfd7zXZ"),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd"),
}


def explain_ending(name: str) -> UsageError:
    """Return the error for a file whose name tells no format."""
    ending = Path(name.removesuffix(".gz")).suffix
    if tool := _PACKED.get(ending.lower(), ("", b""))[0]:
        made = shlex.quote(name.removesuffix(ending) + ".gz")
        remedy = f"{tool} -dc {shlex.quote(name)} | gzip > {made}"
        return UsageError(f"{name}: of compressed files, only those of gzip are read: {remedy}")
    return UsageError(
        f"{name}: the ending {ending!r} tells no format; "
        f"rename it, or in a recipe set data.format to {', '.join(formats.all_names()[1:])} "
        f"(known endings: {', '.join(formats.endings())})"
    )


def explain_first_line(name: str, raw: bytes) -> DataError:
    """Return the error for a file whose first line, of UTF-16 or with `\r`, is not the only one."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        what = "UTF-16 or UTF-32 text (it begins with a byte order mark); UTF-8 is needed: "
        what += "iconv -f UTF-16 -t UTF-8"
    elif b"\0" not in raw:
        what = "its lines end with a carriage return alone; a newline is needed: tr '\\r' '\\n'"
    else:
        try:
            what = f"character {raw.decode().index(chr(0)) + 1} of the text is NUL (U+0000)"
        except UnicodeDecodeError as error:
            what = explain_bytes(raw, error.start).what
    return DataError(f"{name}:1: {what}")


def explain_bytes(raw: bytes, start: int) -> RowError:
    """Return the error for rows whose byte at `start` is not UTF-8."""
    before = raw[:start]
    line = raw[before.rfind(b"\n") + 1 :].partition(b"\n")[0]
    hint = ""
    if line.startswith(b"\x1f\x8b"):
        hint = "; it looks like a gzip file, which must be named .gz"
    elif tool := next((name for name, mark in _PACKED.values() if line.startswith(mark)), None):
        hint = f"; it looks like a file of {tool}, and of compressed files only gzip's are read"
    elif _looks_like_gb18030(line):
        hint = "; the line looks like GB18030"
    column = start - before.rfind(b"\n")
    what = f"byte {column} is not UTF-8 (0x{raw[start]:02x}){hint}"
    return RowError(what, 1 + before.count(b"\n"))


def _looks_like_gb18030(line: bytes) -> bool:
    try:
        text = line.decode("gb18030")
    except UnicodeDecodeError:
        return False
    # Latin-1 often decodes, too, but has about one high byte for each character; Chinese has two.
    wide = sum(ord(character) > 0x7F for character in text)
    return sum(byte > 0x7F for byte in line) >= 1.5 * wide
