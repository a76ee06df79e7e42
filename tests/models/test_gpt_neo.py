"""GPT-Neo against transformers' GPTNeoForCausalLM: logits, losses, gradients, files, generation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from nlpkit.errors import FileError
from nlpkit.models.gpt_neo import Config
from nlpkit.models.gpt_neo.model import Model
from tests._families import decoder
from tests._families.decoder import CLOSE, LENGTHS, VOCAB
from tests._formats import from_hf, to_hf

SIZES = {
    "hidden_size": 32, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 64,
    "vocab_size": VOCAB, "window_size": 5,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "as released": {"attention_types": [[["global", "local"], 2]]},
    "the family's own": {"attention_types": [[["global", "local"], 2]], "window_size": 256},
    "other types, other width": {
        "attention_types": [[["local"], 3], [["global"], 1]], "intermediate_size": 40,
    },
    "global alone": {"attention_types": [[["global"], 4]]},
}  # fmt: skip


def _theirs(name: str = "as released") -> Any:
    return decoder.drawn(GPTNeoForCausalLM, GPTNeoConfig(**SIZES | MODELS[name]))


@pytest.mark.parametrize("name", MODELS)
def test_model_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = _theirs(name)
    model = decoder.assert_is_theirs("gpt_neo", theirs, tmp_path)
    settings, _ = to_hf("gpt_neo", model.config, {})
    assert settings["attention_layers"] == theirs.config.attention_layers
    if name == "the family's own":
        assert model.config.attention == ()
    if name == "as released":
        assert [kind.kind for kind in model.config.attention] == ["causal", "local_window"]
        assert model.config.window == 5


def test_odd_number_of_layers_is_written_as_one_period() -> None:
    settings, _ = to_hf("gpt_neo", Config(num_layers=3, hidden_size=24), {})
    assert settings["attention_types"] == [[["global", "local", "global"], 1]]
    assert settings["window_size"] == 256


def test_old_files_with_saved_masks_are_read(tmp_path: Path) -> None:
    theirs = _theirs()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(4):
        start = f"transformer.h.{layer}.attn.attention"
        tensors[f"{start}.bias"] = torch.ones(1, 1, 64, 64).tril()
        tensors[f"{start}.masked_bias"] = torch.tensor(-1e9)
    save_file(tensors, tmp_path / "model.safetensors")
    model, ids = decoder.opened("gpt_neo", tmp_path), decoder.tokens()
    found = model.logits(model(LENGTHS, ids))
    torch.testing.assert_close(found, decoder.logits(theirs, ids), **CLOSE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "relu"}, "activation_function is 'relu'; GPT-Neo has gelu_new"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; this family has True only"),
        (
            {"attention_types": [[["global", "near"], 2]]},
            "attention_types has 'near'; this family has ['global', 'local']",
        ),
        ({"attention_types": [[["global"], 3]]}, "attention_types has 3 entries for 4 layers"),
        ({"attention_types": ["global"]}, "attention_types is ['global'], not [[[TYPE, …], TIMES]"),
        ({"window_size": 0}, "window"),
        ({"intermediate_size": 40}, "mlp.c_fc"),
    ],
)
def test_directory_with_a_setting_that_we_lack_is_refused(settings, message, tmp_path) -> None:
    _theirs().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(FileError) as raised:
        from_hf("gpt_neo", tmp_path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_default_sizes_give_the_released_models_parameters() -> None:
    with torch.device("meta"):
        model = Model(Config(), 50257)
        largest = Model(Config(hidden_size=2560, num_layers=32, num_heads=20), 50257)
    assert sum(p.numel() for p in model.parameters()) == 125_198_592
    assert sum(p.numel() for p in largest.parameters()) == 2_651_307_520
