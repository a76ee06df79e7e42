"""Objectives and models of a user's own that follow the progress of the run.

Before step k of n, (k - 1) / n of it is done: for all batches of the step, and in a resumed run.
At an evaluation after step k it is k / n.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.data.store import Callbacks
from nlpkit.errors import NlpkitError, RecipeError
from nlpkit.evaluate import held_out
from nlpkit.evaluate import source as data_of
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.train.log import QUIET, Log
from nlpkit.train.signals import StopFlag
from tests import _tiny
from tests.parts.fading.model import Model

RECIPE = """\
name: tiny
model: {family: FAMILY, hidden_size: 16}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
objective: OBJECTIVE
train: {steps: 6, tokens_per_step: 256, tokens_per_batch: 64, lr: 1.0e-2, warmup_steps: 2,
  eval_every: 2, save_every: 2, keep: 9, precision: fp32}
"""
WEIGHTED = ("tests.parts.recurrent", "{name: tests.parts.scheduled, max_length: 64, fall: 0.75}")
TOLD = ("tests.parts.fading", "{name: tests.parts.progress_input, max_length: 64}")


def _write(folder: Path, parts: tuple[str, str]) -> Path:
    text = RECIPE.replace("FAMILY", parts[0]).replace("OBJECTIVE", parts[1])
    return _tiny.write(folder, text=text)


@pytest.fixture(scope="module", params=[WEIGHTED, TOLD], ids=["loss", "input"])
def run(request, tmp_path_factory) -> Path:
    """A run of each recipe, whole."""
    folder = tmp_path_factory.mktemp("progress")
    _tiny.pretrain(_write(folder, request.param), folder / "whole")
    return folder


@pytest.fixture(scope="module")
def weighted(tmp_path_factory) -> Path:
    """A run whose loss is weighted, whole."""
    folder = tmp_path_factory.mktemp("weighted")
    _tiny.pretrain(_write(folder, WEIGHTED), folder / "whole")
    return folder


def test_weight_falls_with_the_steps_before(weighted: Path) -> None:
    records = [r for r in _tiny.metrics(weighted / "whole") if "loss" in r]
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 6]
    for record in records:
        weight = 1 - 0.75 * (record["step"] - 1) / 6
        assert record["loss"] / record["losses"]["clm"] == pytest.approx(weight, rel=1e-6)


def test_held_out_loss_has_the_weight_of_the_steps_done(weighted: Path) -> None:
    records = [r for r in _tiny.metrics(weighted / "whole") if "held_out" in r]
    assert [r["step"] for r in records] == [2, 4, 6]
    for record in records:
        figures = record["held_out"]
        weight = 1 - 0.75 * record["step"] / 6
        assert figures["loss"] / figures["losses"]["clm"] == pytest.approx(weight, rel=1e-6)


@pytest.mark.fast_cases(1)
def test_eval_of_a_checkpoint_is_that_of_its_run(run: Path) -> None:
    found = {r["step"]: r["held_out"] for r in _tiny.metrics(run / "whole") if "held_out" in r}
    saved = files.list_checkpoints(run / "whole")
    assert sorted(checkpoint.step for checkpoint in saved) == [2, 4, 6]
    for checkpoint in saved:
        opened = open_checkpoint(checkpoint.path, device="cpu")
        source = data_of.find_data(opened, (), None, Log(QUIET), Callbacks())
        judged = held_out.Evaluation(opened, source, 4096, Callbacks())
        figures, _ = judged.evaluate(None, Settings(), Log(QUIET), StopFlag())
        assert figures["loss"] == pytest.approx(found[checkpoint.step]["loss"], abs=1e-5)


@pytest.mark.slow
def test_resumed_run_sees_the_same_progress(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [6, 10])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    ours, whole = (
        load_file(p / "model.safetensors") for p in (last, run / "whole/checkpoints/latest")
    )
    assert all(torch.equal(ours[name], whole[name]) for name in whole)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("reads", [0, 20, 27], ids=["whole", "resumed", "resumed later"])
def test_every_batch_of_a_step_is_told_the_same(tmp_path, monkeypatch, reads: int) -> None:
    batches, held_out = [], []
    real = Model.forward

    def forward(self, lengths, input_ids, progress, cache=None):
        (batches if self.training else held_out).append(progress)
        return real(self, lengths, input_ids, progress, cache)

    monkeypatch.setattr(Model, "forward", forward)
    path = _write(tmp_path, TOLD)
    if reads:
        with pytest.raises(NlpkitError, match="saved at step"):
            _tiny.pretrain(path, tmp_path / "run", stop=_tiny.StopAfter(reads))
        saved = files.list_checkpoints(tmp_path / "run")[0].step
        assert 0 < saved < 6
        del batches[4 * saved :]  # a step that was begun is computed again
    _tiny.pretrain(path, tmp_path / "run")
    assert batches == [step / 6 for step in range(6) for _ in range(4)]
    assert sorted(set(held_out)) == [2 / 6, 4 / 6, 1.0]


def test_model_in_use_is_at_the_end_of_its_run(tmp_path: Path) -> None:
    _tiny.pretrain(_write(tmp_path, TOLD), tmp_path / "run", "train.steps=2")
    opened = open_checkpoint(tmp_path / "run", device="cpu")
    settings = Settings(max_new_tokens=3, min_new_tokens=3)
    list(Writer(opened.model, opened.tokenizer, opened.objective, settings).write(["天"]))
    assert opened.model.told == [(False, 1.0)] * 3
    status = RunDirectory(tmp_path / "run").status()
    assert status["finished"]


def test_objective_that_does_not_give_progress_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, (TOLD[0], "{name: clm, max_length: 64}"))
    with pytest.raises(RecipeError, match="clm does not give progress, and family tests"):
        recipe.load(str(path))
