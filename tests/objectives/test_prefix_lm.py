"""Prefix language modelling: the authors' lengths of a prefix, the text comes back, proofs."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.t5 import Config as ModelConfig
from nlpkit.models.t5.model import Model
from nlpkit.models.transformer import Config as WithPositions
from nlpkit.objectives import prefix_lm
from nlpkit.tokenizers import bpe
from tests import _provable, _tiny

SIZES = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, head_dim=8, intermediate_size=24)
TOKENIZER = bpe.Tokenizer.train(["a be cat"], bpe.Config(vocab_size=258)).extended(["</s>"])
END = TOKENIZER.special_id("</s>")
RECIPE = """\
name: tiny
model: {family: t5, hidden_size: 32, num_layers: 2, num_heads: 4, head_dim: 8,
  intermediate_size: 48, attention_dropout: 0.0}
tokenizer: {kind: bpe, vocab_size: 400}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: prefix_lm, max_length: 48}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""


def _objective(**settings) -> prefix_lm.Objective:
    config = prefix_lm.Config(**{"max_length": 64, **settings})
    return prefix_lm.Objective(config, TOKENIZER, SIZES)


def test_example_is_a_text_cut_in_two() -> None:
    ids = np.arange(10) + 2
    example = _objective().example(ids, np.random.default_rng(0))
    cut = len(example["source_ids"]) - 1
    # By hand: both parts have an end token, and the decoder begins with padding, as in T5.
    assert example["source_ids"].tolist() == [*ids[:cut], END]
    assert example["labels"].tolist() == [*ids[cut:], END]
    assert example["input_ids"].tolist() == [TOKENIZER.pad_id, *ids[cut:]]


def test_prefix_has_each_length_of_the_authors_equally_often() -> None:
    objective, rng, count = _objective(), np.random.default_rng(0), 20_000
    found = Counter(
        len(objective.example(np.arange(6), rng)["source_ids"]) - 1 for _ in range(count)
    )
    # `random_prefix_noise_mask` in T5's code: uniform over 1 to 5 of 6 tokens.
    assert {*found} == {1, 2, 3, 4, 5}
    assert all(n / count == pytest.approx(1 / 5, abs=0.012) for n in found.values())


@pytest.mark.parametrize("contiguous", [False, True])
def test_text_comes_back_from_every_piece_and_its_length_is_known(contiguous: bool) -> None:
    objective, rng = _objective(contiguous=contiguous), np.random.default_rng(0)
    spans = objective.spans(np.array([64, 1, 70, 193]))
    lengths = (spans.stop - spans.start).tolist()
    # By hand: with four ends, 332 tokens are 5 pieces of 64 and one of 12; alone, the second
    # document is too short, and so is the last token of the fourth.
    assert lengths == ([64, 64, 64, 64, 64, 12] if contiguous else [64, 64, 6, 64, 64, 64])
    for length in (*range(1, 9), 64):
        ids = rng.integers(2, 258, length)
        example = objective.example(ids, rng)
        (back,) = objective.restore(example)
        assert np.array_equal(back, ids)
        sizes = len(example["source_ids"]), len(example["labels"])
        assert objective.length(np.array([length])).tolist() == [sum(sizes)]
        assert max(sizes) <= 64 or length == 1


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"objective.max_length: 64 is more than model"):
        prefix_lm.Objective(
            prefix_lm.Config(max_length=64), TOKENIZER, WithPositions(max_positions=32)
        )


def test_long_text_is_continued_from_its_end() -> None:
    objective = _objective(max_length=8)
    prompt = objective.continue_text(range(2, 22), 4)
    assert prompt.source["source_ids"].tolist() == [*range(15, 22), END]
    assert prompt.cut == 13
    model = Model(SIZES, TOKENIZER.vocab_size).eval()
    writer = Writer(model, TOKENIZER, objective, Settings(max_new_tokens=4, min_new_tokens=4))
    (answer,) = writer.write(["a cat be"])
    assert answer.outputs[0].tokens == 4


class Intact(prefix_lm.Objective):
    """Its source has the whole text."""

    def made(self, source, target):
        return super().made(np.append(source, target), target)


class Cut(prefix_lm.Objective):
    """Its target lacks its first token."""

    def made(self, source, target):
        return super().made(source, target[1:])


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("prefix"), documents=60, text=RECIPE)


@pytest.mark.slow
def test_selftest_proves_examples_and_finds_planted_defects(recipe: Path) -> None:
    _provable.check_defects(recipe, intact=Intact, cut=Cut)


@pytest.mark.slow
def test_selftest_proves_all(recipe: Path) -> None:
    _provable.check_all(recipe)
