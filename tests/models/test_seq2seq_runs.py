"""Runs of the family seq2seq: trained, evaluated, generated from with beams, alignments drawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nlpkit import cli
from nlpkit.data.items import TaskDataset
from nlpkit.data.store import Callbacks
from nlpkit.errors import UsageError
from nlpkit.evaluate import attention_maps, held_out
from nlpkit.evaluate import source as data_of
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.train.log import QUIET, Log
from nlpkit.train.signals import StopFlag
from tests import _tiny

RECIPE = """\
name: tiny
model: {family: seq2seq, cell: gru, hidden_size: 24, num_layers: 1, dropout: 0.0, SIZES}
tokenizer: {kind: wordpiece, vocab_size: 80, min_frequency: 1}
data: {train: [{files: [A, B]}], valid: [{files: [A, B]}], format: parallel}
objective: {name: seq2seq, max_length: 16}
train: {steps: 30, tokens_per_step: 512, tokens_per_batch: 512, lr: 2.0e-2, warmup_steps: 5,
  eval_every: 30, save_every: 30, precision: fp32}
eval: {metrics: [chrf]}
"""


def _run(folder: Path, sizes: str) -> Path:
    """Train on sources whose targets are the same characters backwards."""
    path = _tiny.write(folder, text=RECIPE.replace("SIZES", sizes), documents=1)
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice(list("天地人山水花鸟鱼"), draw.integers(1, 7))) for _ in range(60)]
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    (folder / "b.txt").write_text("".join(f"{text[::-1]}\n" for text in texts), "utf-8")
    text = path.read_text("utf-8").replace("A,", f"{folder}/a.txt,")
    path.write_text(text.replace("B]", f"{folder}/b.txt]"), "utf-8")
    _tiny.pretrain(path, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with attention."""
    return _run(tmp_path_factory.mktemp("attention"), "score: general, num_directions: 2")


@pytest.fixture(scope="module")
def opened(run: Path) -> Opened:
    return open_checkpoint(run, device="cpu")


TEXTS = ["天地人", "水", "鸟鱼花山", "人人地"]


def _rules(opened: Opened) -> Rules:
    objective = opened.objective
    return Rules(tuple(objective.eos_token_ids), tuple(objective.suppress_tokens), None)


def _prompts(opened: Opened, room: int) -> list:
    objective = opened.objective
    return [objective.continue_text(objective.encode_input(text), room) for text in TEXTS]


def test_run_learns(run: Path) -> None:
    records = _tiny.metrics(run)
    assert records[-1]["held_out"]["loss"] < 0.8 * records[0]["loss"]


def test_greedy_output_is_the_same_alone_in_a_batch_and_without_a_cache(opened: Opened) -> None:
    greedy = Settings(max_new_tokens=6, min_new_tokens=6)
    together = [w.outputs[0].text for w in _writer(opened, greedy).write(TEXTS, batch=4)]
    alone = [w.outputs[0].text for w in _writer(opened, greedy).write(TEXTS, batch=1)]
    assert together == alone
    rules = _rules(opened)
    for prompt, text in zip(_prompts(opened, 6), together, strict=True):
        source = torch.from_numpy(prompt.source["source_ids"])
        ids = prompt.given["input_ids"].tolist()
        for _ in range(6):
            hidden = opened.model(
                (len(ids),), torch.tensor(ids), source_ids=source, source_lengths=(len(source),)
            )
            logits = opened.model.logits(hidden[-1:])[0]
            logits[[*rules.suppress_tokens, *rules.eos_token_ids]] = -torch.inf
            ids.append(int(logits.argmax()))
        assert opened.tokenizer.decode(ids[1:]) == text


def _writer(opened: Opened, settings: Settings) -> Writer:
    return Writer(opened.model, opened.tokenizer, opened.objective, settings)


def test_beams_have_the_log_probabilities_of_their_tokens_and_beat_greedy(opened: Opened) -> None:
    beams = Settings(max_new_tokens=5, beam=3, nbest=3, length_penalty=0.0)
    rules, prompts = _rules(opened), _prompts(opened, 5)
    greedy = list(generate(opened.model, prompts, Settings(max_new_tokens=5), rules))
    found = list(generate(opened.model, prompts, beams, rules, batch=4))
    for prompt, answers, one in zip(prompts, found, greedy, strict=True):
        assert len({(answer.ids, answer.ended) for answer in answers}) == 3
        assert answers[0].score >= one[0].score - 1e-4
        source = torch.from_numpy(prompt.source["source_ids"])
        for answer in answers:
            written = [*answer.ids, *([opened.objective.end] if answer.ended else [])]
            read = torch.tensor([opened.objective.begin, *written[:-1]])
            hidden = opened.model(
                (len(read),), read, source_ids=source, source_lengths=(len(source),)
            )
            each = opened.model.logits(hidden).log_softmax(-1)
            total = each.gather(1, torch.tensor(written)[:, None]).sum()
            assert answer.score == pytest.approx(total.item(), abs=1e-4)


