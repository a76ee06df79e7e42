"""T5's span corruption: its formula, counted rates, the source comes back, proofs and defects."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from nlpkit.contracts.batch import IGNORE
from nlpkit.generate.rows import Answer
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.t5 import Config as ModelConfig
from nlpkit.models.t5.model import Model
from nlpkit.objectives import span_corruption
from nlpkit.objectives.span_corruption import SENTINELS, longest_piece, segments, sizes
from nlpkit.tokenizers import bpe
from tests import _provable, _tiny

SIZES = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, head_dim=8, intermediate_size=24)
TOKENIZER = bpe.Tokenizer.train(["a be cat"], bpe.Config(vocab_size=258)).extended(
    ["</s>", *SENTINELS]
)
END = TOKENIZER.special_id("</s>")
RECIPE = """\
name: tiny
model: {family: t5, hidden_size: 32, num_layers: 2, num_heads: 4, head_dim: 8,
  intermediate_size: 48, attention_dropout: 0.0}
tokenizer: {kind: bpe, vocab_size: 400}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: span_corruption, max_length: 48, rate: 0.3}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""


def _objective(**settings) -> span_corruption.Objective:
    config = span_corruption.Config(**{"max_length": 64} | settings)
    return span_corruption.Objective(config, TOKENIZER, SIZES)


def _mask_of_the_authors(length: int, rng: np.random.Generator) -> np.ndarray:
    """Return T5's `random_spans_noise_mask` of text-to-text-transfer-transformer, in numpy."""
    noise = min(max(round(length * 0.15), 1), length - 1)
    spans = max(round(noise / 3.0), 1)

    def segmentation(items: int, count: int) -> np.ndarray:
        first = rng.permutation(np.arange(items - 1) < count - 1)
        return np.bincount(np.cumsum(np.append(False, first)))

    both = [segmentation(length - noise, spans), segmentation(noise, spans)]
    starts = np.zeros(length, np.int64)
    starts[np.cumsum(np.stack(both, 1).reshape(-1))[:-1]] = 1
    return np.cumsum(starts) % 2 == 1


@pytest.mark.parametrize(("source", "text", "target"), [(512, 568, 114), (114, 126, 26)])
def test_lengths_are_those_of_t5(source: int, text: int, target: int) -> None:
    # 512, 568 and 114 are in T5's own settings; 114: by hand, 126 - 19 + 6 + 1 and 19 + 6 + 1.
    config = span_corruption.Config(max_length=source)
    assert longest_piece(config, config.max_length) == text
    objective = _objective(max_length=source)
    example = objective.example(np.arange(text) % 250 + 2, np.random.default_rng(0))
    assert (len(example["source_ids"]), len(example["labels"])) == (source, target)
    assert objective.length(np.array([text])).tolist() == [source + target]
    assert objective.max_new_tokens == target


def test_absurd_length_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"2147483647 tokens have \d+ spans of noise, and"):
        _objective(max_length=2**31 - 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2_000, pytest.param(6_000, marks=pytest.mark.slow)])
