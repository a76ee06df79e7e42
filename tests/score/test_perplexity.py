"""Perplexity from log-probabilities: hand arithmetic, bases, a text's words and characters."""

import math

import pytest

from nlpkit.contracts.metric import BadLine
from nlpkit.errors import DataError, UsageError
from nlpkit.score.metrics import perplexity


def test_perplexity_of_a_uniform_choice_is_its_size() -> None:
    lines = [str(math.log(1 / 8))] * 5
    assert perplexity.score(lines).score == pytest.approx(8)


@pytest.mark.parametrize(("base", "line"), [("2", "-1 -3"), ("10", "-0.30103 -0.90309")])
def test_perplexity_in_other_bases(base: str, line: str) -> None:
    # Probabilities 1/2 and 1/8: their geometric mean is 1/4.
    found = perplexity.score([line], base=base)
    assert found.score == pytest.approx(4, rel=1e-5)
    assert found.details["bits_per_token"] == pytest.approx(2, rel=1e-5)
    assert found.signature == f"base:{base}|per:token"


def test_perplexity_is_the_same_in_a_line_each_or_in_sentences() -> None:
    one_each = perplexity.score(["-1.5", "-0.25", "-3"])
    in_lines = perplexity.score(["-1.5\t-0.25", "", " -3 "])
    assert one_each.score == in_lines.score == pytest.approx(math.exp(4.75 / 3))
    assert (in_lines.details["tokens"], in_lines.details["empty_lines"]) == (3, 1)


def test_perplexity_by_words_and_characters_of_the_text() -> None:
    # 12 bits over 3 tokens, 3 words, 4 characters, 7 bytes.
    found = perplexity.score(["-4 -5", "-3"], [["a é", "中"]], base="2")
    details = found.details
    counts = [details[k] for k in ("tokens", "words", "characters", "bytes")]
    assert counts == [3, 3, 4, 7]
    assert found.score == pytest.approx(2**4)
    assert details["bits_per_character"] == pytest.approx(3)
    assert details["perplexity_per_character"] == pytest.approx(8)
    assert details["bits_per_byte"] == pytest.approx(12 / 7)
    by_word = perplexity.score(["-4 -5", "-3"], [["a é", "b c d"]], base="2", per="word")
    assert by_word.score == pytest.approx(2 ** (12 / 5))


def test_perplexity_ends_of_lines_count_if_asked() -> None:
    found = perplexity.score(["-4 -5", "-3"], [["a é", "中"]], per="character", count_ends=True)
    assert found.score == pytest.approx(math.exp(12 / 6))
    assert [found.details[k] for k in ("words", "characters", "bytes")] == [5, 6, 9]
    assert found.signature == "base:e|per:character|ends:yes"


def test_perplexity_of_an_impossible_token_is_infinite_and_said() -> None:
    found = perplexity.score(["-1 -inf", "-Infinity"])
    assert found.score == math.inf
    assert found.details["tokens_of_probability_0"] == 2
    assert "2 tokens have probability 0" in found.details["warnings"][0]


def test_perplexity_beyond_the_largest_float_is_infinite() -> None:
    assert perplexity.score(["-1e5"]).score == math.inf
    assert perplexity.score(["-1e5"]).details["bits_per_token"] == pytest.approx(1e5 / math.log(2))


def test_perplexity_positive_number_is_a_bad_line_with_a_way_out() -> None:
    with pytest.raises(BadLine, match=r"0\.5 is positive.*change the sign") as caught:
        perplexity.score(["-1", "-2 0.5"])
    assert (caught.value.file, caught.value.index) == (0, 1)


def test_perplexity_rounding_above_zero_is_taken() -> None:
    assert perplexity.score(["1.2e-7 -2"]).score == pytest.approx(math.e, rel=1e-6)


@pytest.mark.parametrize("field", ["nan", "inf", "x", "-1e999", "1_0", "--1"])
def test_perplexity_what_is_no_number_is_a_bad_line(field: str) -> None:
    with pytest.raises(BadLine, match="is not a log-probability") as caught:
        perplexity.score(["-1", f"-1 {field}"])
    assert (caught.value.file, caught.value.index) == (0, 1)


def test_perplexity_without_tokens_or_text_is_an_error() -> None:
    with pytest.raises(DataError, match="no token in the file"):
        perplexity.score(["", " "])
    with pytest.raises(DataError, match="no token in the file"):
        perplexity.score([""], [["a word"]], per="word")
    with pytest.raises(DataError, match="no word in the text"):
        perplexity.score(["-1"], [[""]], per="word")
    with pytest.raises(UsageError, match="--per word needs the text as a second file"):
        perplexity.score(["-1"], per="word")


def test_perplexity_all_zero_warns_and_has_no_negative_bits() -> None:
    found = perplexity.score(["0", "0"])
    assert found.details["warnings"] == ["every log-probability is 0"]
    assert found.verbose == "2 tokens, 0.0000 bits per token"
    assert math.copysign(1, found.details["log_probability_nats"]) == 1
