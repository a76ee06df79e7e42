"""Weights in several files: split as transformers splits them; RUN/best and RUN/latest."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2Model

from nlpkit import cli
from nlpkit.checkpoints import files, hf_layout, hf_writing
from nlpkit.errors import FileError
from nlpkit.runs.convert import Options, convert
from nlpkit.runs.open_checkpoint import find_checkpoint, open_checkpoint
from nlpkit.units import parse_bytes
from tests import _adapters, _tiny, _tiny_tasks


@pytest.mark.parametrize("limit", ["1KB", "6KB", "20KB", "1MB"])
def test_shards_are_those_of_save_pretrained(tmp_path: Path, limit: str) -> None:
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 50}
    model = GPT2Model(GPT2Config(**sizes))
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "theirs", max_shard_size=limit)
    tensors = load_file(tmp_path / "whole" / hf_layout.WEIGHTS)
    # The file sorts its tensors; transformers splits them in the order of the model.
    ordered = {name: tensors[name] for name in model.state_dict()}
    hf_writing.write(tmp_path, {}, ordered, parse_bytes(limit))
    expected = sorted(path.name for path in (tmp_path / "theirs").glob("model*"))
    assert sorted(path.name for path in tmp_path.glob("model*")) == expected
    if limit != "1MB":
        ours, theirs = (
            json.loads((folder / hf_layout.INDEX).read_text("utf-8"))
            for folder in (tmp_path, tmp_path / "theirs")
        )
        assert ours == theirs


def test_index_that_a_model_in_one_file_no_longer_needs_is_not_read(tmp_path: Path) -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 50}
    model = GPT2Model(GPT2Config(**sizes))
    model.save_pretrained(tmp_path, max_shard_size="6KB")
    model.save_pretrained(tmp_path)  # removes the shards alone
    assert (tmp_path / hf_layout.INDEX).exists()
    assert torch.equal(hf_layout.read(tmp_path)[1]["wte.weight"], model.wte.weight)


def test_size_of_a_shard_that_is_none_is_refused(tmp_path: Path, capsys) -> None:
    assert cli.run(["convert", "model", str(tmp_path / "out"), "--max-shard-size", "2"]) == 2
    assert "--max-shard-size': '2' is not an amount of memory" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["gpt2", "cpm_ant"])
def test_sharded_checkpoint_opens_everywhere(tmp_path: Path, family: str) -> None:
    model = _adapters.base(family, tmp_path / "base")
    made = convert(tmp_path / "base", tmp_path / "out", Options(max_shard=8000))
    assert made["files"] > 2
    assert not (tmp_path / "out" / hf_layout.WEIGHTS).exists()
    whole = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    assert made["bytes"] == whole
    opened = open_checkpoint(tmp_path / "out", device="cpu").model
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        expected = _adapters.logits(model)
        torch.testing.assert_close(_adapters.logits(opened), expected, atol=0, rtol=0)
        torch.testing.assert_close(_adapters.logits(theirs), expected, atol=2e-5, rtol=2e-5)
    convert(tmp_path / "out", tmp_path / "one")
    both = (load_file(tmp_path / name / hf_layout.WEIGHTS) for name in ("base", "one"))
    first, second = both
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose best checkpoint is not its latest."""
    path = _tiny.write(tmp_path_factory.mktemp("names"), documents=40, text=_tiny_tasks.GPT)
    sets = ("train.steps=4", "train.save_every=2", "train.eval_every=2", "train.lr=3.0")
    _tiny.pretrain(path, path.parent / "run", *sets)
    files.set_pointer(path.parent / "run", "best", files.checkpoint_path(path.parent / "run", 2))
    return path.parent / "run"


@pytest.mark.parametrize(("name", "step"), [("best", 2), ("latest", 4)])
def test_best_and_latest_are_taken_by_name(run: Path, tmp_path: Path, name, step) -> None:
    assert find_checkpoint(run / name).name == f"step-{step:08d}"
    made = convert(run / name, tmp_path / "out")
    assert Path(made["source"]).name == f"step-{step:08d}"
    assert find_checkpoint(run / "checkpoints" / name).name == f"step-{step:08d}"


def test_name_that_a_run_does_not_have_is_told(run: Path) -> None:
    with pytest.raises(FileError) as caught:
        find_checkpoint(run / "stable")
    expected = f"{run}/stable: the run has no stable checkpoint; there is {run}/best, {run}/latest"
    assert str(caught.value) == expected


def test_tuning_starts_from_the_named_one(run: Path, tmp_path: Path, capsys) -> None:
    recipe = tmp_path / "more.yaml"
    recipe.write_text(
        f"name: more\ninit_from: {run}/best\nobjective: {{name: clm, max_length: 64}}\n"
        f"data: {{train: [{run.parent}/train.txt]}}\n"
        "train: {steps: 1, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-3, "
        "schedule: constant, precision: fp32, save_every: 9}\n"
    )
    arguments = ["pretrain", str(recipe), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert cli.run([*arguments, "--dry-run"]) == 0
    assert "nlpkit:" not in capsys.readouterr().err


def test_converted_checkpoint_generates_in_transformers_with_the_same_settings(
    run: Path, tmp_path: Path
) -> None:
    convert(run, tmp_path / "out")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        ours = (run / "checkpoints/best" / name).read_text("utf-8")
        assert (tmp_path / "out" / name).read_text("utf-8") == ours
    # A user's own settings stay.
    (tmp_path / "out/generation_config.json").write_text('{"max_new_tokens": 7}')
    convert(tmp_path / "out", tmp_path / "again")
    kept = json.loads((tmp_path / "again/generation_config.json").read_text())
    assert kept == {"max_new_tokens": 7}
    # A checkpoint of before has none.
    (tmp_path / "out/generation_config.json").unlink()
    convert(tmp_path / "out", tmp_path / "old")
    first = run / "checkpoints/best/generation_config.json"
    second = tmp_path / "old/generation_config.json"
    assert first.read_text("utf-8") == second.read_text("utf-8")
