"""Next sentence prediction: where pairs are cut, how many are true, what tells the label.

Expected numbers are hand arithmetic, and bounds of the binomial distribution.
"""

import numpy as np
import pytest
import torch

from nlpkit.contracts.batch import TOKEN_FLAGS, Batch, FlaggedIds
from nlpkit.data.pack import collate
from nlpkit.models import families
from nlpkit.objectives.examples.frame import Frame, frame_tokens
from nlpkit.objectives.nsp import cut_overlapping
from tests._masked import bound, bound_of, document, flag, flagged, plain, tokenizer


def _pairs(objective, count: int, seed: int = 0, most: int = 8):
    """Yield (piece, negative, example) of documents of two and more sentences."""
    rng = np.random.default_rng(seed)
    documents = [document(int(rng.integers(2, most)), rng) for _ in range(60)]
    for number in range(count):
        one, two = rng.choice(len(documents), 2, replace=False)
        made = objective.example(
            documents[one], np.random.default_rng([seed, number]), [documents[two]]
        )
        yield documents[one], documents[two], made


def _at(whole: np.ndarray, part: np.ndarray) -> list[int]:
    """Return where `part` stands in `whole`."""
    windows = np.lib.stride_tricks.sliding_window_view(whole, min(len(part), len(whole)))
    return np.flatnonzero((windows == part).all(1)).tolist() if len(part) <= len(whole) else []


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_half_of_the_pairs_are_true(count: int) -> None:
    objective = bound("nsp", max_length=128)
    one, two = flagged("one two. three four."), flagged("five. six seven eight.")
    rng = np.random.default_rng(0)
    false = sum(
        int(objective.example(one, rng, [two])["next_sentence_label"][0]) for _ in range(count)
    )
    assert false / count == pytest.approx(0.5, abs=bound_of(0.5, count))


def test_pairs_are_cut_where_sentences_begin_and_false_ones_are_of_the_other_document() -> None:
    objective = bound("nsp", max_length=128)
    seen = {0: 0, 1: 0}
    for piece, negative, example in _pairs(objective, 2000):
        first, second = objective.restore(example)
        label = int(example["next_sentence_label"][0])
        assert len(first)
        assert len(second)
        seen[label] += 1
        starts = {
            n: np.flatnonzero(t.has("sentence_start")) for n, t in ((0, piece), (1, negative))
        }
        # The first text ends where a sentence of its document begins; the second one follows it
        # there, or is of the other document, from the beginning of a sentence.
        ends = {at + len(first) for at in _at(piece.ids, first)}
        begins = {*_at((piece, negative)[label].ids, second)}
        assert ends & {*starts[0].tolist()}
        assert begins & {*starts[label].tolist()}
        if not label:
            assert ends & begins
        types = example["token_type_ids"]
        assert types.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        # The flags go with their tokens, for whole-word masking behind it in a list.
        flags = example[TOKEN_FLAGS]
        assert flags[[0, len(first) + 1, -1]].tolist() == [0, 0, 0]
        assert flags[len(first) + 2] & flag("sentence_start")
    assert min(seen.values()) > 900


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_lengths_and_cuts_do_not_depend_on_the_label(count: int) -> None:
    objective = bound("nsp", max_length=128)
    sizes: dict[int, list[int]] = {0: [], 1: []}
    for piece, _, example in _pairs(objective, count):
        label = int(example["next_sentence_label"][0])
        types = example["token_type_ids"]
        assert len(types) == objective.length(np.array([len(piece)]))[0]
        sizes[label].append(int((types == 1).sum()))
    # Two samples of the same distribution: means within 5 standard errors of their difference.
    means = [np.mean(sizes[label]) for label in (0, 1)]
    error = np.sqrt(sum(np.var(s) / len(s) for s in sizes.values()))
    assert abs(means[0] - means[1]) < 5 * error


@pytest.mark.slow
def test_true_pairs_end_with_their_document_no_more_often_than_false_ones() -> None:
    objective = bound("nsp", max_length=128)
    last = {0: [], 1: []}
    for piece, negative, example in _pairs(objective, 5000):
        label = int(example["next_sentence_label"][0])
        second = objective.restore(example)[1]
        whole = (negative if label else piece).ids
        last[label].append(len(whole) - len(second) in _at(whole, second))
    shares = [float(np.mean(last[label])) for label in (0, 1)]
    # Without windows all true ones would, and few false ones.
    assert shares[0] < 0.2
    assert abs(shares[0] - shares[1]) < 0.1


@pytest.mark.parametrize(
    "negative", ["x", "word", "No end of a sentence, and many words in it, so."]
)
@pytest.mark.parametrize("text", ["Whole words are masked together. " * 3, "See what it is"])
def test_negative_of_any_length_gives_a_pair_of_the_planned_length(
    text: str, negative: str
) -> None:
    objective = bound("nsp", max_length=128)
    piece = flagged(text)
    for number in range(60):
        rng = np.random.default_rng(number)
        example = objective.example(piece, rng, [flagged(negative)])
        assert len(example["input_ids"]) == objective.length(np.array([len(piece)]))[0]
        assert min(map(len, objective.restore(example))) > 0


