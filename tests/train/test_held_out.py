"""The held-out figures of a run, and of `nlpkit eval`, by parts that a user might write."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nlpkit import cli
from nlpkit.checkpoints import files
from nlpkit.errors import UsageError
from nlpkit.train.log import NORMAL
from tests import _dotted, _tiny

BERT = """\
name: tiny
seed: 3
model: {family: bert, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16,
  max_positions: 32}
tokenizer: {kind: wordpiece, vocab_size: 120}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: mlm, max_length: 32}
train: {steps: 1, tokens_per_step: 128, schedule: constant, precision: fp32, eval_every: 1}
"""

LENGTH = "max_length: 64, learn_unknown: true"


def _run(folder: Path, objective: str, *sets: str) -> dict[str, Any]:
    """Return the last held-out figures of a run with an objective."""
    text = _dotted.recipe("gpt").replace("{name: clm, max_length: 64}", objective)
    _tiny.pretrain(_tiny.write(folder, text=text), folder / "run", "train.steps=2", *sets)
    return [r["held_out"] for r in _tiny.metrics(folder / "run") if "held_out" in r][-1]


def _evaluated(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.run(["eval", str(run), "--json", "-q", "--device", "cpu", *options]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("mixed", [False, True])
def test_bits_per_character_are_of_the_labels_that_are_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mixed: bool
) -> None:
    # About half of the labels are text, and a token is about a character: the figure is near that
    # of a token. By the characters of all labels it would be near half of it.
    objective = f"{{name: tests.parts.half_text, {LENGTH}}}"
    if mixed:
        objective = (
            f"{{name: mixture, of: [{{name: clm, {LENGTH}}},"
            f" {{name: tests.parts.where, {LENGTH}}}]}}"
        )
    trained = _run(tmp_path, objective)
    evaluated = _evaluated(tmp_path / "run", capsys)
    for figures in (trained, evaluated):
        bits = math.log2(figures["perplexity"])
        assert figures["bits_per_character"] == pytest.approx(bits, rel=0.15)


def test_bits_per_character_are_undefined_where_the_loss_does_not_say_which_labels_are_text(
    tmp_path: Path,
) -> None:
    figures = _run(tmp_path, f"{{name: tests.parts.half_text, {LENGTH}, says: false}}")
    assert figures["perplexity"] is not None
    assert figures["bits_per_character"] is None


@pytest.mark.slow
def test_precision_is_said_and_that_of_the_training_has_its_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ("train.precision=bf16", "train.lr=0.1", "train.steps=30")
    trained = _run(tmp_path, f"{{name: clm, {LENGTH}}}", *sets)
    default, same = (
        _evaluated(tmp_path / "run/latest", capsys, "--tokens-per-batch", "256", *options)
        for options in ([], ["--precision", "bf16"])
    )
    assert (default["precision"], same["precision"]) == ("fp32", "bf16")
    assert same["loss"] == pytest.approx(trained["loss"], abs=1e-6)
    assert abs(default["loss"] - trained["loss"]) > 5e-5


@pytest.mark.slow
def test_score_of_an_objective_is_a_held_out_figure_that_chooses_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objective = "{name: tests.parts.judged, max_length: 64}"
    sets = ("train.best_by=right", "train.steps=6", "train.eval_every=2", "train.lr=0.02")
    figures = _run(tmp_path, objective, *sets)
    assert 0 < figures["metrics"]["right"] < 1
    assert {*figures["losses"]} == {"clm"}
    records = _tiny.metrics(tmp_path / "run")
    steps = {r["step"]: r["held_out"]["metrics"]["right"] for r in records if "held_out" in r}
    best = files.read_pointer(tmp_path / "run", "best")
    assert best is not None
    assert best.name == f"step-{max(steps, key=lambda step: steps[step]):08d}"
    evaluated = _evaluated(tmp_path / "run", capsys)
    assert evaluated["metrics"]["right"] == pytest.approx(max(steps.values()))
    with pytest.raises(UsageError, match=r"best_by: .* has no rihgt .*; it has loss, right$"):
        _run(tmp_path / "wrong", objective, "train.best_by=rihgt", "train.eval_every=2")


def test_score_of_other_data_is_a_figure_of_each_evaluation_and_changes_no_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clm = f"{{name: clm, {LENGTH}}}"
    pairs = "{name: tests.parts.judged_pairs, pairs: [[山水, 山水花月], [水花, 水花月风]]}"
    sets = ("train.steps=4", "train.eval_every=2")
    alone = _run(tmp_path / "alone", clm, *sets)
    figures = _run(tmp_path, f"[{clm}, {pairs}]", "train.best_by=pairs", *sets)
    # A text is less probable than its beginning.
    assert figures["metrics"] == {"pairs": 1.0}
    assert {name: figures[name] for name in ("loss", "losses")} == {
        name: alone[name] for name in ("loss", "losses")
    }
    best = files.read_pointer(tmp_path / "run", "best")
    assert best is not None
    assert best.name == "step-00000002"  # the first of equal ones
    assert _evaluated(tmp_path / "run", capsys)["metrics"] == {"pairs": 1.0}


def test_held_out_text_of_which_nothing_is_masked_is_said_to_have_no_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _tiny.write(tmp_path, text=BERT)
    (tmp_path / "valid.txt").write_text("天", "utf-8")
    _tiny.pretrain(path, tmp_path / "run", verbosity=NORMAL)
    assert "held-out at step 1: loss 0.0000 (no targets)" in capsys.readouterr().err
    assert cli.run(["eval", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert "the held-out data have no target: a loss of 0 says nothing" in capsys.readouterr().err
