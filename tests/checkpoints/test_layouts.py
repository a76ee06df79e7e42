"""The same list for each of the younger families: what is published opens, mistakes have a line.

Losses and gradients are compared in the tests of the family, adapters in `test_lora`.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Library
from tokenizers import processors
from transformers import AutoTokenizer

from nlpkit import api, cli
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.objectives import clm
from nlpkit.runs.likelihood import Likelihood
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests._layouts import DECODERS, FIRST, LAYOUTS, assert_same_logits, publish, theirs


@pytest.mark.parametrize(
    ("name", "tie"), [(name, tie) for name, each in LAYOUTS.items() for tie in each.ties]
)
def test_logits_of_a_pack_are_those_of_a_padded_batch(name: str, tie: bool, tmp_path: Path) -> None:
    path = publish(tmp_path / name, name, tie)
    opened = open_checkpoint(path, device="cpu", warn=pytest.fail)
    assert_same_logits(opened.model, theirs(path, name))


Change = Callable[[dict[str, torch.Tensor], dict[str, Any], str], object]
# What is done to tensors and settings, and what the line says.
FAULTS: dict[str, tuple[Change, str]] = {
    "shape": (
        lambda tensors, settings, name: tensors.update({name: torch.zeros(3, 5)}),
        "NAME) has the shape (3, 5); config.json requires (",
    ),
    "missing": (lambda tensors, settings, name: tensors.pop(name), "1 tensor is missing: NAME"),
    "extra": (
        lambda tensors, settings, name: tensors.update({f"{name}_too": torch.zeros(2)}),
        "unexpected in this model, ignored: NAME_too",
    ),
    "model_type": (
        lambda tensors, settings, name: settings.update(model_type="llama9"),
        "model_type 'llama9' is none of albert, ",
    ),
}


def _changed(path: Path, source: Path, change: Change) -> str:
    """Copy a directory with a change; return the name of the changed tensor."""
    shutil.copytree(source, path)
    tensors, file = load_file(path / "model.safetensors"), path / "config.json"
    settings = json.loads(file.read_text("utf-8"))
    of_layers = [name for name, each in tensors.items() if each.ndim == 2 and ".1." in name]
    change(tensors, settings, of_layers[-1])
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    file.write_text(json.dumps(settings), "utf-8")
    return of_layers[-1]


def _assert_said(path: Path, said: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that what opens a directory says it in a line, which is the only one if it fails."""
    capsys.readouterr()
    assert cli.run(["convert", str(path), str(path.parent / "out")]) == code
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if said in line]
    assert code == 0 or (len(lines) == 1 and str(path) in lines[0])


@pytest.mark.fast_cases(16)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_fault_of_a_directory_has_a_line_that_names_it(
    name: str, fault: str, published, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, said = FAULTS[fault]
    key = _changed(tmp_path / "in", published(name), change)
    _assert_said(tmp_path / "in", said.replace("NAME", key), 0 if fault == "extra" else 4, capsys)


def _beginning(path: Path, source: Path) -> Path:
    """Copy a directory, with a tokenizer that puts `<s>` in front of texts, as LLaMA's does."""
    shutil.copytree(source, path)
    file, names = path / "tokenizer.json", {"bos_token": "<s>", "eos_token": "</s>"}
    text = file.read_text("utf-8").replace("<|endoftext|>", "</s>").replace("<pad>", "<s>")
    library = Library.from_str(text)
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", library.token_to_id("<s>"))]
    )
    library.save(str(file))
    settings = {**names, "tokenizer_class": "PreTrainedTokenizerFast"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_texts_of_a_published_llama_begin_as_in_transformers(published, tmp_path: Path) -> None:
    path = _beginning(tmp_path / "in", published("llama"))
    tokenizer, other = AutoTokenizer.from_pretrained(path), theirs(path, "llama")
    text = "the cat sat on"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids[0, 0] == tokenizer.bos_token_id
    opened = api.open_checkpoint(path, device="cpu")
    (written,) = api.generate(opened, [text], Settings(max_new_tokens=8))
    new = other.generate(ids, max_new_tokens=8, do_sample=False, suppress_tokens=[1])
    assert written.outputs[0].text == tokenizer.decode(new[0, ids.shape[1] :])
    likelihood = Likelihood(opened)
    (ours,) = likelihood.compute_log_probs(likelihood.encode([text]))
    with torch.no_grad():
        expected = other(ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])
    torch.testing.assert_close(torch.tensor(ours).float(), expected[:, 0], atol=1e-4, rtol=1e-4)
    assert cli.run(["convert", str(path), str(tmp_path / "out")]) == 0
    converted = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert converted(text)["input_ids"] == ids[0].tolist()


