"""`nlpkit selftest` of recurrent families: it finds states that see too much."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nlpkit.models.layers import recurrent
from nlpkit.models.layers.recurrence import TimeFirst
from nlpkit.models.seq2seq.decoder import Source
from nlpkit.selftest import batching, leaks
from tests import _provable, _tiny

LANGUAGE_MODEL = """\
name: tiny
model: {family: lstm, hidden_size: 16, num_layers: 2}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 32, contiguous: false}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, warmup_steps: 2,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""
TRANSLATOR = """\
name: tiny
model: {family: seq2seq, cell: gru, hidden_size: 16, num_layers: 1, score: general}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [{files: [TRAIN, OTHER]}], valid: [{files: [VALID, HELD]}], format: parallel}
objective: {name: seq2seq, max_length: 32}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, warmup_steps: 2,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("lstm"), text=LANGUAGE_MODEL, documents=40)


def _of_pack(layers, x, time, before=None):
    """Run the pack as one sequence, as if states were not reset where another begins."""
    return run(layers, x, TimeFirst.of([len(x)]), None)


def _from_the_right(layers, x, time, before=None):
    """Run each sequence backwards, so that a state knows the next token."""
    turned = torch.empty_like(time.order)
    turned[time.order] = time.order[time.mirror]
    hidden, states = run(layers, x[turned], time, before)
    return hidden[turned], states


run = recurrent.run


@pytest.mark.slow
def test_states_that_are_not_reset_are_seen(recipe, monkeypatch) -> None:
    with _provable.of_recipe(recipe) as bench:
        for proof in (leaks.find_neighbour_leaks, batching.compare_packed):
            passed, figure = proof(bench.subject)
            assert passed, figure
        monkeypatch.setattr(recurrent, "run", _of_pack)
        passed, figure = leaks.find_neighbour_leaks(bench.subject)
        assert not passed, figure
        assert "times another one moved" in figure
        passed, figure = batching.compare_packed(bench.subject)
        assert not passed, figure


@pytest.mark.slow
def test_direction_from_the_right_is_seen_as_a_leak(recipe, monkeypatch) -> None:
    with _provable.of_recipe(recipe) as bench:
        passed, figure = leaks.find_leaks(bench.subject)
        assert passed, figure
        monkeypatch.setattr(recurrent, "run", _from_the_right)
        passed, figure = leaks.find_leaks(bench.subject)
        assert not passed, figure


@pytest.mark.slow
def test_attention_to_the_neighbours_source_is_seen(tmp_path, monkeypatch) -> None:
    path = _tiny.write(tmp_path, text=TRANSLATOR, documents=40)
    for name, other, mark in (("train", "other", "OTHER"), ("valid", "held", "HELD")):
        text = (tmp_path / f"{name}.txt").read_text("utf-8")
        (tmp_path / f"{other}.txt").write_text(text, "utf-8")
        path.write_text(path.read_text("utf-8").replace(mark, str(tmp_path / f"{other}.txt")))
    with _provable.of_recipe(path) as bench:
        passed, figure = batching.compare_packed_sums(bench.subject)
        assert passed, figure
        plain = Source.of.__func__

        def rolled(cls, context, values, keys):
            shift = np.roll(np.arange(len(values)), 1)
            return plain(cls, context, [values[i] for i in shift], [keys[i] for i in shift])

        monkeypatch.setattr(Source, "of", classmethod(rolled))
        passed, figure = batching.compare_packed_sums(bench.subject)
        assert not passed, figure
