"""`pytorch_model.bin`, old and new: every verb reads its tensors, and runs nothing in it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from nlpkit import cli
from nlpkit.checkpoints import any_layout
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe

TEXTS = ["the cat sat on a mat", "a dog ran to the big red house", "no name on the house"]
WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
RECIPE = """name: x
init_from: START
data: {train: [t.txt]}
objective: {name: clm, max_length: 16}
train: {steps: 1, tokens_per_step: 32, lr: 1.0e-3, schedule: constant}
"""


class _Payload:
    """Writes a file when unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a GPT-2 of transformers as `torch.save` did, with its tokenizer, rows and a recipe."""
    folder = tmp_path_factory.mktemp("base")
    made = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=270, min_frequency=1))
    made.save(folder / "model")
    torch.manual_seed(1)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    config = transformers.GPT2Config(vocab_size=made.vocab_size, **sizes)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder / "model")
    (folder / "model" / WEIGHTS).unlink()
    # As transformers saved it until 2023: tied tensors share their storage, and masks are buffers.
    state = {**model.state_dict(), "transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32).bool()}
    torch.save(state, folder / "model" / PICKLE)
    (folder / "t.txt").write_text("\n".join(TEXTS * 4), "utf-8")
    text = RECIPE.replace("START", str(folder / "model"))
    (folder / "r.yaml").write_text(text.replace("t.txt", str(folder / "t.txt")), "utf-8")
    return folder


def _copy(base: Path, tmp_path: Path) -> Path:
    shutil.copytree(base / "model", tmp_path / "model")
    return tmp_path / "model"


def _commands(base: Path, start: Path, out: Path) -> dict[str, list[str]]:
    recipe, text = str(base / "r.yaml"), str(base / "t.txt")
    return {
        "init_from": ["pretrain", recipe, "--set", f"init_from={start}", "--out", str(out / "p")],
        "finetune": ["finetune", recipe, "--from", str(start), "--out", str(out / "f")],
        "eval": ["eval", str(start), "--data", text, "--device", "cpu"],
        "generate": ["generate", str(start), text, "--max-new-tokens", "3", "--device", "cpu"],
        "convert": ["convert", str(start), str(out / "c")],
    }


def test_every_verb_takes_it(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, words in _commands(base, base / "model", tmp_path).items():
        assert cli.run(words) == 0, (name, capsys.readouterr().err)
        assert "unexpected" not in capsys.readouterr().err
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "c")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(base / "model")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize("zipped", [True, False], ids=["archive", "legacy"])
@pytest.mark.parametrize("verb", ["init_from", "finetune", "eval", "generate", "convert"])
def test_program_in_it_is_never_run(
    verb: str, zipped: bool, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, ran = _copy(base, tmp_path), tmp_path / "RAN"
    state = torch.load(start / PICKLE, weights_only=True)
    state["hidden"] = _Payload(ran)
    torch.save(state, start / PICKLE, _use_new_zipfile_serialization=zipped)
    assert cli.run(_commands(base, start, tmp_path)[verb]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("nlpkit: "), "Traceback" in err) == ("", 1, False), err
    assert f"{start / PICKLE}: not a file of tensors alone, and nothing else is opened" in err
    assert "it calls " in err
    assert not ran.exists()
    torch.load(start / PICKLE, weights_only=False)  # so it would run
    assert ran.exists()


def test_names_and_formats_of_old_files_open(base: Path, tmp_path: Path) -> None:
    expected = open_checkpoint(base / "model", device="cpu").model.state_dict()
    state = torch.load(base / "model" / PICKLE, weights_only=True)
    named = {
        "legacy": state,
        "wrapped": {f"module.{name}": tensor for name, tensor in state.items()},
        "body": {name.removeprefix("transformer."): tensor for name, tensor in state.items()},
        "parameters": {
            name: torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
            for name, tensor in state.items()
        },
    }
    for case, tensors in named.items():
        start = _copy(base, tmp_path / case)
        torch.save(tensors, start / PICKLE, _use_new_zipfile_serialization=case != "legacy")
        opened = open_checkpoint(start, device="cpu").model.state_dict()
        assert all(torch.equal(opened[name], tensor) for name, tensor in expected.items()), case


def test_gamma_and_beta_of_the_first_berts_open(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30, intermediate_size=24, **sizes)
    model = transformers.BertForPreTraining(config)
    model.save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxy"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    expected = open_checkpoint(tmp_path, device="cpu").model.state_dict()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, tensor in load_file(tmp_path / WEIGHTS).items():
        for new, gone in old.items():
            name = name.replace(new, gone)
        tensors[f"module.{name}"] = tensor
    (tmp_path / WEIGHTS).unlink()
    torch.save(tensors, tmp_path / PICKLE)
    opened = open_checkpoint(tmp_path, device="cpu", warn=pytest.fail).model.state_dict()
    assert all(torch.equal(opened[name], tensor) for name, tensor in expected.items())


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 497933648\n"


@pytest.mark.parametrize("zipped", [True, False], ids=["archive", "legacy"])
def test_damaged_file_is_one_line(
    zipped: bool, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = _copy(base, tmp_path)
    state = torch.load(start / PICKLE, weights_only=True)
    torch.save(state, start / PICKLE, _use_new_zipfile_serialization=zipped)
    whole = (start / PICKLE).read_bytes()
    cut = [whole[:size] for size in (60, len(whole) // 2, -1)]
    cases = [(content, "it is damaged or cut short") for content in cut]
    said = "torch did not save it; was it downloaded as a whole?"
    for content, said in [*cases, *((content, said) for content in (b"", POINTER, b"<html>"))]:
        (start / PICKLE).write_bytes(content)
        assert cli.run(["convert", str(start), str(tmp_path / "c")]) == 4
        err = capsys.readouterr().err
        assert (len(err.splitlines()), said in err) == (1, True), err
    torch.save({"model": state}, start / PICKLE)  # what trainers of their own save
    assert cli.run(["convert", str(start), str(tmp_path / "c")]) == 4
    assert f"{start / PICKLE}: 'model' is no plain tensor" in capsys.readouterr().err


def test_safetensors_are_preferred_and_other_frameworks_named(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = _copy(base, tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(start)
    theirs.save_pretrained(start)
    (start / PICKLE).write_bytes(b"broken")
    open_checkpoint(start, device="cpu")
    (start / PICKLE).unlink()
    (start / WEIGHTS).rename(start / "tf_model.h5")
    assert cli.run(["convert", str(start), str(tmp_path / "c")]) == 4
    said = f"{start}: has tf_model.h5 alone; weights are read from {WEIGHTS} or {PICKLE}"
    assert said in capsys.readouterr().err


def test_base_of_adapters_is_known_by_its_weights(base: Path, tmp_path: Path) -> None:
    start = _copy(base, tmp_path)
    before = any_layout.hash_base(start)
    assert before == any_layout.hash_base(base / "model")
    state = torch.load(start / PICKLE, weights_only=True)
    state["transformer.ln_f.bias"] += 1
    torch.save(state, start / PICKLE)
    assert any_layout.hash_base(start) != before
