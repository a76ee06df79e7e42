"""Sentence order prediction: whole sentences, half of them swapped, never text of elsewhere."""

from itertools import permutations
from math import factorial

import numpy as np
import pytest

from nlpkit.contracts.batch import TOKEN_FLAGS
from nlpkit.errors import UsageError
from tests._masked import bound, bound_of, document, flag, flagged, tokenizer


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("segments", "count"),
    [
        *((segments, 8_000) for segments in (2, 3, 4)),
        *(
            pytest.param(segments, count, marks=pytest.mark.slow)
            for segments, count in ((2, 100_000), (3, 20_000), (4, 20_000))
        ),
    ],
)
def test_all_orders_are_equally_frequent_and_the_piece_comes_back(
    segments: int, count: int
) -> None:
    objective = bound("sop", segments=segments)
    piece = flagged("one two. three. four five. six. seven eight nine. ten.")
    orders = factorial(segments)
    counts = np.zeros(orders)
    rng = np.random.default_rng(0)
    for number in range(count):
        example = objective.example(piece, rng)
        counts[int(example["sentence_order_label"][0])] += 1
        if number < 500:
            texts = objective.restore(example)
            assert np.array_equal(np.concatenate(texts), piece.ids)
            assert len(texts) == segments
            assert len(example["input_ids"]) == objective.length(np.array([len(piece)]))[0]
    assert counts / count == pytest.approx(
        np.full(orders, 1 / orders), abs=bound_of(1 / orders, count)
    )


def test_texts_are_whole_sentences_in_order_or_swapped() -> None:
    objective = bound("sop")
    rng = np.random.default_rng(0)
    for _ in range(500):
        piece = document(int(rng.integers(2, 9)), rng)
        example = objective.example(piece, rng)
        one, two = objective.restore(example)
        label = int(example["sentence_order_label"][0])
        starts = np.flatnonzero(piece.has("sentence_start")).tolist()
        assert len(one) in starts
        first = int((example["token_type_ids"] == 0).sum()) - 2
        assert first == len(two if label else one)
        # Both texts begin with a sentence, whatever their order.
        assert example[TOKEN_FLAGS][1] & flag("sentence_start")
        assert example[TOKEN_FLAGS][first + 2] & flag("sentence_start")


def test_negatives_are_never_those_of_nsp() -> None:
    # google-research/albert#234: text of another document is no wrong order.
    objective = bound("sop")
    assert objective.negatives == 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        piece = document(4, rng)
        ids = objective.example(piece, rng)["input_ids"]
        assert sorted(ids[~np.isin(ids, tokenizer().special_ids)]) == sorted(piece.ids)


@pytest.mark.slow
def test_lengths_do_not_tell_the_order() -> None:
    objective = bound("sop")
    rng = np.random.default_rng(0)
    first: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(20_000):
        piece = document(5, rng)
        example = objective.example(piece, rng)
        size = int((example["token_type_ids"] == 0).sum())
        first[int(example["sentence_order_label"][0])].append(size)
    means = [np.mean(first[label]) for label in (0, 1)]
    error = np.sqrt(sum(np.var(s) / len(s) for s in first.values()))
    assert abs(means[0] - means[1]) < 5 * error


def test_pieces_are_whole_sentences_of_one_document() -> None:
    objective = bound("sop", max_length=13)  # 10 tokens of text
    # Sentences of 4, 4, 4 | 3, 12, 2 | 5, 5, 1 | 6 tokens.
    lengths = np.array([12, 17, 11, 6])
    starts = np.array([0, 4, 8, 12, 15, 27, 29, 34, 39, 40])
    found = objective.spans_cut_at(lengths, starts)
    # 4 + 4 fit, then 4 is alone; 3 is alone, 12 too long, 2 alone; 5 + 5 fit, 1 and 6 are alone.
    assert (found.document.tolist(), found.start.tolist(), found.stop.tolist()) == (
        [0, 2],
        [0, 0],
        [8, 10],
    )
    assert found.dropped == {"sentences_too_long": 1, "sentences_without_another": 5}
    assert objective.length(found.stop - found.start).tolist() == [11, 13]
    # A document begins with a sentence, whether it is flagged or not.
    unflagged = objective.spans_cut_at(lengths, np.setdiff1d(starts, [0, 12, 29, 40]))
    assert (unflagged.start.tolist(), unflagged.stop.tolist()) == ([0, 0], [8, 10])
    assert unflagged.dropped == found.dropped


def test_names_of_the_orders_say_which_text_is_where() -> None:
    field = bound("sop", segments=3).fields["sentence_order_label"]
    assert field.names == tuple("".join(order) for order in permutations("012"))
    assert bound("sop").fields["sentence_order_label"].names == ("in_order", "swapped")


def test_lengths_alone_are_not_enough() -> None:
    with pytest.raises(UsageError, match="needs their token flags"):
        bound("sop").spans(np.array([5]))
