"""Next-token prediction: pieces and examples by hand, and every token a target exactly once."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nlpkit import recipe, registry
from nlpkit.contracts.batch import IGNORE
from nlpkit.data.loader import Examples, Stream
from nlpkit.data.pack import frame_documents
from nlpkit.errors import RecipeError, UsageError
from nlpkit.objectives.clm import Config, Objective
from nlpkit.recipe.fit import missing_needs
from nlpkit.runs.build import bind_objective, model_part
from tests import _tiny
from tests._losses import loss_of, only_term
from tests.models.test_gpt import RECIPE

BOS, EOS = 1, 2
UNLIMITED = SimpleNamespace(causal=True)
RNG = np.random.default_rng(0)


class _Corpus:
    """Documents of tokens that say where they are: document d has 100 d + 10, 100 d + 11, …"""

    def __init__(self, lengths: list[int]):
        self.lengths = np.array(lengths)
        self.weights, self.starts = np.ones(1), np.array([0, len(lengths)])

    def document(self, index: int) -> np.ndarray:
        return np.arange(self.lengths[index], dtype=np.uint32) + 100 * index + 10


def _objective(
    bos: int | None = None, eos: int | None = EOS, unk: int | None = None, **config
) -> Objective:
    tokenizer = SimpleNamespace(bos_id=bos, eos_id=eos, unk_id=unk, pad_id=None)
    return Objective(Config(**config), tokenizer, UNLIMITED)


def _made(objective: Objective, lengths: list[int]) -> list[tuple[list[int], list[int]]]:
    examples = Examples(_Corpus(lengths), objective, seed=1)
    made = [examples.make(number, 0) for number in range(len(examples))]
    sizes = [len(example["input_ids"]) for example in made]
    assert sizes == examples.sizes.tolist()
    return [(e["input_ids"].tolist(), e["labels"].tolist()) for e in made]


def test_contiguous_pieces_by_hand() -> None:
    # The stream: 10 11 12 </s> 110 </s> 210 211 </s>, cut every 3 inputs.
    objective = _objective(max_length=3)
    assert _made(objective, [3, 1, 2]) == [
        ([10, 11, 12], [11, 12, EOS]),
        ([EOS, 110, EOS], [110, EOS, 210]),
        ([210, 211], [211, EOS]),
    ]
    assert objective.spans(np.array([3, 1, 2])).dropped == {
        "first_tokens_without_context": 1,
        "documents_without_piece": 0,
    }


def test_contiguous_pieces_without_an_end_token_join_documents_directly() -> None:
    assert _made(_objective(eos=None, max_length=2), [2, 2, 1]) == [
        ([10, 11], [11, 110]),
        ([110, 111], [111, 210]),
    ]


def test_piece_may_run_over_many_documents() -> None:
    ((inputs, labels),) = _made(_objective(max_length=100), [1, 1, 1, 1])
    assert inputs == [10, EOS, 110, EOS, 210, EOS, 310]
    assert labels == [EOS, 110, EOS, 210, EOS, 310, EOS]


def test_document_pieces_by_hand_have_both_ends() -> None:
    # <s> 10 … 14 </s> cut every 4 inputs; <s> 110 </s> is one piece.
    objective = _objective(bos=BOS, max_length=4, contiguous=False)
    assert _made(objective, [5, 1]) == [
        ([BOS, 10, 11, 12], [10, 11, 12, 13]),
        ([13, 14], [14, EOS]),
        ([BOS, 110], [110, EOS]),
    ]
    assert objective.spans(np.array([5, 1])).dropped == {
        "first_tokens_without_context": 0,
        "documents_without_piece": 0,
    }


def test_documents_without_ends_lose_their_first_token_and_it_is_counted() -> None:
    objective = _objective(eos=None, max_length=4, contiguous=False)
    assert _made(objective, [1, 3]) == [([110, 111], [111, 112])]
    assert objective.spans(np.array([1, 3])).dropped == {
        "first_tokens_without_context": 2,
        "documents_without_piece": 1,
    }


def test_length_that_ends_at_a_cut_makes_no_empty_piece() -> None:
    # With </s>, of which nothing follows: as many inputs as the document has tokens.
    for size, expected in ((4, [4]), (5, [4, 1]), (7, [4, 3]), (8, [4, 4])):
        made = _made(_objective(max_length=4, contiguous=False), [size])
        assert [len(inputs) for inputs, _ in made] == expected


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.integers(1, 20),
    st.booleans(),
    st.sampled_from([(None, None), (None, EOS), (BOS, EOS), (EOS, EOS)]),
)
def test_every_token_is_a_target_exactly_once(lengths, max_length, contiguous, ends) -> None:
    objective = _objective(*ends, max_length=max_length, contiguous=contiguous)
    made = _made(objective, lengths)
    corpus = _Corpus(lengths)
    documents = [corpus.document(i).tolist() for i in range(len(lengths))]
    targets = sorted(label for _, labels in made for label in labels)
    after = [] if ends[1] is None else [EOS]
    if contiguous:
        expected = [token for text in documents for token in (*text, *after)][1:]
    elif ends[0] is None:
        expected = [token for text in documents for token in (*text, *after)[1:]]
    else:
        expected = [token for text in documents for token in (*text, *after)]
    assert targets == sorted(expected)
    assert all(0 < len(inputs) <= max_length for inputs, _ in made)
    # Each input but the last is followed by its target.
    assert all(inputs[1:] == labels[:-1] for inputs, labels in made)
    dropped = objective.spans(corpus.lengths).dropped["first_tokens_without_context"]
    text = sum(lengths) + len(after) * len(lengths)
    assert len(targets) + dropped == text


def test_epoch_of_batches_predicts_every_token_once() -> None:
    lengths = [37, 5, 120, 64, 1, 250]
    examples = Examples(_Corpus(lengths), _objective(max_length=16), seed=3)
    stream = Stream(examples, budget=64, batches_per_step=1)
    rest, found = np.empty(0, np.int64), []
    for epoch in range(stream.round):
        bins = stream.plan(epoch)
        for index in range(len(bins)):
            found += examples.batch(bins[index], epoch).fields["labels"].tolist()
        rest = bins.leftover
    assert not len(rest)
    stream_of_all = [t for i in range(6) for t in (*_Corpus(lengths).document(i), EOS)][1:]
    assert sorted(found) == sorted(stream_of_all * stream.round)


def test_framed_span_reads_frame_text_and_next_documents() -> None:
    corpus = _Corpus([2, 1, 3])
    # 7 8 10 11 9 | 7 8 110 9 | 7 8 210 211 212 9
    whole = [7, 8, 10, 11, 9, 7, 8, 110, 9, 7, 8, 210, 211, 212, 9]
    for start in range(5):
        for stop in range(start + 1, 16):
            span = frame_documents(corpus.document, 0, start, stop, (7, 8), (9,))
            assert span.tolist() == whole[start:stop]
            assert span.dtype == np.uint32


def test_unknown_token_is_an_input_and_no_target() -> None:
    # The stream: 10 11 12 </s> 110 </s>, where 11 is <unk>.
    objective = _objective(unk=11, max_length=100)
    assert _made(objective, [3, 1]) == [([10, 11, 12, EOS, 110], [IGNORE, 12, EOS, 110, EOS])]
    assert objective.suppress_tokens == (11,)
    learned = _objective(unk=11, max_length=100, learn_unknown=True)
    assert _made(learned, [3, 1]) == [([10, 11, 12, EOS, 110], [11, 12, EOS, 110, EOS])]
    assert learned.suppress_tokens == ()
    assert Config.EARLIER == {"learn_unknown": True}  # as runs of before the setting were begun


def test_unknown_tokens_add_nothing_to_the_loss_and_are_not_counted() -> None:
    objective = _objective(unk=11, max_length=100)
    (inputs, labels), *_ = _made(objective, [3, 1])
    fields = {"input_ids": torch.tensor(inputs), "labels": torch.tensor(labels)}

    class Rows:
        def __call__(self, lengths, **inputs):
            return torch.arange(1.0, 6.0)[:, None]

        def token_loss(self, hidden, index, targets):
            assert targets.tolist() == [12, EOS, 110, EOS]
            return hidden[index].sum(), hidden[index, 0]

    term = only_term(loss_of(objective, Rows(), fields, [5]))
    assert (term.loss_sum.item(), term.num_targets) == (2 + 3 + 4 + 5, 4)
    assert objective.num_targets({"labels": np.array(labels)}) == {"clm": 4}


def test_loss_counts_every_position_and_asks_the_model_for_inputs_alone() -> None:
    class Uniform:
        def __call__(self, lengths, **inputs):
            assert {*inputs} == {"input_ids"}
            return torch.zeros(sum(lengths), 1)

        def token_loss(self, hidden, index, targets):
            each = torch.full((len(index),), 2.0)
            return each.sum(), each

    objective = _objective(max_length=4)
    batch = {"input_ids": torch.arange(7), "labels": torch.arange(7)}
    loss = loss_of(objective, Uniform(), batch, (4, 3))
    assert (float(only_term(loss).loss_sum), loss.num_targets) == (14.0, {"clm": 7})
    assert objective.num_targets({"labels": np.arange(7)}) == {"clm": 7}
    assert loss.parts["clm"][1] == 7


def test_objective_longer_than_the_positions_is_a_recipe_error(tmp_path) -> None:
    resolved = recipe.load(str(_tiny.write(tmp_path, text=RECIPE)), ["objective.max_length=65"])
    with pytest.raises(UsageError) as raised:
        bind_objective(resolved, SimpleNamespace(bos_id=None, eos_id=0), model_part(resolved))
    assert str(raised.value) == (
        "--set objective.max_length: 65 is more than model.max_positions 64; "
        "lower the one or raise the other"
    )


def test_family_that_sees_to_the_right_is_refused_and_those_that_fit_are_named(tmp_path) -> None:
    text = _tiny.RECIPE.replace("{name: cpm_ant, max_length: 64, min_piece: 4}", "{name: clm}")
    said = r"tiny\.yaml:7:19: objective\.name: clm needs causal .*; it trains: .*gpt"
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(_tiny.write(tmp_path, text=text)))


def test_needs_that_a_config_has_as_false_are_missing() -> None:
    assert missing_needs(Objective, SimpleNamespace(capabilities={"predicts_tokens"})) == ["causal"]
    assert missing_needs(Objective, registry.load("models", "gpt").Config()) == []
