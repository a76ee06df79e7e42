"""The shipped English text: form, sums, facts, held-out texts, and that make.py rewrites it."""

import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "data"
EN = DATA / "en"
KINDS = ["stories", "facts", "dialogue", "sums"]
FILES = [f"{split}/{kind}.jsonl" for split in ("train", "valid") for kind in KINDS]
EQUATION = re.compile(r"(\d+(?: [-+x/] \d+)+) = (\d+)")


def texts(split: str, kind: str) -> list[str]:
    lines = (EN / split / f"{kind}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def value(expression: str) -> int:
    """Value of whole numbers joined by + - x /, by hand: products first."""
    total, sign = 0, 1
    for part in re.split(r" ([-+]) ", expression):
        if part in "+-":
            sign = 1 if part == "+" else -1
            continue
        left, *rest = re.split(r" ([x/]) ", part)
        product = int(left)
        for how, number in zip(rest[::2], rest[1::2], strict=True):
            assert how == "x" or product % int(number) == 0, expression
            product = product * int(number) if how == "x" else product // int(number)
        total += sign * product
    return total


@pytest.mark.parametrize("name", FILES)
def test_file_is_plain_lines_of_one_clean_text_each(name: str) -> None:
    data = (EN / name).read_bytes()
    assert data.isascii()
    assert b"\r" not in data
    assert data.endswith(b'"}\n')
    for line in data.decode().splitlines():
        row = json.loads(line)
        assert list(row) == ["text"]
        assert len(row["text"]) >= 20
        # No slot left open, no column sign, no doubled space or full stop.
        assert not re.search(r"[{}|\\]|  |\.\.|,,|\?\?| [.,;?!]", row["text"]), row["text"]
        assert not re.search(r"(?:^|\n|[.!?] )[a-z]", row["text"]), row["text"]
        wrong = r"\b[Aa] [aeiou]|\b[Aa]n (?!hour|[aeiouAEIOU])"
        assert not re.search(wrong, row["text"]), row["text"]


def test_sizes_are_what_the_readme_promises() -> None:
    train = [text for kind in KINDS for text in texts("train", kind)]
    valid = [text for kind in KINDS for text in texts("valid", kind)]
    assert 550_000 <= sum(map(len, train)) <= 700_000
    assert sum(map(len, valid)) >= 40_000
    assert 100 <= sorted(map(len, train))[len(train) // 2] <= 400


def test_texts_are_not_a_dump_of_templates() -> None:
    whole = "\n".join(text for kind in KINDS for text in texts("train", kind))
    assert len(gzip.compress(whole.encode(), 9)) / len(whole) >= 0.16
    words = re.findall(r"[a-z']+", whole.lower())
    assert len(set(words)) >= 1500
    grams = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    assert len(grams) / grams.total() >= 0.3


def test_texts_occur_once_over_both_splits() -> None:
    every = [t for split in ("train", "valid") for kind in KINDS for t in texts(split, kind)]
    assert not [text for text, count in Counter(every).items() if count > 1]


@pytest.mark.parametrize(("split", "least"), [("train", 700), ("valid", 70)])
def test_every_equation_is_right(split: str, least: int) -> None:
    found = 0
    for text in texts(split, "sums"):
        equations = EQUATION.findall(text)
        # None may escape the pattern.
        assert len(equations) == text.count(" = "), text
        for left, right in equations:
            assert value(left) == int(right), text
        found += len(equations)
    assert found >= least


def test_sums_at_the_shop_are_right() -> None:
    found = [
        (int(n), int(price), int(total))
        for text in texts("train", "dialogue")
        for n, price, total in re.findall(
            r"I would like (\d+) .*?They are (\d+) pence each.*?That makes (\d+) pence", text, re.S
        )
    ]
    assert len(found) >= 30
    assert all(n * price == total for n, price, total in found)


def test_facts_about_one_animal_agree_in_all_texts() -> None:
    young: dict[str, set[str]] = {}
    for text in texts("train", "facts") + texts("valid", "facts"):
        for animal, name in re.findall(r"[Aa] young (\w+) is (?:called )?an? (\w+)", text):
            young.setdefault(animal, set()).add(name)
        assert "spider is an insect" not in text
        assert "whale is a fish" not in text
    assert len(young) >= 35
    assert {animal: names for animal, names in young.items() if len(names) > 1} == {}
    assert young["cow"] == {"calf"}
    assert young["frog"] == {"tadpole"}


def test_make_writes_the_committed_files_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-B", EN / "make.py", tmp_path], check=True, capture_output=True
    )
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    there = {str(p.relative_to(EN)) for part in ("train", "valid") for p in (EN / part).iterdir()}
    assert written == set(FILES) == there
    for name in written:
        assert (tmp_path / name).read_bytes() == (EN / name).read_bytes(), name


def test_readme_table_gives_sizes_and_digests_of_every_file() -> None:
    readme = (DATA / "README.md").read_text("utf-8")
    table = re.findall(
        r"^\| en/((?:train|valid)/\S+) \| (\d+) \| (\d+) \| `(\w{64})` \|$", readme, re.M
    )
    assert {name for name, *_ in table} == set(FILES)
    for name, size, lines, digest in table:
        data = (EN / name).read_bytes()
        stated = int(size), int(lines), digest
        assert stated == (len(data), data.count(b"\n"), hashlib.sha256(data).hexdigest()), name