def _evaluation(opened: Opened) -> held_out.Evaluation:
    callbacks = Callbacks(note=lambda _: None, warn=lambda _: None, should_stop=lambda: None)
    source = data_of.find_data(opened, (), None, Log(QUIET), callbacks)
    return held_out.Evaluation(opened, source, 4096, callbacks)


def test_rows_without_an_answer_are_told(opened: Opened, monkeypatch) -> None:
    evaluation, log, said, noted = _evaluation(opened), Log(QUIET), [], []
    assert isinstance(evaluation.corpus, TaskDataset)
    evaluation.corpus.items[0] = replace(evaluation.corpus.items[0], text="")
    monkeypatch.setattr(log, "warn", said.append)
    monkeypatch.setattr(log, "info", noted.append)
    _, rows = evaluation.evaluate(("chrf",), Settings(), log, StopFlag())
    assert rows[0]["prediction"] == ""
    assert said == [
        "1 of 60 rows have no answer (the source is empty), which counts as an empty one"
    ]
    approximate = "bits/character are approximate: tokens have other spaces than the text"
    assert approximate in noted  # WordPiece's


@pytest.mark.slow
def test_alignments_of_written_texts_are_drawn(opened: Opened, tmp_path, monkeypatch) -> None:
    drawn: list = []
    plain = attention_maps.alignment_figure
    monkeypatch.setattr(
        attention_maps,
        "alignment_figure",
        lambda each, *more: (drawn.extend(each), plain(each, *more)),
    )
    file = tmp_path / "alignment.png"
    attention_maps.draw(_evaluation(opened), Settings(), file)
    assert file.read_bytes()[:4] == b"\x89PNG"
    assert len(drawn) == 4
    texts = (opened.path.parents[2] / "a.txt").read_text("utf-8")
    for panel, text in zip(drawn, texts.split("\n"), strict=False):
        assert panel.source == [*text, "</s>"]
        assert panel.target[-1] == "</s>"
        assert panel.weights.shape == (len(panel.target), len(panel.source))
        np.testing.assert_allclose(panel.weights.sum(1), 1, atol=1e-5)


def test_alignments_are_of_what_is_written_and_of_rows_with_a_source(
    opened: Opened, tmp_path, monkeypatch
) -> None:
    drawn: list = []
    monkeypatch.setattr(attention_maps, "alignment_figure", lambda each, *rest: drawn.extend(each))
    evaluation = _evaluation(opened)
    assert isinstance(evaluation.corpus, TaskDataset)
    evaluation.corpus.items[0] = replace(evaluation.corpus.items[0], text="")
    attention_maps.draw(evaluation, Settings(max_new_tokens=1), tmp_path / "a.png")
    assert len(drawn) == 4
    for panel in drawn:
        # Cut at one token: the model has not written an end token.
        assert len(panel.target) == 1
        assert panel.target != ["</s>"]
    with pytest.raises(UsageError, match="--beam: 9999 is too many for"):
        attention_maps.draw(evaluation, Settings(beam=9999), tmp_path / "a.png")


@pytest.mark.slow
def test_eval_draws_alignments_and_refuses_what_has_none(run: Path, tmp_path, capsys) -> None:
    file = tmp_path / "alignment.png"
    assert cli.run(["eval", str(run), "--attention", str(file), "--beam", "2"]) == 0
    assert file.stat().st_size > 5000
    assert "chrf" in capsys.readouterr().out
    assert cli.run(["eval", str(run), "--attention", str(file), "--attention-layer", "1"]) == 2
    assert "--attention: there is one attention for all layers" in capsys.readouterr().err
    assert cli.run(["eval", str(run), "--attention-layer", "1"]) == 2
    assert "--attention-layer: needs --attention FILE.png" in capsys.readouterr().err


RUNNING_TEXT = """\
name: tiny
model: {family: t5, hidden_size: 16, num_layers: 1, num_heads: 2, head_dim: 8,
  intermediate_size: 16}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: span_corruption, max_length: 32}
train: {steps: 2, tokens_per_step: 256, lr: 1.0e-2, warmup_steps: 1, eval_every: 2,
  precision: fp32}
"""


def test_running_text_has_no_alignments(tmp_path) -> None:
    path = _tiny.write(tmp_path, text=RUNNING_TEXT, documents=20)
    opened = open_checkpoint(_tiny.pretrain(path, tmp_path / "run"), device="cpu")
    with pytest.raises(UsageError, match="--attention: this checkpoint was trained on running"):
        attention_maps.draw(_evaluation(opened), Settings(), tmp_path / "a.png")


CHO = "score: null, context: both, reset: before, joined: maxout"


def test_model_without_attention_has_no_alignments(tmp_path) -> None:
    opened = open_checkpoint(_run(tmp_path, CHO), device="cpu")
    with pytest.raises(UsageError, match=r"--attention: .*no attention \(model.score is null\)"):
        attention_maps.draw(_evaluation(opened), Settings(), tmp_path / "a.png")
