"""GPT-NeoX against transformers' GPTNeoXForCausalLM: logits, gradients, files, generation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForTokenClassification, GPTNeoXConfig, GPTNeoXForCausalLM

from nlpkit.checkpoints import hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.errors import FileError
from nlpkit.models.gpt_neox import Config
from nlpkit.models.gpt_neox.model import TASK_HEADS, Model
from nlpkit.models.layers.head import Head
from tests._families import decoder
from tests._families.decoder import CLOSE, LENGTHS, VOCAB
from tests._formats import from_hf

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64, "vocab_size": VOCAB,
}  # fmt: skip
# As released: Pythia, GPT-NeoX-20B; and the other settings.
MODELS: dict[str, dict[str, Any]] = {
    "pythia": {},
    "20B": {"hidden_act": "gelu_fast"},
    "one after the other, tied": {"use_parallel_residual": False, "tie_word_embeddings": True},
    "all channels, stretched": {
        "rotary_pct": 1.0, "rotary_emb_base": 500.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
}  # fmt: skip


def _theirs(name: str) -> Any:
    settings = json.loads(json.dumps(MODELS[name]))  # transformers changes what it is given
    return decoder.drawn(GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES, **settings))


@pytest.mark.parametrize("name", MODELS)
def test_model_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    decoder.assert_is_theirs("gpt_neox", _theirs(name), tmp_path)


def test_files_of_pythia_with_saved_masks_and_its_settings_are_read(tmp_path) -> None:
    theirs = _theirs("pythia")
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(3):
        start = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{start}.bias"] = torch.ones(1, 1, 64, 64).tril()
        tensors[f"{start}.masked_bias"] = torch.tensor(-1e9)
        tensors[f"{start}.rotary_emb.inv_freq"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors")
    names = (*SIZES, "hidden_act", "layer_norm_eps", "initializer_range", "model_type")
    settings = json.loads((tmp_path / "config.json").read_text())
    old = {"rotary_pct": 0.25, "rotary_emb_base": 10000, "use_parallel_residual": True}
    old |= {name: settings[name] for name in names}
    (tmp_path / "config.json").write_text(json.dumps(old))
    model, ids = decoder.opened("gpt_neox", tmp_path), decoder.tokens()
    found = model.logits(model(LENGTHS, ids))
    torch.testing.assert_close(found, decoder.logits(theirs, ids), **CLOSE)


def test_tagger_is_transformers_tagger(tmp_path) -> None:
    _theirs("pythia").save_pretrained(tmp_path)
    model = decoder.opened("gpt_neox", tmp_path)
    model.head = Head(32, 3, 0.0, bias=True).eval()
    nn.init.normal_(model.head.weight)
    head = TASK_HEADS["token_classification"]
    state = model.state_dict()
    folders = hf_writing.to_hf("gpt_neox", model.config, state, TokenIds(0), head, list("abc"))
    hf_writing.write_folders(tmp_path, folders)
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    ids = decoder.tokens()
    found = model.head(model(LENGTHS, ids))
    torch.testing.assert_close(found, decoder.logits(theirs, ids), **CLOSE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "silu"}, "hidden_act is 'silu'; this family has gelu, relu, gelu_new"),
        ({"attention_bias": False}, "attention_bias is False; this family has True only"),
        ({"hidden_dropout": 0.1}, "hidden_dropout is 0.1; this family has 0.0 only"),
        ({"rope_parameters": {"partial_rotary_factor": 0.0}}, "rotary_share"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type is 'dynamic'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.2}}, "rotary_share: 0.2 of 8 channels"),
    ],
)
def test_directory_with_a_setting_that_we_lack_is_refused(settings, message, tmp_path) -> None:
    _theirs("pythia").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(FileError) as raised:
        from_hf("gpt_neox", tmp_path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_settings_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValidationError, match=r"rotary_share: 0\.1 of 8 channels are 0"):
        Config(hidden_size=32, num_heads=4, rotary_share=0.1)
    with pytest.raises(ValidationError, match="num_heads: 5 does not divide hidden_size 32"):
        Config(hidden_size=32, num_heads=5)


def test_default_sizes_give_the_papers_parameters() -> None:
    with torch.device("meta"):
        pythia = Model(Config(), 50432)
        sizes = {"hidden_size": 6144, "num_layers": 44, "num_heads": 64}
        largest = Model(Config(**sizes, intermediate_size=24576), 50432)
    # Pythia's 6.9B; GPT-NeoX-20B has 20,554,567,680 (Black et al. 2022)
    assert sum(p.numel() for p in pythia.parameters()) == 6_857_302_016
    assert sum(p.numel() for p in largest.parameters()) == 20_554_567_680
