"""The shipped English task sets: form, balance, no answer to be had from one text alone."""

import csv
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EN = ROOT / "data/en"
SUFFIXES = {
    "classify": "tsv",
    "entail": "csv",
    "similarity": "jsonl",
    "choice": "jsonl",
    "prefer": "jsonl",
    "chat": "jsonl",
}
FILES = [f"{task}/{part}.{end}" for task, end in SUFFIXES.items() for part in ("train", "valid")]
COLUMNS = {
    "classify": ["label", "text"],
    "entail": ["premise", "hypothesis", "label"],
    "similarity": ["text_a", "text_b", "label", "score"],
    "choice": ["context", "options", "label"],
    "prefer": ["prompt", "chosen", "rejected"],
    "chat": ["messages"],
}


def rows(task: str, part: str) -> list[dict]:
    """Rows by the standard library's readers."""
    text = (EN / task / f"{part}.{SUFFIXES[task]}").read_text("utf-8")
    if SUFFIXES[task] == "jsonl":
        return [json.loads(line) for line in text.splitlines()]
    divider = "\t" if SUFFIXES[task] == "tsv" else ","
    return list(csv.DictReader(text.splitlines(), delimiter=divider, strict=True))


def texts(row: dict) -> list[str]:
    found = [v for k, v in row.items() if isinstance(v, str) and k != "label"]
    said = [message["content"] for message in row.get("messages", [])]
    return found + row.get("options", []) + [text for text in said if text[-1] != ":"]


@pytest.mark.parametrize("name", FILES)
def test_file_is_small_plain_and_clean(name: str) -> None:
    data = (EN / name).read_bytes()
    assert len(data) <= 150_000
    assert data.isascii()
    assert b"\r" not in data
    assert data.endswith(b"\n")
    task, part = name.split(".")[0].split("/")
    found = rows(task, part)
    assert len(found) >= {"valid": 300}.get(part, 450 if task == "chat" else 700)
    for row in found:
        assert list(row) == COLUMNS[task]
        for text in texts(row):
            assert re.fullmatch(r"[A-Z][a-zA-Z' ,.;:]+\.", text), text
            assert not re.search(r"  | [.,]|\.\.|\b[Aa] [aeiou]", text), text


@pytest.mark.parametrize("task", [task for task in SUFFIXES if "label" in COLUMNS[task]])
def test_answers_are_balanced(task: str) -> None:
    for part in ("train", "valid"):
        counts = Counter(row["label"] for row in rows(task, part))
        assert len(counts) == {"classify": 2, "similarity": 2}.get(task, 3)
        assert max(counts.values()) / counts.total() <= 1 / len(counts) + 0.04


@pytest.mark.parametrize("task", SUFFIXES)
def test_held_out_rows_are_not_in_train(task: str) -> None:
    seen = {tuple(sorted(texts(row))) for row in rows(task, "train")}
    assert len(seen) == len(rows(task, "train"))
    assert not [row for row in rows(task, "valid") if tuple(sorted(texts(row))) in seen]


def by_words(pairs: list[tuple[str, str]], held_out: list[tuple[str, str]]) -> float:
    """Accuracy of naive Bayes over single words (add one), from (text, answer)."""
    words: dict[str, Counter[str]] = {}
    answers = Counter(answer for _, answer in pairs)
    for text, answer in pairs:
        words.setdefault(answer, Counter()).update(set(re.findall(r"\w+", text.lower())))

    def score(text: str, answer: str) -> float:
        total = answers[answer] / answers.total()
        for word in set(re.findall(r"\w+", text.lower())):
            total *= (words[answer][word] + 1) / (answers[answer] + 2)
        return total

    hits = sum(max(words, key=lambda a: score(text, a)) == answer for text, answer in held_out)
    return hits / len(held_out)


@pytest.mark.parametrize("column", ["hypothesis", "premise"])
def test_entail_one_text_alone_says_nothing(column: str) -> None:
    pairs = [[(row[column], row["label"]) for row in rows("entail", p)] for p in ("train", "valid")]
    assert by_words(*pairs) <= 1 / 3 + 0.08