def test_masks_have_the_distribution_of_the_authors(count: int) -> None:
    objective, rng = _objective(), np.random.default_rng(0)
    found, expected = Counter(), Counter()
    for _ in range(count):
        example = objective.example(np.arange(40) + 2, rng)
        # Noise is what the source lacks.
        found[_first(~np.isin(np.arange(40) + 2, example["source_ids"]))] += 1
        expected[_first(_mask_of_the_authors(40, rng))] += 1
    # By hand: 6 tokens in 2 spans, so the first has 1 to 5; before it are 1 to 33 tokens.
    assert {size for size, _ in found} == {size for size, _ in expected} == {1, 2, 3, 4, 5}
    for key in range(2):
        ours, theirs = (Counter[int]() for _ in range(2))
        for counts, summed in ((found, ours), (expected, theirs)):
            for each, times in counts.items():
                summed[each[key] if key == 0 else each[key] // 11] += times
        for value in {*ours, *theirs}:
            assert ours[value] == pytest.approx(theirs[value], abs=6 * theirs[value] ** 0.5)


def _first(noise: np.ndarray) -> tuple[int, int]:
    """Return the size of the first span of noise, and where it begins."""
    assert noise.sum() == 6
    (begins,) = np.nonzero(np.diff(np.concatenate([[0], noise, [0]])))
    return int(begins[1] - begins[0]), int(begins[0])


@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_share_of_noise_is_the_rate_and_the_mean_span_the_mean(rate: float) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(40, 500, 2000)
    noise, spans = sizes(lengths, rate, 3.0)
    assert noise.sum() / lengths.sum() == pytest.approx(rate, rel=0.005)
    assert noise.sum() / spans.sum() == pytest.approx(3.0, rel=0.02)


def test_noise_of_single_tokens_leaves_a_token_before_each() -> None:
    # By hand: half of the tokens, rounded to even, and as many spans as tokens stay.
    noise, spans = sizes(np.array([2, 3, 5, 7]), 0.5, 1.0)
    assert (noise.tolist(), spans.tolist()) == ([1, 2, 2, 4], [1, 1, 2, 3])


@pytest.mark.parametrize(("rate", "mean_span"), [(0.15, 1.5), (0.3, 1.5), (0.5, 1.5), (0.5, 1.0)])
def test_source_comes_back_from_every_length(rate: float, mean_span: float) -> None:
    objective, rng = _objective(rate=rate, mean_span=mean_span), np.random.default_rng(0)
    for length in (*range(2, 40), objective.piece):
        ids = rng.integers(2, 258, length)
        example = objective.example(ids, rng)
        (back,) = objective.restore(example)
        assert np.array_equal(back, ids)
        total = len(example["source_ids"]) + len(example["labels"])
        assert objective.length(np.array([length])).tolist() == [total]
        assert len(example["source_ids"]) <= 64
        assert example["source_ids"][-1] == example["labels"][-1] == END
        assert example["input_ids"][0] == TOKENIZER.pad_id
        assert np.array_equal(example["input_ids"][1:], example["labels"][:-1])
        # The sentinels count up on both sides.
        marks = [i for i in example["labels"].tolist() if i in objective.text_of]
        assert marks == [i for i in example["source_ids"].tolist() if i in objective.text_of]
        assert [objective.text_of[i] for i in marks] == [
            f"<extra_id_{number}>" for number in range(len(marks))
        ]


def test_segments_are_equally_likely() -> None:
    rng, count = np.random.default_rng(0), 30_000
    found = Counter(tuple(segments(5, 3, rng).tolist()) for _ in range(count))
    # By hand: 5 in 3 parts, each at least 1.
    wanted = {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert {*found} == wanted
    assert all(n / count == pytest.approx(1 / 6, abs=0.012) for n in found.values())


def test_too_many_spans_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_length: 512 tokens have 128 spans of noise"):
        _objective(max_length=512, rate=0.25, mean_span=1.0)


def test_sentinels_are_written_and_read_as_text() -> None:
    objective = _objective()
    first, second = (TOKENIZER.special_id(f"<extra_id_{n}>") for n in (0, 1))
    ids = objective.encode_input("a <extra_id_0> cat <extra_id_1>")
    encode = TOKENIZER.encode
    # The space before a sentinel is the hidden word's, as in the examples of training.
    assert ids == [*encode("a"), first, *encode(" cat"), second]
    # There is no such sentinel: it is text.
    assert objective.encode_input("a <extra_id_700>") == encode("a ") + encode("<extra_id_700>")
    written = [first, *encode(" be"), second, *encode("a b")]
    assert objective.decode_output(written) == "<extra_id_0> be <extra_id_1> a b"
    model = Model(SIZES, TOKENIZER.vocab_size).eval()
    writer = Writer(model, TOKENIZER, objective, Settings(max_new_tokens=4, min_new_tokens=4))
    (answer,) = writer.write(["a <extra_id_0> cat"])
    assert answer.outputs[0].tokens == 4


def test_stop_text_may_be_a_sentinel_and_is_not_written() -> None:
    objective = _objective()
    model = Model(SIZES, TOKENIZER.vocab_size).eval()
    first, second = (TOKENIZER.special_id(f"<extra_id_{n}>") for n in (0, 1))
    settings = Settings(stop=["<extra_id_1>"])
    writer = Writer(model, TOKENIZER, objective, settings)
    ids = (first, *TOKENIZER.encode(" be"))
    job = writer._make_job("a <extra_id_0> cat")
    decode = writer._choose_decoder(job)
    assert writer._find_stop(ids, decode)[1] is None
    assert writer._find_stop((*ids, second), decode)[1] is not None
    answer = Answer((*ids, second), 0.0, ended=True)
    assert writer._make_output(job, answer).text == "<extra_id_0> be "


def test_vocabulary_has_the_sentinels_in_t5s_order() -> None:
    ids = [TOKENIZER.special_id(f"<extra_id_{number}>") for number in range(100)]
    assert ids == [TOKENIZER.vocab_size - 1 - number for number in range(100)]


class Intact(span_corruption.Objective):
    """Its source keeps what is to be predicted."""

    def made(self, source, target):
        return super().made(np.append(source, target), target)


class Cut(span_corruption.Objective):
    """Its target repeats a token in the place of the first one."""

    def made(self, source, target):
        return super().made(source, np.append(target[:1], target[1:] * 0 + target[-1]))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("spans"), documents=60, text=RECIPE)


@pytest.mark.slow
def test_selftest_proves_examples_and_finds_planted_defects(recipe: Path) -> None:
    _provable.check_defects(recipe, intact=Intact, cut=Cut)


@pytest.mark.slow
def test_selftest_proves_all(recipe: Path) -> None:
    _provable.check_all(recipe)


def test_source_with_ends_of_documents_in_its_spans_comes_back() -> None:
    # In a contiguous stream they stand inside a piece, also where it is noise.
    objective, rng = _objective(rate=0.5, contiguous=True), np.random.default_rng(0)
    for length in range(2, 40):
        ids = np.where(rng.random(length) < 0.3, END, rng.integers(2, 258, length))
        assert np.array_equal(objective.restore(objective.example(ids, rng))[0], ids)


def test_unknown_tokens_are_no_targets_and_come_back() -> None:
    class Unknown:
        def __getattr__(self, name):
            return 7 if name == "unk_id" else getattr(TOKENIZER, name)

    objective = span_corruption.Objective(span_corruption.Config(), Unknown(), SIZES)
    ids = np.full(40, 7)
    example = objective.example(ids, np.random.default_rng(0))
    assert (example["labels"] == IGNORE).sum() == 6
    assert np.array_equal(objective.restore(example)[0], ids)
    assert torch.is_tensor(torch.tensor(example["labels"]))