@pytest.mark.parametrize("max_length", [8, 64, 131, 512])
def test_pieces_cover_all_documents_and_examples_fit(max_length: int) -> None:
    objective = bound("nsp", max_length=max_length)
    lengths = np.array([1, 2, 7, max_length, 5 * max_length + 3, 1000])
    found = objective.spans(lengths)
    sizes = found.stop - found.start
    assert objective.length(sizes).max() <= max_length
    # Full pieces make examples of exactly the longest length.
    assert objective.length(sizes.max(keepdims=True)).tolist() == [max_length]
    for number, length in enumerate(lengths.tolist()):
        covered = np.zeros(length, int)
        for start, stop in zip(found.start, found.stop, strict=True):
            own = found.document[np.flatnonzero(found.start == start)]
            if number in own:
                covered[start:stop] += found.document[(found.start == start)].tolist().count(number)
        assert covered.all() == (length >= 2)
    assert found.dropped == {"documents_without_piece": 1, "tokens_of_such_documents": 1}


def test_pieces_overlap_and_the_last_is_longer_than_what_overlaps() -> None:
    # By hand: pieces of 6 tokens, one every 4, so 2 tokens are in both.
    found = cut_overlapping(np.array([10, 1, 11, 6]), 4, 6, 2)
    assert found.document.tolist() == [0, 0, 2, 2, 2, 3]
    assert found.start.tolist() == [0, 4, 0, 4, 8, 0]
    assert found.stop.tolist() == [6, 10, 6, 10, 11, 6]


def test_no_piece_is_too_short_for_two_texts_where_pieces_do_not_overlap() -> None:
    # The last token of 13 would be a piece alone, and an example has two texts: it is left out.
    found = cut_overlapping(np.array([13, 12, 1, 14]), 6, 6, 2)
    assert found.document.tolist() == [0, 0, 1, 1, 3, 3, 3]
    assert (found.stop - found.start).tolist() == [6, 6, 6, 6, 6, 6, 2]
    assert found.dropped["short_piece_tokens"] == 1
    objective = bound("nsp", max_length=9)
    for length in range(2, 30):
        spans = objective.spans(np.array([length, 2]))
        rng = np.random.default_rng(length)
        for start, stop in zip(spans.start, spans.stop, strict=True):
            made = objective.example(document_of(int(stop - start)), rng, [document_of(2)])
            assert min(map(len, objective.restore(made))) > 0


def document_of(size: int) -> FlaggedIds:
    """Return a document of so many tokens, one sentence."""
    whole = flagged("the quick brown fox jumps over the lazy dog " * 3)
    return FlaggedIds(whole.ids[:size], whole.token_flags[:size])


class Model:
    """Gives the same scores for every pair."""

    def pair_logits(self, hidden, lengths):
        return torch.tensor([[0.0, 1.0]]).expand(len(lengths), 2)


def test_loss_is_the_sum_of_the_cross_entropies_of_the_labels() -> None:
    objective = bound("nsp", max_length=128)
    made = [example for _, _, example in _pairs(objective, 20)]
    batch = collate(made, objective.fields)
    labels = batch.fields["next_sentence_label"]
    loss = objective.loss(
        Model(),
        torch.zeros(batch.tokens, 1),
        Batch({"next_sentence_label": torch.from_numpy(labels)}, batch.lengths),
    )
    # By hand: ln(1 + e) for label 0, ln(1 + 1/e) for label 1.
    wanted = sum(np.log(1 + np.exp(1 - 2 * label)) for label in labels.tolist())
    assert float(loss.terms["nsp"].loss_sum) == pytest.approx(wanted, rel=1e-6)
    assert loss.num_targets == objective.num_targets(batch.fields) == {"nsp": 20}
    # The model always says 1.
    right, count = loss.parts["nsp_accuracy"]
    assert (float(right), count) == (labels.sum(), 20)
    assert 0 < labels.sum() < 20


@pytest.mark.parametrize(
    ("family", "expected"),
    [  # Devlin et al. 2018; Liu et al. 2019 as transformers' RobertaTokenizer; Yang et al. 2019
        ("bert", "[CLS] 0 0 [SEP] 0 [SEP]"),
        ("roberta", "<s> 0 0 </s> </s> 0 </s>"),
        ("xlnet", "0 0 <sep> 0 <sep> <cls>"),
    ],
)
def test_frame_is_the_familys_and_gives_its_texts_back(family: str, expected: str) -> None:
    model = families.load(family).Config()
    named = tokenizer().extended(frame_tokens(model))
    frame = Frame(named, model)
    word = plain(1, np.random.default_rng(0))
    texts = [word.repeat(2), word]
    ids = frame.ids(texts)
    special = [named.special_id(each) if each != "0" else word[0] for each in expected.split()]
    assert ids.tolist() == special
    assert len(ids) == 3 + frame.size(2)
    assert [text.tolist() for text in frame.texts(ids, 2)] == [text.tolist() for text in texts]
    assert [ids[place].tolist() for place in frame.places([2, 1])] == [*map(list, texts)]