SPIRAL = {"rope_type": "spiral", "rope_theta": 1e4}
QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
ROTARY = [
    *[(name, {"rope_parameters": SPIRAL}, "rope_type is 'spiral'") for name in DECODERS[1:6]],
    ("modernbert", {"rope_parameters": {"full_attention": SPIRAL}}, "'spiral'"),
    ("modernbert-decoder", {"rope_parameters": {"full_attention": SPIRAL}}, "'spiral'"),
    ("llama", {"head_dim": 7}, "heads are 7 wide; rotary positions need pairs"),
    (
        "gpt_neox", {"rope_parameters": QUARTER, "num_attention_heads": 2, "hidden_size": 24},
        "rotary_share: 0.25 of 12 channels are 3; rotary positions need pairs",
    ),
    ("modernbert", {"num_attention_heads": 32}, "are 1 wide, and rotary positions turn pairs"),
    ("modernbert-decoder", {"num_attention_heads": 32}, "are 1 wide, and rotary positions turn"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "said"), ROTARY)
def test_rotary_positions_that_do_not_fit_have_a_line(
    name: str, settings: dict, said: str, published, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _changed(tmp_path / "in", published(name), lambda tensors, content, _: content.update(settings))
    _assert_said(tmp_path / "in", said, 4, capsys)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("family: llama, num_heads: 4, hidden_size: 60", "heads are 15 wide; rotary positions"),
        ("family: llama, num_heads: 4, hidden_size: 32, head_dim: 7", "heads are 7 wide; rotary"),
        ("family: gpt_neox, num_heads: 4, hidden_size: 48", "0.25 of 12 channels are 3; rotary"),
        ("family: modernbert, num_heads: 4, hidden_size: 60", "are 15 wide, and rotary positions"),
        ("family: modernbert_decoder, num_heads: 4, hidden_size: 60", "are 15 wide, and rotary"),
    ],
)
def test_odd_heads_are_a_mistake_of_a_line_of_the_recipe(
    settings: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        f"name: odd\nmodel: {{{settings}}}\ntokenizer: {{kind: bpe}}\ndata: {{train: [x.txt]}}\n"
        "train: {steps: 1, tokens_per_step: 99, lr: 1.0e-3}\n"
    )
    assert cli.run(["pretrain", str(path)]) == 2
    assert [each for each in capsys.readouterr().err.splitlines() if line in each]


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", DECODERS)
def test_texts_of_generation_are_transformers(name: str, beam: int, published) -> None:
    opened, other = open_checkpoint(published(name), device="cpu"), theirs(published(name), name)
    objective = clm.Objective(clm.Config(max_length=40), opened.tokenizer, opened.model.config)
    draw = torch.Generator().manual_seed(2)
    texts = [torch.randint(FIRST, 200, (n,), generator=draw).tolist() for n in (5, 9, 2)]
    prompts = [objective.continue_text(ids, 12) for ids in texts]
    settings = Settings(beam=beam, max_new_tokens=12, length_penalty=1.0)
    found = list(generate(opened.model, prompts, settings, Rules((0,), ())))
    for ids, answers in zip(texts, found, strict=True):
        whole = other.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=12, num_beams=beam, do_sample=False, eos_token_id=0, pad_token_id=0,
        )  # fmt: skip
        new = whole[0, len(ids) :].tolist()
        assert [*answers[0].ids] == (new[: new.index(0)] if 0 in new else new)
