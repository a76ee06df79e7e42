"""Vocabularies learned from text: by hand arithmetic, and the same in every run."""

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from nlpkit import registry
from nlpkit.errors import DataError, UsageError
from nlpkit.tokenizers import unigram
from nlpkit.tokenizers.cpm_ant import SPECIAL_TOKENS, Config, Tokenizer
from nlpkit.tokenizers.library.training import LONGEST_WORD, cut_texts

REAL = Path(__file__).parents[3] / "shared" / "data" / "zh_lm"
KINDS = ["bpe", "cpm_ant", "unigram", "wordpiece"]


def made_up_texts() -> list[str]:
    """Return 150 lines of words with Zipf frequencies, many of them ties, and rare characters."""
    random_ = random.Random(0)
    syllables = [first + vowel for first in "ktmznplr" for vowel in "aeiou"]
    words = ["".join(random_.choices(syllables, k=random_.randint(1, 4))) for _ in range(700)]
    words += ["北京", "上海", "人民", "的", "Süß", "café", "1984", "北京大学"]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return [
        " ".join(random_.choices(words, weights, k=60)) + f", {chr(0x3400 + line)}x."
        for line in range(150)
    ]


def train(name: str, texts, vocab_size: int):
    part = registry.load("tokenizers", name)
    return part.Tokenizer.train(texts, part.Config(vocab_size=vocab_size))


def test_train_by_hand_orders_characters_then_words():
    # jieba's words: 天安门 twice, 北京 three times, 上海 twice, 大 once.
    text = "天安门 天安门 北京 北京 北京 上海 上海 大"
    characters = ["京", "北", "上", "天", "安", "海", "门"]  # 3 3 2 2 2 2 2, ties by code point
    words = ["天安门", "北京", "上海"]  # save 2 * 2, 3 * 1, 2 * 1
    whole = Tokenizer.train([text], Config(vocab_size=100))
    assert whole._tokens == (*SPECIAL_TOKENS, *characters, *words)
    for size in (16, 17, 18, 20):
        cut = Tokenizer.train([text], Config(vocab_size=size))
        assert cut._tokens == whole._tokens[:size]
    often = Tokenizer.train([text], Config(vocab_size=100, min_frequency=3))
    assert often._tokens == (*SPECIAL_TOKENS, "京", "北", "北京")
    assert whole._tokens == Tokenizer.train(text.split(" "), Config(vocab_size=100))._tokens
    assert whole._tokens == Tokenizer.train(reversed(text.split()), Config())._tokens


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.text(max_size=60), max_size=4))
def test_train_any_text_can_be_saved_and_decodes(tmp_path_factory, texts):
    ours = Tokenizer.train(texts, Config(vocab_size=1000, min_frequency=1))
    directory = tmp_path_factory.mktemp("trained")
    ours.save(directory)
    assert Tokenizer.load(directory)._tokens == ours._tokens
    for text in texts:
        # Unknown are only the carriage return, and words of more than 200 characters.
        if ours.unk_id in ours.encode(text):
            assert "\r" in text or len(text) > 200
        else:
            assert ours.decode(ours.encode(text)) == text


def test_grow_by_hand_keeps_ids_and_counts_present_pieces():
    old = Tokenizer([*SPECIAL_TOKENS, "人", "民", "人民", "x"])
    text = "人民币 人民币 人民币 北京 北京 北京 北京 孤"
    # 人民币 is 人民 + 币 already: 3 * 1 saved, less than 北京's 4 * 1.
    new = old.grow([text], 100)
    assert new._tokens == (*old._tokens, "京", "北", "币", "北京", "人民币")
    assert old.grow([text], 18)._tokens == new._tokens[:18]
    assert old.grow([text], old.vocab_size)._tokens == old._tokens
    assert old.grow([text], 100, min_frequency=1).vocab_size == new.vocab_size + 1
    with pytest.raises(UsageError, match=r"13 is less than the 14 tokens there are"):
        old.grow([text], 13)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1"])
def test_train_in_any_process_gives_the_same_vocabulary(seed):
    code = (
        "from tests.tokenizers.test_training import KINDS, made_up_texts, train;"
        "print([train(name, made_up_texts(), 500).fingerprint() for name in KINDS])"
    )
    found = {
        str([train(name, iter(made_up_texts()), 500).fingerprint() for name in KINDS])
        for _ in range(2)
    }
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    found.add(run.stdout.strip())
    assert len(found) == 1


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("vocab_size", [pytest.param(300, marks=pytest.mark.slow), 500])
def test_train_enough_text_fills_the_vocabulary(name, vocab_size):
    texts = made_up_texts()
    ours = train(name, texts, vocab_size)
    assert ours.vocab_size == vocab_size
    assert len({ours.token(i) for i in range(vocab_size)}) == vocab_size
    fewer = [sum(map(len, train(name, texts, size).encode_batch(texts))) for size in (300, 600)]
    assert fewer[1] < fewer[0]


@pytest.mark.parametrize("name", KINDS)
def test_train_reads_texts_once_and_passes_errors_on(name):
    def broken():
        yield "北京 ab"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        train(name, broken(), 300)
    with pytest.raises(DataError, match="lone surrogate"):
        train(name, ["a", "b\ud800"], 300)


