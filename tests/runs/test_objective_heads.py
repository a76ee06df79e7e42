"""Layers that an objective owns: trained, saved beside the model, resumed, unseen by others."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from nlpkit import cli, recipe
from nlpkit.checkpoints import files, objective_heads
from nlpkit.errors import FileError
from nlpkit.runs import build
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _tiny
from tests._masked import SENTENCES

RECIPE = """\
name: tiny
model: {family: tests.parts.encoder, hidden_size: 16, num_layers: 1, num_heads: 2,
  intermediate_size: 16, max_positions: 64}
tokenizer: {kind: wordpiece, vocab_size: 120, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective:
  - {name: sop, max_length: 64, segments: 3}
  - {name: span, max_length: 64, weight: 0.5, boundary_weight: 0.25}
train: {steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 3, save_every: 2, keep: 9}
"""
LAYERS = {"sentence_order", "span_boundary"}


def write(folder: Path, text: str = RECIPE) -> Path:
    """Write the recipe and documents of sentences; return the recipe's path."""
    path = _tiny.write(folder, text=text)
    for name, count in (("train.txt", 60), ("valid.txt", 8)):
        documents = [
            " ".join(SENTENCES[(i + j) % len(SENTENCES)] for j in range(4 + i % 5))
            for i in range(count)
        ]
        (folder / name).write_text("\n".join(documents) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    made = tmp_path_factory.mktemp("heads")
    _tiny.pretrain(write(made), made / "whole")
    return made


def _step(run: Path, step: int) -> Path:
    return files.checkpoint_path(run, step)


def _layers(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / objective_heads.FILE)


def test_layers_are_trained_and_saved_beside_the_model(folder: Path) -> None:
    first, last = (_layers(_step(folder / "whole", n)) for n in (2, 6))
    assert {name.split(".")[1] for name in last} == LAYERS
    assert last["objective_heads.sentence_order.weight"].shape == (6, 16)
    assert all(not torch.equal(first[name], last[name]) for name in last)
    names = load_file(_step(folder / "whole", 6) / "model.safetensors")
    assert not [name for name in names if "objective" in name]
    record = _tiny.metrics(folder / "whole")[-1]
    losses = record["held_out"]["losses"]
    assert {*losses} == {"sop", "sop_accuracy", "mlm", "sbo"}
    # The weight of the objective, and that of the term in it.
    expected = losses["sop"] + 0.5 * (losses["mlm"] + 0.25 * losses["sbo"])
    assert record["held_out"]["loss"] == pytest.approx(expected, rel=1e-6)


def test_run_with_stops_has_the_same_layers(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path)
    _tiny.pretrain_with_stops(path, tmp_path / "stopped", [7, 9])
    assert _tiny.metrics(tmp_path / "stopped") == _tiny.metrics(folder / "whole")
    for name in (objective_heads.FILE, "model.safetensors", "optimizer.safetensors"):
        runs = tmp_path / "stopped", folder / "whole"
        one, two = ((_step(run, 6) / name).read_bytes() for run in runs)
        assert one == two


def test_eval_of_the_checkpoint_has_the_losses_of_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = str(_step(folder / "whole", 6))
    assert cli.run(["eval", step, "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)["losses"]
    assert {*open_checkpoint(step, device="cpu").model.objective_heads} == LAYERS
    wanted = [r["held_out"] for r in _tiny.metrics(folder / "whole") if "held_out" in r][-1]
    assert found == pytest.approx(wanted["losses"], rel=1e-6)


def test_transformers_opens_the_model_without_them(folder: Path) -> None:
    theirs, report = AutoModelForPreTraining.from_pretrained(
        _step(folder / "whole", 6), output_loading_info=True
    )
    assert type(theirs).__name__ == "BertForPreTraining"
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]


def test_next_run_begins_with_the_layers_that_it_has_too(folder: Path, tmp_path: Path) -> None:
    text = RECIPE.partition("model:")[0] + "init_from: BASE\n" + RECIPE.partition("64}\n")[2]
    text = text.replace("BASE", str(_step(folder / "whole", 6)))
    text = text.replace("tokenizer: {kind: wordpiece, vocab_size: 120, min_frequency: 1}\n", "")
    text = text.replace("segments: 3", "segments: 2").replace("lr: 1.0e-2", "lr: 1.0e-12")
    last = _tiny.pretrain(write(tmp_path, text), tmp_path / "next")
    before, after = _layers(_step(folder / "whole", 6)), _layers(last)
    assert {name.split(".")[1] for name in after} == {"span_boundary"}
    for name, tensor in after.items():
        assert torch.allclose(tensor, before[name], atol=1e-6), name


def test_checkpoint_without_its_layers_is_an_error_that_names_the_file(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    convert(_step(folder / "whole", 6), out)
    assert {*_layers(out)} == {*_layers(_step(folder / "whole", 6))}
    (out / objective_heads.FILE).unlink()
    with pytest.raises(FileError, match=r"objective\.safetensors: does not have the layers of the"):
        open_checkpoint(out, device="cpu")


def test_layers_of_init_from_are_kept_where_the_recipe_changes_dropout(folder: Path) -> None:
    sets = [f"init_from={folder / 'whole'}", "model={dropout: 0.5}"]
    resolved = recipe.load(str(folder / "tiny.yaml"), sets)
    start = build.model_part(resolved, folder / "none").start
    assert start is not None
    saved = _layers(_step(folder / "whole", 6))
    assert {name for name in start if name.startswith("objective_heads.")} == {*saved}
