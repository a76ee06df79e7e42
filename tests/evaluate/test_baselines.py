"""Baselines without a model: counted words, the commonest answer."""

import random

import numpy as np
from sklearn.naive_bayes import MultinomialNB

from nlpkit.evaluate import baselines
from nlpkit.evaluate.prompts import PromptRow


def row(text: str, right: str, *answers: str) -> PromptRow:
    names = tuple(map(str, range(len(answers)))) if answers else ("bad", "good")
    return PromptRow(answers or names, names, right, right, text, "")


def test_commonest_answer_is_that_of_the_training_rows():
    train = [row("a", "bad"), row("b", "good"), row("c", "good")]
    rows = [row("x", "bad"), row("y", "bad")]
    assert baselines.choose_commonest(train, rows) == ["good", "good"]


def test_classes_are_those_of_naive_bayes_of_scikit_learn():
    draw = random.Random(0)
    words = [*"abcdefg花鸟鱼"]
    train = [row(" ".join(draw.choices(words, k=8)), ["bad", "good"][n % 2]) for n in range(60)]
    rows = [row(" ".join(draw.choices(words, k=8)), "bad") for _ in range(80)]
    parts = sorted({part for each in train for part in baselines._find_parts(each.prompt)})

    def table(of: list[PromptRow]) -> np.ndarray:
        return np.array(
            [[part in baselines._find_parts(each.prompt) for part in parts] for each in of]
        )

    oracle = MultinomialNB().fit(table(train), [each.label for each in train])
    found = baselines.count_words(train, rows)
    assert found == oracle.predict(table(rows)).tolist()
    assert len(set(found)) == 2


def test_answers_of_a_row_are_chosen_by_rare_words_that_they_share_with_it():
    train = [row("the cat", "0", "the", "no"), row("the dog", "0", "the", "so")]
    # `the` is in every text: ln 3/3 = 0; `moon` in none: ln 3/1; `dog` in one: ln 3/2.
    rows = [
        row("the dog and the moon", "1", "the the the", "a moon", "dog"),
        row("山高月小", "1", "水落石出", "山高", "月"),
        row("nothing is shared", "0", "x", "y"),
    ]
    assert baselines.count_words(train, rows) == ["1", "1", "0"]
