"""word2vec: the loss by hand, the update of word2vec.c, what is drawn, what is learned, proofs."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlpkit import cli
from nlpkit.data.pack import pack_examples
from nlpkit.models.word2vec import Config as ModelConfig
from nlpkit.models.word2vec.model import Model
from nlpkit.objectives import word2vec
from nlpkit.objectives.several import members
from tests import _losses, _tiny
from tests._fakes import CharacterTokenizer

TOKENIZER: Any = CharacterTokenizer("abcdefghij")
SIZES = ModelConfig(hidden_size=4)
RECIPE = """\
name: tiny
model: {family: word2vec, hidden_size: 16}
tokenizer: {kind: bpe, vocab_size: 400}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: word2vec, max_length: 48, sample: 0.01, window: 3}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""


def _objective(counts: list[int] | None = None, **settings: Any) -> word2vec.Objective:
    config = word2vec.Config(**{"sample": 0.0, "max_length": 500, **settings})
    made = word2vec.Objective(config, TOKENIZER, SIZES)
    if counts is not None:
        made.read_counts(lambda: np.array(counts))
    return made


def _model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    model = Model(SIZES, TOKENIZER.vocab_size).double()
    torch.nn.init.normal_(model.token_embedding)
    torch.nn.init.normal_(model.output_table())
    return model


def _tensors(example: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in example.items()}


def _pairs(contexts: np.ndarray) -> list[tuple[int, int, int]]:
    """Return center, column and context of each pair."""
    return [(i, k, i + int(contexts[i, k])) for i, k in np.argwhere(contexts)]


def _by_hand(objective: word2vec.Objective, model: Model, example: dict[str, np.ndarray]) -> float:
    """Mikolov et al. 2013, eq. 4, in numpy, one prediction after the other."""
    v, u = (table.detach().numpy() for table in (model.token_embedding, model.output_table()))
    ids, contexts, negatives = (example[name] for name in ("input_ids", "contexts", "negatives"))
    if objective.config.method == "skip_gram":
        found = [(v[ids[i]], ids[j], negatives[i, k]) for i, k, j in _pairs(contexts)]
    else:
        around = {i: [j for at, _, j in _pairs(contexts) if at == i] for i in range(len(ids))}
        found = [(v[ids[a]].mean(0), ids[i], negatives[i]) for i, a in around.items() if a]
    loss = 0.0
    for state, token, drawn in found:
        loss -= math.log(1 / (1 + math.exp(-state @ u[token])))
        loss -= sum(math.log(1 / (1 + math.exp(state @ u[n]))) for n in drawn if n != token)
    return loss


@pytest.mark.parametrize("method", ["skip_gram", "cbow"])
def test_loss_of_two_texts_is_that_by_hand(method: str) -> None:
    objective, model = _objective([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], method=method), _model()
    rng = np.random.default_rng(1)
    examples = [objective.example(rng.integers(0, 11, size), rng) for size in (7, 12)]
    batch = pack_examples(objective, examples)
    fields = _tensors(batch.fields)
    term = _losses.only_term(_losses.loss_of(objective, model, fields, batch.lengths))
    expected = sum(_by_hand(objective, model, example) for example in examples)
    assert math.isclose(float(term.loss_sum.detach()), expected, rel_tol=1e-6)
    pairs = sum(len(_pairs(each["contexts"])) for each in examples)
    assert term.num_targets == batch.num_targets["word2vec"]
    assert term.num_targets == (pairs if method == "skip_gram" else 19)


def test_step_of_one_pair_is_the_update_of_word2vec_c() -> None:
    """word2vec.c, TrainModelThread, skip-gram with negative sampling; alpha is the rate."""
    center, word, drawn, alpha = 1, 2, [5, 2, 7], 0.025  # the negative 2 is the word: it is skipped
    model = _model()
    syn0, syn1neg = (t.detach().clone() for t in (model.token_embedding, model.output_table()))
    neu1e = torch.zeros(4, dtype=torch.float64)
    for target, label in [(word, 1), *((each, 0) for each in drawn if each != word)]:
        f = float(syn0[center] @ syn1neg[target])
        g = (label - 1 / (1 + math.exp(-f))) * alpha
        neu1e += g * syn1neg[target]
        syn1neg[target] += g * syn0[center]
    syn0[center] += neu1e
    negatives = np.zeros((2, 2, 3), np.int64)
    negatives[0, 1] = drawn
    contexts = np.array([[0, 1], [0, 0]])
    fields = {"input_ids": np.array([center, word]), "contexts": contexts, "negatives": negatives}
    objective = _objective(negatives=3, window=1)
    loss = _losses.only_term(_losses.loss_of(objective, model, _tensors(fields), [2]))
    assert loss.num_targets == 1
    loss.loss_sum.backward()
    for table, expected in ((model.token_embedding, syn0), (model.output_table(), syn1neg)):
        assert table.grad is not None
        torch.testing.assert_close(table.detach() - alpha * table.grad, expected)


def test_windows_are_drawn_from_one_to_the_largest_and_end_with_the_text() -> None:
    objective = _objective(window=4)
    contexts = objective.example(np.ones(30000, np.int64), np.random.default_rng(2))["contexts"]
    assert contexts.shape == (30000, 8)
    middle = contexts[4:-4]
    assert np.array_equal(np.unique(middle), np.arange(-4, 5))
    # Both sides are as wide as drawn, and a token d away is inside with probability (5 - d) / 4.
    assert np.array_equal((middle < 0).sum(1), (middle > 0).sum(1))
    for distance in range(1, 5):
        share = (middle == distance).any(1).mean()
        assert abs(share - (5 - distance) / 4) < 4 * math.sqrt(0.25 / 30000)
    assert not (contexts[0] < 0).any()
    assert not (contexts[-1] > 0).any()


