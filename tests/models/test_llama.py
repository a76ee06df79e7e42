"""LLaMA, Mistral, Qwen2, Qwen3 against transformers: logits, gradients, files, generation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSequenceClassification

from nlpkit.attention.choice import AttentionChoice
from nlpkit.checkpoints import hf_layout, hf_model, hf_writing, peft_layout
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.errors import FileError
from nlpkit.models import families
from nlpkit.models.layers.head import Head
from nlpkit.models.layers.packs import last_states
from nlpkit.models.llama import Config
from nlpkit.models.llama.model import Model
from tests._families import decoder
from tests._families.decoder import CLOSE, LENGTHS, VOCAB
from tests._formats import from_hf

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": VOCAB,
}  # fmt: skip
WINDOWS = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
# As released: Llama 1, 3.2, Mistral 0.1 and 0.3, Qwen2.5 and its long form, Qwen3; and the rest.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama 3.2": ("Llama", {
        "rope_theta": 500000.0, "rope_scaling": LLAMA3, "tie_word_embeddings": True, "head_dim": 12,
    }),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 5, "head_dim": 16}),
    "mistral 0.3": ("Mistral", {"sliding_window": None, "rope_theta": 1000000.0}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True, "rope_theta": 1000000.0}),
    "qwen2 with windows": ("Qwen2", {
        **WINDOWS, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        },
    }),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 with windows": ("Qwen3", {
        **WINDOWS, "head_dim": 16, "attention_bias": True,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }),
}  # fmt: skip


def _theirs(name: str) -> Any:
    family, settings = MODELS[name]
    settings = json.loads(json.dumps(settings))  # transformers changes what it is given
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **settings})
    return decoder.drawn(getattr(transformers, f"{family}ForCausalLM"), config)


@pytest.mark.parametrize("name", MODELS)
def test_model_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    decoder.assert_is_theirs("llama", _theirs(name), tmp_path)


def test_old_files_with_saved_frequencies_and_few_settings_are_read(tmp_path) -> None:
    theirs = _theirs("llama")
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(3):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, tmp_path / "model.safetensors")
    names = (*SIZES, "hidden_act", "rms_norm_eps", "model_type")  # as huggyllama/llama-7b has
    settings = json.loads((tmp_path / "config.json").read_text())
    old = {name: settings[name] for name in names if name != "num_key_value_heads"}
    (tmp_path / "config.json").write_text(json.dumps(old))
    model, ids = decoder.opened("llama", tmp_path), decoder.tokens()
    found = model.logits(model(LENGTHS, ids))
    torch.testing.assert_close(found, decoder.logits(theirs, ids), **CLOSE)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_classifier_is_that_of_the_variant(name, tmp_path) -> None:
    _theirs(name).save_pretrained(tmp_path)
    model = decoder.opened("llama", tmp_path)
    model.head = Head(32, 3, 0.0).eval()
    nn.init.normal_(model.head.weight)
    state, labels = model.state_dict(), ["a", "b", "c"]
    folders = hf_writing.to_hf("llama", model.config, state, TokenIds(0), labels=labels)
    hf_writing.write_folders(tmp_path, folders)
    theirs, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert theirs.config.architectures == [f"{MODELS[name][0]}ForSequenceClassification"]
    ids = decoder.tokens()
    ours = model.head(last_states(model(LENGTHS, ids), LENGTHS))
    expected = theirs.eval()(**decoder.padded(ids)).logits
    torch.testing.assert_close(ours, expected, **CLOSE)
    loaded = hf_model.from_hf("llama", tmp_path, *hf_layout.read(tmp_path))
    assert loaded.head is not None
    assert loaded.head.architecture == "ForSequenceClassification"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; this family has 'silu' only"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "one entry for each type of layer"),
        ("llama", {"model_type": "gemma"}, "model_type is 'gemma'; this family has llama, mistral"),
        ("llama", {"num_attention_heads": 3}, "num_heads: 3 does not divide hidden_size 32"),
        ("llama", {"intermediate_size": 48}, "intermediate_size"),
        ("qwen2", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types is"),
        ("qwen2", {"num_key_value_heads": 3}, "num_key_heads: 3 does not divide num_heads 4"),
    ],
)
def test_directory_with_a_setting_that_does_not_fit_is_named(
    name, settings, message, tmp_path
) -> None:
    _theirs(name).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    right = json.loads(file.read_text())
    if settings.keys() & {"rope_scaling"}:
        del right["rope_parameters"]
    file.write_text(json.dumps(right | settings))
    with pytest.raises(FileError) as raised:
        from_hf("llama", tmp_path)
    assert message in str(raised.value) or "gate_proj" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mlp_bias": True, "variant": "qwen3"}, "mlp_bias: variant qwen3 does not have it"),
        ({"sliding_window": 5}, "sliding_window: variant llama does not have it, but mistral"),
        ({"full_layers": 1, "variant": "mistral"}, "full_layers: variant mistral does not"),
        ({"num_key_heads": 3}, "num_key_heads: 3 does not divide num_heads 4"),
        ({"head_dim": 7}, "heads are 7 wide; rotary positions need pairs"),
        ({"num_heads": 5}, "num_heads: 5 does not divide hidden_size 32; try 4"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, message) -> None:
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4}
    with pytest.raises(ValidationError, match=message):
        Config(**{**sizes, **settings})


def test_default_sizes_give_the_papers_parameters() -> None:
    with torch.device("meta"):
        model = Model(Config(), 32000)
    # Touvron et al. 2023, table 2: 6.7B
    assert sum(p.numel() for p in model.parameters()) == 6_738_415_616


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_reader_of_questions_opens_and_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    """transformers calls the body `transformer.` in this class alone, and not in Mistral's."""
    whole = _theirs(name)
    theirs = getattr(transformers, f"{MODELS[name][0]}ForQuestionAnswering")(whole.config).eval()
    theirs.save_pretrained(tmp_path / "in")
    settings, tensors = hf_layout.read(tmp_path / "in")
    loaded = hf_model.from_hf("llama", tmp_path / "in", settings, tensors)
    assert not loaded.unexpected
    assert loaded.head is not None
    (tmp_path / "out").mkdir()
    folders = hf_writing.to_hf("llama", loaded.config, loaded.state, head=loaded.head)
    hf_writing.write_folders(tmp_path / "out", folders)
    module = families.load_model("llama")
    assert all(hf_model.has_tensor(module, loaded.head, key) for key in theirs.state_dict())
    again, report = type(theirs).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert again.config.architectures == [type(theirs).__name__]
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key
    _, tensors, names = peft_layout.open_base("llama", (settings, tensors))
    assert names["model.norm.weight"] in tensors  # so adapters find what they adapt


def test_windows_are_kinds_of_attention() -> None:
    near = AttentionChoice.of("local_window", window=8)
    causal = AttentionChoice.of("causal")
    sizes = {"num_layers": 3, "sliding_window": 8}
    assert Config(variant="mistral", **sizes).kinds == (near,)
    assert Config(variant="qwen2", full_layers=2, **sizes).kinds == (causal, causal, near)
    assert Config(variant="qwen2", full_layers=3, **sizes).kinds == (causal,)