@pytest.mark.parametrize(("name", "size"), [("bpe", 258), ("cpm_ant", 10), ("wordpiece", 5)])
def test_train_no_text_leaves_the_given_tokens(name, size):
    assert train(name, [], 300).vocab_size == size


def test_train_bpe_by_hand_merges_the_most_frequent_pair():
    ours = train("bpe", ["ab ab abc b"], 300)
    # Pairs seen twice or more: a+b 3 times, then Ġ+ab 2 times (Ġ is the space).
    assert [ours.token(i) for i in range(258, ours.vocab_size)] == ["ab", "Ġab"]
    assert [ours.token(i) for i in ours.encode("ab ab abc b")] == [
        "ab",
        "Ġab",
        "Ġab",
        "c",
        "Ġ",
        "b",
    ]


@pytest.mark.parametrize("name", ["bpe", "gpt1_bpe"])
def test_train_long_words_are_cut_and_said(name):
    long = " " + "".join(random.Random(0).choices("acgt", k=2 * LONGEST_WORD + 5))
    first = LONGEST_WORD + (name == "gpt1_bpe")  # there the space is in no word
    parts = [long[:first], long[first : first + LONGEST_WORD], long[first + LONGEST_WORD :]]
    cut = train(name, [f"x y{long} z {'a' * (LONGEST_WORD - 1)}", "short"], 300)
    assert cut.training_note == "1 word of more than 4,096 characters cut"
    by_hand = ["x y" + parts[0], parts[1], f"{parts[2]} z {'a' * (LONGEST_WORD - 1)}", "short"]
    whole = train(name, by_hand, 300)
    assert (cut.fingerprint(), whole.training_note) == (whole.fingerprint(), "")


def test_train_unigram_long_words_are_cut_and_said():
    long = "".join(random.Random(0).choices("acgt", k=300))
    texts = made_up_texts()
    cut = train("unigram", [*texts, f"北{long}", "北", "北"], 500)  # a script is a word
    assert cut.training_note == "1 word of more than 128 characters cut"
    parts = [f"北{part}" for part in (long[:128], long[128:256], long[256:])]
    by_hand = train("unigram", [*texts, *parts], 500)
    assert (cut.fingerprint(), by_hand.training_note) == (by_hand.fingerprint(), "")


def test_train_wordpiece_long_words_are_left_out_and_said():
    texts = made_up_texts()
    with_long = train("wordpiece", [*texts, "a" * 101, "a" * 101, "b" * 100, "b" * 100], 500)
    assert with_long.training_note == "2 words of more than 100 characters left out"
    without = train("wordpiece", [*texts, "b" * 100, "b" * 100], 500)
    assert (with_long.fingerprint(), without.training_note) == (without.fingerprint(), "")


def test_train_bpe_ordinary_texts_are_not_cut():
    splitter = ByteLevel(add_prefix_space=False)
    longest = " " + "天" * (LONGEST_WORD - 1)  # with the space
    whole = ["word " * 5000, "北京，" * 5000, longest + "！", longest, " \n" * (LONGEST_WORD // 2)]
    lengths: list[int] = []
    assert list(cut_texts(whole, splitter, lengths)) == whole
    assert not lengths
    for character in "天！7\t":  # each kind of words, wherever it begins
        texts = ["，" + "x " * start + character * (LONGEST_WORD + 1) for start in (0, 700, 2999)]
        found = list(cut_texts(texts, splitter, lengths))
        assert len(found) == 6
        assert "".join(found) == "".join(texts)


def test_train_wordpiece_by_hand_merges_inside_words():
    ours = train("wordpiece", ["ab ab abc 中文中 Ab z"], 300)
    # c and z are seen once, 文 too; a b 中 remain, b also inside; then a + ##b, three times.
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert [ours.token(i) for i in range(ours.vocab_size)] == [
        *special,
        "##b",
        "a",
        "b",
        "中",
        "ab",
    ]
    assert [ours.token(i) for i in ours.encode("ab abc 中文")] == ["ab", "[UNK]", "中", "[UNK]"]


def test_level_unlearned_characters_go_to_the_top_of_the_ladder():
    scores = {"ab": -2.0, "a": -3.0, "x": -9.0, "y": -9.0001, "z": -9.0002, "yz": -9.0001}
    expected = {"ab": -2.0, "a": -3.0, "x": -9.0, "y": -9.0, "z": -9.0, "yz": -9.0001}
    orders = itertools.permutations("xyz")
    for order in orders:
        shuffled = scores | dict(zip(order, (-9.0, -9.0001, -9.0002), strict=True))
        assert unigram._level(shuffled) == pytest.approx(expected, abs=1e-9)
    assert unigram._level({}) == {}


@pytest.mark.real_data
def test_train_and_grow_real_texts_save_tokens():
    texts = (REAL / "clue_small.txt").read_text(encoding="utf-8").split("\n")
    small = Tokenizer.train(texts, Config(vocab_size=8000))
    assert small.vocab_size == 8000
    large = small.grow(texts, 12000)
    assert large._tokens[:8000] == small._tokens
    lengths = [sum(map(len, t.encode_batch(texts))) for t in (small, large)]
    assert lengths[1] < 0.97 * lengths[0]
