"""The shipped sets for tagging and question answering: form, balance, answers in their texts."""

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from nlpkit.score.counts.tags import is_allowed

ROOT = Path(__file__).resolve().parents[2]
SPANS = ROOT / "data/spans"
PARTS, LANGUAGES = ("train", "valid"), ("en", "zh")
FILES = [
    f"{language}_{kind}.{part}.{end}"
    for language in LANGUAGES
    for kind, end in (("tag", "conll"), ("answer", "squad.json"))
    for part in PARTS
]
SCHEMES = {"en": "iob2", "zh": "bmes"}


def sentences(language: str, part: str) -> list[list[tuple[str, str]]]:
    """Words with tags, read without nlpkit."""
    text = (SPANS / f"{language}_tag.{part}.conll").read_text("utf-8")
    blocks = text.removesuffix("\n\n").split("\n\n")
    return [[tuple(line.split(" ")) for line in block.split("\n")] for block in blocks]


def paragraphs(language: str, part: str) -> list[dict]:
    text = (SPANS / f"{language}_answer.{part}.squad.json").read_text("utf-8")
    (article,) = json.loads(text)["data"]
    return article["paragraphs"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_tags_are_in_their_scheme_and_no_sentence_is_held_out_and_learned(language: str) -> None:
    found = {part: sentences(language, part) for part in PARTS}
    assert {part: len(rows) for part, rows in found.items()} == {"train": 1000, "valid": 300}
    for rows in found.values():
        for row in rows:
            assert is_allowed([tag for _, tag in row], SCHEMES[language]), row
        types = Counter(tag[2:] for row in rows for _, tag in row if tag[0] in "BS")
        assert set(types) == {"PER", "LOC", "ORG"}
        assert max(types.values()) <= 3 * min(types.values())
    keys = [tuple(row) for rows in found.values() for row in rows]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_word_alone_does_not_tell_the_tag(language: str) -> None:
    # The commonest tag of each word: what a table of words would predict.
    table: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in sentences(language, "train"):
        for word, tag in row:
            table[word][tag] += 1
    pairs = [pair for row in sentences(language, "valid") for pair in row if pair[1] != "O"]
    hits = sum(bool(table[w]) and table[w].most_common(1)[0][0] == tag for w, tag in pairs)
    assert 0.3 < hits / len(pairs) < 0.75


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_stand_in_the_sentence_that_the_question_is_about(language: str) -> None:
    for part, count in (("train", 240), ("valid", 100)):
        texts = paragraphs(language, part)
        assert len({text["context"] for text in texts}) == len(texts) == count
        facts = [len(re.findall(r"[.。]", text["context"])) for text in texts]
        assert {*facts} == {1, 2, 3}
        assert min(map(facts.count, (1, 2, 3))) > count / 5
        for text in texts:
            ends = [m.end() for m in re.finditer(r"[.。]", text["context"])]
            asked = [row["question"] for row in text["qas"]]
            assert len({*asked}) == len(asked) == 3
            for row in text["qas"]:
                (answer,) = row["answers"]
                start, stop = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                assert text["context"][start:stop] == answer["text"]
                number = sum(end <= start for end in ends)
                told = text["context"][[0, *ends][number] : ends[number]]
                names = re.findall(r"[A-Z]\w+", row["question"])[1:]
                assert language == "zh" or any(name in told for name in names), row
    learned = {text["context"] for text in paragraphs(language, "train")}
    assert not learned & {text["context"] for text in paragraphs(language, "valid")}


def test_make_writes_the_committed_files_byte_for_byte(tmp_path: Path) -> None:
    command = [sys.executable, "-B", SPANS / "make.py", tmp_path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    readme = (ROOT / "data/README.md").read_text("utf-8")
    for name in FILES:
        data = (SPANS / name).read_bytes()
        assert data == (tmp_path / name).read_bytes(), name
        assert len(data) <= 150_000
        assert hashlib.sha256(data).hexdigest() in readme
    assert printed in readme


def test_wheel_ships_every_file() -> None:
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    for name in FILES:
        assert f'\n"data/spans/{name}" = "nlpkit/_shipped/data/spans/{name}"\n' in settings
