"""The shipped images: form, balance, nothing both learned and held out, the bytes of the script."""

import hashlib
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "data/images"
COUNTS = {"train": 1600, "valid": 400}
FILES = [
    f"{part}-{what}-ubyte" for part in COUNTS for what in ("images-idx3", "labels-idx1")
]  # fmt: skip


def _images(part: str) -> list[bytes]:
    """Return the pixels of each image, read without nlpkit."""
    data = (IMAGES / f"{part}-images-idx3-ubyte").read_bytes()
    assert struct.unpack(">IIII", data[:16]) == (2051, COUNTS[part], 16, 12)
    return [data[start : start + 192] for start in range(16, len(data), 192)]


def test_classes_are_balanced_and_no_image_is_held_out_and_learned() -> None:
    for part, count in COUNTS.items():
        labels = (IMAGES / f"{part}-labels-idx1-ubyte").read_bytes()[8:]
        assert Counter(labels) == dict.fromkeys(range(10), count // 10)
        assert len(_images(part)) == count
    assert not {*_images("train")} & {*_images("valid")}


@pytest.mark.slow
def test_make_writes_the_committed_files_byte_for_byte(tmp_path: Path) -> None:
    command = [sys.executable, "-B", IMAGES / "make.py", tmp_path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    readme = (ROOT / "data/README.md").read_text("utf-8")
    for name in FILES:
        data = (IMAGES / name).read_bytes()
        assert data == (tmp_path / name).read_bytes(), name
        assert hashlib.sha256(data).hexdigest() in readme
    assert printed in readme
    assert sum((IMAGES / name).stat().st_size for name in FILES) <= 400_000


def test_wheel_ships_every_file() -> None:
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    for name in FILES:
        assert f'\n"data/images/{name}" = "nlpkit/_shipped/data/images/{name}"\n' in settings
