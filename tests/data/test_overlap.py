"""Evaluation text in training text, against sets of words in a row."""

import random
from collections.abc import Sequence

import pytest

from nlpkit.data import overlap
from nlpkit.data.overlap import Overlap, Row
from nlpkit.errors import DataError


def rows_of(texts: Sequence[Sequence[str]], file: str = "f") -> list[Row]:
    return [Row(tuple(each), file, line) for line, each in enumerate(texts, 1)]


def windows(text: str, words: int) -> list[tuple[str, ...]]:
    """Return the words in a row of a text, written plainly."""
    found = []
    for word in text.lower().split():
        kept = "".join(c for c in word if c.isalnum())
        found += [kept] if kept else []
    return [tuple(found[i : i + words]) for i in range(len(found) - words + 1)]


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
    search = Overlap(words)
    search.add("e", rows_of(evaluated, "e"))
    search.search(rows_of(training, "t"))
    (found,) = search.results(100)
    of_row = [[w for text in texts for w in windows(text, words)] for texts in evaluated]
    hits = {n: [w for w in each if w in first] for n, each in enumerate(of_row, 1)}
    assert found.found == sum(map(bool, hits.values())) > 0
    with_words = [n for n, texts in enumerate(evaluated) if any(windows(t, 1) for t in texts)]
    assert found.rows == len(with_words)
    assert found.short == sum(not of_row[n] for n in with_words)
    examples = [(e.line, e.file, e.training_line, e.words) for e in found.examples]
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
    assert search.rows == len(training)


def test_case_and_punctuation_do_not_count():
    words = overlap.split_words("“Don't,” she said -- twice_over … NO!")
    assert words == ["dont", "she", "said", "twiceover", "no"]


def test_characters_of_chinese_are_words_and_latin_words_stay_whole():
    assert overlap.split_words("我用GPT2写，カナ。") == [*"我用", "gpt2", *"写カナ"]


def test_words_do_not_run_over_the_ends_of_texts_and_rows():
    search = Overlap(2)
    search.add("e", rows_of([["a b"], ["b c"], ["c d"]]))
    search.search(rows_of([["x a", "b c"], ["c"], ["d"]]))
    assert [e.line for e in search.results(9)[0].examples] == [2]


def test_training_text_without_a_known_word_or_without_rows():
    search = Overlap(2)
    search.add("e", rows_of([["a b"]]))
    search.search([])
    assert search.results(3)[0].found == 0
    search.search(rows_of([["y z"]]))
    assert (search.results(3)[0].found, search.searched) == (0, 2)


def test_file_of_short_rows_has_nothing_to_find():
    search = Overlap(13)
    search.add("e", rows_of([["a b"], ["c"]]))
    search.search(rows_of([["a b"]]))
    (found,) = search.results(3)
    assert (found.rows, found.short, found.found, found.words) == (2, 2, 0, 3)


def test_file_without_words_is_an_error():
    with pytest.raises(DataError, match="e: no words in any row"):
        Overlap().add("e", rows_of([["...", "—"]]))
