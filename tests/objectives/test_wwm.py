"""Whole-word masking: words are masked as wholes, at the rate of the tokens, and come back."""

import numpy as np
import pytest

from nlpkit.contracts.batch import IGNORE, TOKEN_FLAGS
from nlpkit.errors import UsageError
from tests._masked import bound, bound_of, document, flagged, plain, tokenizer


def _words(example: dict[str, np.ndarray]) -> np.ndarray:
    """Return the number of the word of each token between [CLS] and [SEP], from 1."""
    return np.cumsum((example[TOKEN_FLAGS][1:-1] & 2) != 0)  # 2: `word_start`


def test_words_are_targets_as_wholes_at_the_rate_of_tokens() -> None:
    objective = bound("wwm")
    rng = np.random.default_rng(0)
    documents = [document(12, rng) for _ in range(50)]
    assert sum(map(len, documents)) > 5000
    tokens = targets = 0
    for number in range(1000):
        piece = documents[number % 50]
        example = objective.example(piece, np.random.default_rng(number))
        chosen = example["labels"][1:-1] != IGNORE
        words = _words(example)
        by_word = np.bincount(words, chosen), np.bincount(words)
        assert {*(by_word[0][1:] / by_word[1][1:]).tolist()} <= {0.0, 1.0}
        tokens, targets = tokens + len(chosen), targets + int(chosen.sum())
        assert np.array_equal(objective.unmask(example)["input_ids"][1:-1], piece.ids)
    assert tokens > 100_000
    # Words of several tokens are drawn together: at most 10 here, so deviations are less than √10
    # times those of single tokens.
    assert targets / tokens == pytest.approx(0.15, abs=np.sqrt(10) * bound_of(0.15, tokens))


@pytest.mark.parametrize("words", [1, 5])
def test_few_words_are_targets_at_the_rate(words: int) -> None:
    # 0.15 of 5 words are 0.75 words: one in three texts of four. In each text it would be 0.2.
    objective = bound("wwm")
    piece = flagged("fox " * words)
    size, count = len(piece) // words, 2_000
    chosen = [
        int((objective.example(piece, np.random.default_rng(n))["labels"] != IGNORE).sum()) / size
        for n in range(count)
    ]
    assert {*chosen} == {0, 1}
    expected = 0.15 * words
    assert np.mean(chosen) == pytest.approx(expected, abs=bound_of(expected, count))


@pytest.mark.slow
def test_long_words_are_masked_as_often_as_short_ones() -> None:
    objective = bound("wwm")
    piece = flagged("The quick brown fox jumps over the lazy dog. A model predicts it. " * 4)
    count = 5_000  # the deviation of a share is 0.005
    chosen = np.zeros(len(piece))
    for number in range(count):
        example = objective.example(piece, np.random.default_rng(number))
        chosen += example["labels"][1:-1] != IGNORE
    sizes = np.bincount(np.cumsum(piece.has("word_start")))[1:]
    assert sizes.max() > 2
    assert chosen / count == pytest.approx(np.full(len(piece), 0.15), abs=0.03)


def test_chinese_words_of_several_characters_are_masked_together() -> None:
    objective = bound("wwm", rate=0.5)
    piece = flagged("北京大学的学生在图书馆里读书。")
    assert [tokenizer().token(i) for i in piece.ids[:4]] == ["北", "京", "大", "学"]
    seen = set()
    for number in range(200):
        labels = objective.example(piece, np.random.default_rng(number))["labels"][1:-1]
        seen.add(tuple((labels != IGNORE)[:4].tolist()))
        # 图书馆 is one word of jieba's.
        assert len({*(labels[8:11] != IGNORE).tolist()}) == 1
    # 北京大学 is one, too.
    assert seen == {(True,) * 4, (False,) * 4}


def test_text_on_both_sides_of_a_special_token_is_never_one_word() -> None:
    pairs, objective = bound("nsp", max_length=128), bound("wwm", rate=0.5)
    one = flagged("Predicts. predicts. predicts. predicts.")
    inside = flagged("masked")  # without the flag of its first token, as in the middle of a word
    inside.token_flags[:] = 0
    apart = 0
    for number in range(100):
        rng = np.random.default_rng(number)
        example = objective.transform(pairs.example(one, rng, [inside]), rng)
        stop = int((example["token_type_ids"] == 0).sum()) - 1
        chosen = example["labels"] != IGNORE
        apart += bool(chosen[stop - 1] != chosen[stop + 1])
        assert not chosen[[0, stop, -1]].any()
        restored = np.concatenate(pairs.restore(objective.unmask(example)))
        assert tokenizer().unk_id not in restored
    assert apart > 20


def test_inner_separator_and_case_survive_where_old_tools_corrupt_them() -> None:
    # The source of `TencentPretrain` and UER is changed by their whole-word masking (an inner
    # [SEP] becomes three tokens, the tail is lost); here each token of the pair comes back.
    pairs, objective = bound("nsp", max_length=128), bound("wwm", rate=0.9)
    one, two = flagged("the cat sat on the mat. a dog ran home."), flagged("北京. 我们.")
    for number in range(50):
        rng = np.random.default_rng(number)
        source = pairs.example(one, rng, [two])
        example = objective.unmask(objective.transform(source, rng))
        assert np.array_equal(example["input_ids"], source["input_ids"])


def test_example_without_marks_is_refused_with_what_keeps_them() -> None:
    objective = bound("wwm")
    ids = plain(9, np.random.default_rng(0))
    with pytest.raises(UsageError, match="the first objective of the list does not keep; begin wi"):
        objective.transform({"input_ids": ids}, np.random.default_rng(0))
