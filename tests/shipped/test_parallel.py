"""The shipped parallel text: form, pairs that differ, and that make.py rewrites it."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PARALLEL = Path(__file__).resolve().parents[2] / "data" / "parallel"
SIZES = {"train": 3000, "valid": 300}


def lines(name: str) -> list[str]:
    return (PARALLEL / name).read_text("utf-8").split("\n")[:-1]


@pytest.mark.parametrize(("split", "size"), SIZES.items())
def test_every_line_is_a_clean_sentence_with_its_translation(split: str, size: int) -> None:
    english, chinese = lines(f"{split}.en"), lines(f"{split}.zh")
    assert len(english) == len(chinese) == size
    for one, other in zip(english, chinese, strict=True):
        assert re.fullmatch(r"[A-Z][A-Za-z,:' -]+(\? It is [a-z ]+)?[.?]|.*yuan\.", one), one
        assert not re.search(r"[{}|\\\t]|  | [.,?]", one), one
        assert re.fullmatch(r"[\u4e00-\u9fff，：]+[。？]([\u4e00-\u9fff]+。)?", other), other
        # Both ask, or neither does.
        assert ("?" in one) == ("？" in other), (one, other)


def test_no_sentence_occurs_twice() -> None:
    for language in ("en", "zh"):
        every = lines(f"train.{language}") + lines(f"valid.{language}")
        assert len(set(every)) == len(every)


def test_numbers_and_names_are_the_same_in_both_languages() -> None:
    words = {"Anna": "安娜", "Li Ming": "李明", "twenty": "二十", "horse": "马", "umbrella": "雨伞"}
    for one, other in zip(lines("train.en"), lines("train.zh"), strict=True):
        for english, chinese in words.items():
            if re.search(rf"\b{english}s?\b", one):
                assert chinese in other, (one, other)


def test_make_writes_the_committed_files_and_the_table_of_the_readme(tmp_path: Path) -> None:
    command = [sys.executable, str(PARALLEL / "make.py"), str(tmp_path)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    readme = (PARALLEL.parent / "README.md").read_text("utf-8")
    assert table in readme
    for path in tmp_path.iterdir():
        data = (PARALLEL / path.name).read_bytes()
        assert data == path.read_bytes()
        assert hashlib.sha256(data).hexdigest() in table
