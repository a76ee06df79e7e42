"""Negatives: from another document, by weight, the same with any number of workers, resumable."""

import hashlib
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from nlpkit.contracts.batch import Field, Spans
from nlpkit.contracts.objective import Objective
from nlpkit.data.loader import HELD_OUT, TRAIN, Examples, Stream, steps
from nlpkit.errors import UsageError
from nlpkit.objectives import clm
from tests.data import test_loader as test_loader
from tests.data.test_loader import FakeCorpus


class Pairs(Objective):
    """Pieces of `size` tokens with as many tokens of each negative: their plainest use."""

    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "negative": Field(np.int64, per="sequence"),
    }
    parts = ("pairs",)
    token_flags = ()

    def __init__(self, negatives: int = 1, size: int = 8):
        self.negatives, self.size = negatives, size

    def spans(self, lengths: np.ndarray) -> Spans:
        count = np.asarray(lengths) // self.size
        document = np.repeat(np.arange(len(count)), count)
        start = (np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)) * self.size
        return Spans(document, start, start + self.size, {})

    def length(self, pieces: np.ndarray) -> np.ndarray:
        return pieces

    def example(self, ids, rng, negatives):
        assert len(negatives) == self.negatives
        first = np.array([negative[0] for negative in negatives], np.int64)
        return {"input_ids": ids.astype(np.int64), "negative": first, "draw": rng.random(1)}

    def num_targets(self, batch) -> dict[str, int]:
        return {"pairs": len(batch["input_ids"])}

    def loss(self, model, hidden, batch):
        raise NotImplementedError


class Stretches(clm.Objective):
    """Next-token prediction with a negative: its pieces run on from document to document."""

    negatives = 1

    def example(self, ids, rng, negatives):
        return super().example(ids, rng) | {"negatives": negatives[0]}


def _examples(*sources, negatives: int = 1, seed: int = 1, split: int = TRAIN) -> Examples:
    return Examples(FakeCorpus(*(sources or [([24] * 40, 1.0)])), Pairs(negatives), seed, split)


def _stream(**options) -> Stream:
    return Stream(_examples(negatives=2), **({"budget": 64, "batches_per_step": 2} | options))


def _bytes(batches) -> list:
    return [(b.lengths, {n: a.tobytes() for n, a in b.fields.items()}) for b in batches]


def _steps(found) -> list:
    return [(step.after, _bytes(step.batches)) for step in found]


def test_stream_without_negatives_is_what_it_was_before_there_were_any() -> None:
    # Computed with the code of commit 5efacf4: old runs go on bit for bit.
    digest = hashlib.sha256()
    for number in range(12):
        for batch in test_loader._stream()[number].batches:
            for name in sorted(batch.fields):
                digest.update(name.encode())
                digest.update(batch.fields[name].tobytes())
            digest.update(str(batch.lengths).encode())
    assert digest.hexdigest() == "237efaffaa0314b3a8df554bc1a110be40121712f76cd174b7c3ab8aeab221f1"


def test_negatives_are_never_of_the_piece_s_document() -> None:
    examples = _examples(([8, 80, 8, 16, 24], 1.0), negatives=3)
    seen = set()
    for item in range(1000):
        made = examples.make(item % len(examples), item // len(examples))
        own = int(made["input_ids"][0])  # a token says its document
        assert own not in made["negative"]
        seen.update((own, int(negative)) for negative in made["negative"])
    assert len(seen) == 5 * 4  # every pair of two documents is drawn


def test_negatives_of_a_document_with_nearly_all_pieces_are_found() -> None:
    examples = _examples(([8, 8 * 20_000, 8], 1.0))
    negatives = [int(examples.make(item, 0)["negative"][0]) for item in range(1, 60)]
    assert {*negatives} == {10, 12}  # documents 0 and 2


def test_negatives_are_drawn_as_often_as_an_epoch_has_them() -> None:
    # Documents of weight 3 and 1: three quarters of the negatives of a third are of the first kind;
    # 1000 draws, standard deviation 0.014.
    examples = _examples(([8], 1e-9), ([8], 3.0), ([8], 1.0))
    negatives = [int(examples.make(0, epoch)["negative"][0]) for epoch in range(1000)]
    assert abs(np.mean(np.array(negatives) == 11) - 0.75) < 0.05


def test_negatives_of_a_document_with_nearly_all_weight_are_drawn_by_theirs() -> None:
    # As above, but no draw in 32 leaves document 0: the others are listed, with their weights.
    examples = _examples(([8], 1e9), ([8], 3.0), ([8], 1.0))
    negatives = [int(examples.make(0, epoch)["negative"][0]) for epoch in range(1000)]
    assert abs(np.mean(np.array(negatives) == 11) - 0.75) < 0.07


def test_negatives_come_before_the_example_s_own_draws_from_the_same_rng() -> None:
    examples = _examples(negatives=1)
    made = examples.make(5, 2)
    rng = examples.generator(2, 5, 0)
    (negative,) = examples.negatives.draw(5, 1, rng)
    assert made["negative"] == examples.source(negative)[0]
    assert made["draw"] == rng.random(1)


@pytest.mark.parametrize("workers", [1, 2])
def test_negatives_do_not_depend_on_workers(workers: int) -> None:
    assert _steps(steps(_stream(), 8, workers)) == _steps(steps(_stream(), 8, 0))


def test_negatives_do_not_depend_on_processes() -> None:
    ranks = [_stream(rank=rank, world_size=2) for rank in (0, 1)]
    for number in range(8):
        together = [batch for rank in ranks for batch in rank[number].batches]
        assert _bytes(together) == _bytes(_stream()[number].batches)


def test_negatives_are_the_same_after_a_resume() -> None:
    whole = list(steps(_stream(), 20, 0))
    for done in (1, 7, 19):
        again = steps(_stream(start=whole[done - 1].after), 20 - done, 0)
        assert _steps(again) == _steps(whole[done:])


def test_negatives_differ_between_epochs_and_splits() -> None:
    def drawn(epoch: int, split: int) -> list:
        examples = _examples(split=split)
        return [int(examples.make(item, epoch)["negative"][0]) for item in range(30)]

    assert drawn(0, TRAIN) != drawn(1, TRAIN)
    assert drawn(0, TRAIN) != drawn(0, HELD_OUT)


def test_negatives_of_pieces_that_run_on_share_no_document() -> None:
    tokenizer = SimpleNamespace(vocab_size=500, bos_id=None, eos_id=7, pad_id=None, unk_id=None)
    objective = Stretches(clm.Config(max_length=16), tokenizer, SimpleNamespace())
    examples = Examples(FakeCorpus(([5, 30, 4, 4, 9, 20, 3], 1.0)), objective, 1)
    for item in range(5 * len(examples)):
        made = examples.make(item % len(examples), item // len(examples))
        own = {*made["input_ids"], made["labels"][-1]} - {7}
        assert not own & {*made["negatives"]}


@pytest.mark.parametrize(
    ("split", "what"), [(TRAIN, "the training data"), (HELD_OUT, "the held-out data")]
)
def test_negatives_of_one_document_are_refused_in_one_line(split: int, what: str) -> None:
    # The second document is too short for a piece.
    with pytest.raises(UsageError) as caught:
        _examples(([80, 3], 1.0), split=split)
    assert f"so {what} needs at least two documents with examples" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_negatives_of_no_pieces_are_left_to_the_message_about_that() -> None:
    assert len(_examples(([3, 2], 1.0))) == 0