def test_frequent_tokens_are_left_out_before_windows_are_made() -> None:
    # Token 1 has the frequency 0.9: it stays with probability sqrt(0.1 / 0.9) = 1 / 3.
    objective = _objective([0, 90, 10], sample=0.1, window=1)
    ids = np.where(np.arange(30000) % 10 == 0, 2, 1)
    contexts = objective.example(ids, np.random.default_rng(3))["contexts"]
    used = (contexts != 0).any(1)
    assert used[ids == 2].all()
    assert abs(used[ids == 1].mean() - 1 / 3) < 4 * math.sqrt(2 / 9 / 27000)
    # The neighbour of a token is the next one that is left.
    assert all(used[j] and not used[i + 1 : j].any() for i, _, j in _pairs(contexts[:500]) if j > i)


def test_negatives_have_the_frequencies_to_the_power_of_three_quarters() -> None:
    objective = _objective([0, 16, 81, 0, 1], negatives=10, window=1)
    example = objective.example(np.ones(5000, np.int64), np.random.default_rng(4))
    drawn = np.bincount(example["negatives"][example["contexts"] != 0].ravel(), minlength=11)
    expected = drawn.sum() * np.array([0, 8, 27, 0, 1]) / 36  # 16 ** 0.75 = 8, 81 ** 0.75 = 27
    assert not drawn[[0, 3, *range(5, 11)]].any()
    assert (np.abs(drawn[:5] - expected) <= 4 * np.sqrt(expected)).all()


def test_counts_are_in_the_settings_of_a_checkpoint() -> None:
    made = _objective([2, 7, 1])
    again = word2vec.Objective(made.config, TOKENIZER, SIZES)
    ids, rngs = np.ones(9, np.int64), [np.random.default_rng(5) for _ in range(2)]
    one, two = (each.example(ids, rng) for each, rng in zip((made, again), rngs, strict=True))
    assert made.config.counts == "2 7 1 0 0 0 0 0 0 0 0"
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("method", ["skip_gram", "cbow"])
def test_tokens_of_the_same_contexts_are_near_after_training(method: str) -> None:
    """A text of sentences x y z: 1 and 2 stand for x, 3 and 4 for y, 5 and 6 for z."""
    rng = np.random.default_rng(6)
    places = rng.integers(1, 3, (100, 3)) + np.array([0, 2, 4])
    objective = _objective(np.bincount(places.ravel()).tolist(), method=method, window=2)
    torch.manual_seed(0)
    model = Model(SIZES, TOKENIZER.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        batch = pack_examples(objective, [objective.example(each, rng) for each in places])
        loss = _losses.loss_of(objective, model, _tensors(batch.fields), batch.lengths)
        optimizer.zero_grad()
        loss.mean(batch.num_targets).backward()
        optimizer.step()
    vectors = torch.nn.functional.normalize(model.token_embedding.detach()[1:7])
    nearest = (vectors @ vectors.T - 2 * torch.eye(6)).argmax(1) + 1
    assert nearest.tolist() == [2, 1, 4, 3, 6, 5]


def test_plan_shows_a_batch_with_several_values_for_each_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = _tiny.write(tmp_path, text=RECIPE)
    assert cli.run(["plan", str(recipe), "--batch", "-q"]) == 0
    head, first, *_ = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert head == ["sequence", "token", "input_ids", "contexts", "negatives"]
    assert len(json.loads(first[3])) == 2 * 3  # the window, to both sides


@pytest.mark.slow
def test_run_evaluates_from_its_checkpoint_to_the_same_loss_and_passes_its_proofs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = _tiny.write(tmp_path, text=RECIPE)
    out = tmp_path / "run"
    assert cli.run(["pretrain", str(recipe), "--out", str(out), "--device", "cpu"]) == 0
    held_out = [r["held_out"]["loss"] for r in _tiny.metrics(out) if "held_out" in r]
    capsys.readouterr()
    assert cli.run(["eval", str(out / "latest"), "--device", "cpu", "--json"]) == 0
    assert math.isclose(json.loads(capsys.readouterr().out)["loss"], held_out[-1], rel_tol=1e-6)
    assert cli.run(["selftest", str(recipe), "--device", "cpu"]) == 0, capsys.readouterr().out


def test_plan_shows_the_window_and_the_negatives_of_each_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = _tiny.write(tmp_path, text=RECIPE, documents=20)
    assert cli.run(["plan", str(recipe), "--batch", "--no-probe", "--device", "cpu", "-q"]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    columns = dict(zip(head.split("\t"), first.split("\t"), strict=True))
    assert len(json.loads(columns["contexts"])) == 2 * 3
    assert np.array(json.loads(columns["negatives"])).shape == (2 * 3, 5)


def test_methods_whose_windows_have_other_shapes_are_not_mixed() -> None:
    one, other = _objective(), _objective(method="cbow")
    assert members.difference(one, _objective(sample=0.1)) == ""
    assert members.difference(one, other) == "have other fields negatives"
    assert members.difference(other, _objective(method="cbow", window=2)) == (
        "have other fields contexts"
    )
    example = one.example(np.array([1, 2, 3]), np.random.default_rng(0))
    for name, field in one.fields.items():
        assert example[name].shape == (3, *field.shape)