@pytest.mark.parametrize("column", ["text_a", "text_b"])
def test_similarity_one_text_alone_says_nothing(column: str) -> None:
    pairs = [
        [(row[column], row["label"]) for row in rows("similarity", p)] for p in ("train", "valid")
    ]
    assert by_words(*pairs) <= 0.5 + 0.1


def test_choice_options_alone_say_nothing() -> None:
    right: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for row in rows("choice", "train"):
        for number, option in enumerate(row["options"]):
            ending = re.sub(r"^(He|She) ", "", option)
            seen[ending] += 1
            right[ending] += number == row["label"]
    hits = 0
    for row in rows("choice", "valid"):
        endings = [re.sub(r"^(He|She) ", "", option) for option in row["options"]]
        assert all(seen[ending] >= 10 for ending in endings)
        shares = [right[ending] / seen[ending] for ending in endings]
        hits += shares.index(max(shares)) == row["label"]
    assert hits / 300 <= 1 / 3 + 0.1


def test_endings_are_chosen_as_often_as_rejected() -> None:
    counts = {
        name: Counter(re.sub(r"^(He|She) ", "", row[name]) for row in rows("prefer", "train"))
        for name in ("chosen", "rejected")
    }
    shares = []
    for row in rows("prefer", "valid"):
        liked = []
        for name in ("chosen", "rejected"):
            ending = re.sub(r"^(He|She) ", "", row[name])
            seen = counts["chosen"][ending], counts["rejected"][ending]
            liked.append(seen[0] / max(sum(seen), 1))
        shares.append((liked[0] > liked[1]) + 0.5 * (liked[0] == liked[1]))
    assert sum(shares) / 300 <= 1 / 2 + 0.1


def test_classify_single_words_say_little() -> None:
    pairs = [
        [(row["text"], row["label"]) for row in rows("classify", p)] for p in ("train", "valid")
    ]
    assert by_words(*pairs) <= 0.65


@pytest.mark.parametrize("part", ["train", "valid"])
def test_entail_labels_follow_from_the_premise(part: str) -> None:
    """An oracle of its own: which of the five details, and whether the premise tells it."""
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
    kinds = {
        "day": days.split(),
        "town": [
            "Millbrook",
            "Stonebridge",
            "Fernhill",
            "Oldwick",
            "Northgate",
            "Saltmarsh",
            "Windle",
        ],
        "colour": ["red", "blue", "green", "yellow", "white", "black"],
        "number": ["two", "three", "four", "five", "six", "seven"],
        "weather": ["rain", "snow", "fog", "sun", "wind"],
    }
    for row in rows("entail", part):
        found = {
            kind: [
                [w for w in names if re.search(rf"\b{w}", text)]
                for text in (row["premise"], row["hypothesis"])
            ]
            for kind, names in kinds.items()
        }
        asked = [kind for kind, (_, hypothesis) in found.items() if hypothesis]
        assert len(asked) == 1, row
        told, claimed = found[asked[0]]
        label = "neutral" if not told else "entailment" if told == claimed else "contradiction"
        assert row["label"] == label, row


def test_similarity_score_is_the_number_of_details_that_agree() -> None:
    for row in rows("similarity", "train") + rows("similarity", "valid"):
        assert (row["label"] == "same") == (row["score"] == 4)
        assert row["score"] in range(5)


def test_tasks_writes_the_committed_files_byte_for_byte(tmp_path: Path) -> None:
    command = [sys.executable, "-B", EN / "tasks.py", tmp_path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    written = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert written == sorted(FILES)
    readme = (ROOT / "data/README.md").read_text("utf-8")
    for name in written:
        data = (tmp_path / name).read_bytes()
        assert data == (EN / name).read_bytes(), name
        assert hashlib.sha256(data).hexdigest() in readme
    assert printed in readme


def test_wheel_ships_the_folders_of_every_task() -> None:
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    for task in SUFFIXES:
        assert f'\n"data/en/{task}" = "nlpkit/_shipped/data/en/{task}"\n' in settings
