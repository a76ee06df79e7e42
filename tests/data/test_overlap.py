"""Evaluation text in training text, against sets of words in a row."""

import random
from collections.abc import Sequence

import pytest

from nlpkit.data import overlap
from nlpkit.data.documents import Document
from nlpkit.data.overlap import Found, Training


def rows_of(texts: Sequence[Sequence[str]], file: str = "f") -> list[Document]:
    return [Document(tuple(each), file, line) for line, each in enumerate(texts, 1)]


def windows(text: str, words: int) -> list[tuple[str, ...]]:
    """Return the words in a row of a text, written plainly."""
    found = []
    for word in text.lower().split():
        kept = "".join(c for c in word if c.isalnum())
        found += [kept] if kept else []
    return [tuple(found[i : i + words]) for i in range(len(found) - words + 1)]


def search(
    evaluated: Sequence[Sequence[str]], training: Sequence[Sequence[str]], words: int
) -> tuple[Found, Training]:
    file = overlap.hash_file("e", rows_of(evaluated, "e"), words)
    text = Training([file], rows_of(training, "t"), words)
    return overlap.count_found("e", file, text.places, words, 100), text


def make_texts(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    signs = ["", "", "", ",", ".", "!"]
    return [
        [
            " ".join(draw.choice(["A", "b", "c'd"]) + draw.choice(signs) for _ in range(length))
            for length in draw.choices(range(12), k=draw.randint(1, 3))
        ]
        for _ in range(count)
    ]


@pytest.mark.parametrize("words", [2, 5, 8])
@pytest.mark.parametrize("piece", [7, 1 << 19])
def test_counts_and_places_equal_those_of_sets(words, piece, monkeypatch):
    monkeypatch.setattr(overlap, "_PIECE", piece)
    evaluated, training = make_texts(60, 1), make_texts(40, 2)
    first: dict[tuple[str, ...], int] = {}
    for line, texts in enumerate(training, 1):
        for text in texts:
            for each in windows(text, words):
                first.setdefault(each, line)
    found, searched = search(evaluated, training, words)
    of_row = [[w for text in texts for w in windows(text, words)] for texts in evaluated]
    hits = {n: [w for w in each if w in first] for n, each in enumerate(of_row, 1)}
    assert found.found == sum(map(bool, hits.values())) > 0
    with_words = [n for n, texts in enumerate(evaluated) if any(windows(t, 1) for t in texts)]
    assert found.rows == len(with_words)
    assert found.short == sum(not of_row[n] for n in with_words)
    examples = [tuple(e.values()) for e in found.examples]
    assert examples == [
        (n, "t", first[each[0]], " ".join(each[0])) for n, each in hits.items() if each
    ]
    covered = 0
    for texts in evaluated:
        for text in texts:
            in_row = windows(text, words)
            inside = {i + k for i, w in enumerate(in_row) if w in first for k in range(words)}
            covered += len(inside)
    assert found.covered == covered
    assert found.words == sum(len(windows(text, 1)) for texts in evaluated for text in texts)
    assert searched.rows == len(training)


def test_case_and_punctuation_do_not_count():
    words = overlap.split_words("“Don't,” she said -- twice_over … NO!")
    assert words == ["dont", "she", "said", "twiceover", "no"]


def test_characters_of_chinese_are_words_and_latin_words_stay_whole():
    assert overlap.split_words("我用GPT2写，カナ。") == [*"我用", "gpt2", *"写カナ"]


def test_words_do_not_run_over_the_ends_of_texts_and_rows():
    found, _ = search([["a b"], ["b c"], ["c d"]], [["x a", "b c"], ["c"], ["d"]], 2)
    assert [e["line"] for e in found.examples] == [2]


def test_training_text_without_a_known_word_or_without_rows():
    for training, words in (([], 0), ([["y z"]], 2)):
        found, text = search([["a b"]], training, 2)
        assert (found.found, text.words) == (0, words)


def test_file_of_short_rows_has_nothing_to_find():
    found, _ = search([["a b"], ["c"]], [["a b"]], 13)
    assert (found.rows, found.short, found.found, found.words) == (2, 2, 0, 3)
