"""A setting of config.json that transformers honours is honoured here, too, or is named.

Each was once read by transformers alone, so that a checkpoint opened with other logits.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nlpkit.checkpoints import hf_layout, hf_model
from nlpkit.commands._options import Common
from nlpkit.commands.finetune import Start, build_section, load_task
from nlpkit.errors import FileError
from nlpkit.runs.convert import convert
from tests import _layouts
from tests._families import oracle

SIZES = {**_layouts.USUAL, "vocab_size": oracle.VOCAB}
ENCODER = {**SIZES, "type_vocab_size": 1, "pad_token_id": 1}
KEYS = {**SIZES, "num_key_value_heads": 2}
LOCAL = {
    **SIZES, "local_attention": 6,
    **{f"{name}_token_id": 0 for name in ("pad", "cls", "sep", "bos", "eos")},
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": oracle.VOCAB}
NEO = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
    "vocab_size": oracle.VOCAB, "window_size": 4, "attention_types": [[["global", "local"], 1]],
}  # fmt: skip
BART = {"d_model": 32, "max_position_embeddings": 64, "vocab_size": oracle.VOCAB} | {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 48))
}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 1,
    "num_heads": 4,
    "vocab_size": oracle.VOCAB,
}
XLM = {
    "emb_dim": 32, "n_layers": 1, "n_heads": 4, "max_position_embeddings": 64,
    "vocab_size": oracle.VOCAB,
}  # fmt: skip
XLNET = {"d_model": 32, "d_inner": 48, "n_layer": 1, "n_head": 4, "vocab_size": oracle.VOCAB}
VIT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}

# A rotary setting as model cards advise it, beside the one that transformers 5 saves.
LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10}
HONOURED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("LlamaForCausalLM", KEYS, {"rope_scaling": LINEAR}),
    ("Qwen3ForCausalLM", {**KEYS, "head_dim": 16}, {"rope_scaling": YARN}),
    ("GPTNeoXForCausalLM", SIZES, {"rope_scaling": LINEAR}),
    ("ModernBertForMaskedLM", LOCAL, {"sliding_window": 2}),
    ("ModernBertDecoderForCausalLM", LOCAL, {"sliding_window": 2}),
    ("ModernBertDecoderForCausalLM", LOCAL, {"local_attention": 4}),
    ("GPTNeoForCausalLM", NEO, {"attention_types": None}),
]


def _save(folder: Path, architecture: str, settings: dict[str, Any], change: dict[str, Any]) -> Any:
    """Save a model with large weights, then change its config.json; return its class."""
    made = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = made(made.config_class(**settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    file = folder / "config.json"
    content = {**json.loads(file.read_text("utf-8")), **change}
    kept = {name: value for name, value in content.items() if value is not None}
    file.write_text(json.dumps(kept), "utf-8")
    return made


@pytest.mark.parametrize(("architecture", "settings", "change"), HONOURED)
def test_setting_that_transformers_honours_changes_the_logits_alike(
    architecture: str, settings: dict, change: dict, tmp_path: Path
) -> None:
    made = _save(tmp_path, architecture, settings, change)
    theirs = made.from_pretrained(tmp_path, attn_implementation="eager").eval()
    family = hf_model.find_family(hf_layout.read_settings(tmp_path), tmp_path)
    model, _ = oracle.ours(family, tmp_path)
    _layouts.assert_same_logits(model.eval(), theirs)


@pytest.mark.parametrize("names", [5, True, "GPT2LMHeadModel", [None], [["GPT2LMHeadModel"]]])
def test_architectures_that_are_no_names_are_refused(names: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": names}), "utf-8")
    with pytest.raises(FileError, match="architectures is not a list of names"):
        hf_layout.read_settings(tmp_path)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *[
        (name, settings, {"is_causal": not causal}, f"is_causal is {not causal}; this family has")
        for name, settings, causal in (
            ("BertForMaskedLM", SIZES, False),
            ("RobertaForMaskedLM", ENCODER, False),
            ("DistilBertForMaskedLM", {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 48},
             False),
            ("ModernBertForMaskedLM", LOCAL, False),
            ("ViTModel", VIT, False),
            ("ModernBertDecoderForCausalLM", LOCAL, True),
            ("GPT2LMHeadModel", GPT2, True),
            ("GPTNeoXForCausalLM", SIZES, True),
            ("LlamaForCausalLM", KEYS, True),
            ("BartForConditionalGeneration", BART, False),
            ("BartForConditionalGeneration", BART, True),
            ("T5ForConditionalGeneration", T5, True),
        )
    ],
    *[
        ("ElectraForMultipleChoice", {**SIZES, "embedding_size": 16}, {name: value}, f"{name} is")
        for name, value in (("summary_type", "last"), ("summary_activation", "relu"))
    ],
    ("GPTNeoForCausalLM", NEO, {"attention_layers": ["local", "local"]}, "attention_layers is"),
    (
        "DebertaV2ForMaskedLM",
        {**SIZES, "relative_attention": True, "position_buckets": 8, "pos_att_type": "c2p"},
        {"max_relative_positions": 5},
        "max_distance: 5 must be larger than 5, half of position_buckets and 1",
    ),
    ("GPTNeoXForCausalLM", SIZES, {"num_attention_heads": 0}, "does not fit the weights: integer"),
    ("GPTNeoXForCausalLM", SIZES, {"head_dim": 16}, "head_dim is 16; this family has 8 only"),
    ("T5ForConditionalGeneration", T5, {"dense_act_fn": "gelu"}, "dense_act_fn is 'gelu'"),
    ("T5ForConditionalGeneration", T5, {"is_gated_act": True}, "is_gated_act is True"),
    ("T5ForConditionalGeneration", T5, {"is_encoder_decoder": False}, "is_encoder_decoder is"),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "settings", "change", "said"), REFUSED)
def test_setting_that_makes_another_model_is_named(
    architecture: str, settings: dict, change: dict, said: str, tmp_path: Path
) -> None:
    _save(tmp_path, architecture, settings, change)
    content, tensors = hf_layout.read(tmp_path)
    with pytest.raises(FileError) as raised:
        hf_model.from_hf(hf_model.find_family(content, tmp_path), tmp_path, content, tensors)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_size_of_zero_is_no_section_of_a_recipe(tmp_path: Path) -> None:
    _save(tmp_path, "GPTNeoXForCausalLM", SIZES, {"num_attention_heads": 0})
    with pytest.raises(
        FileError, match=r"config\.json: cannot be read as family gpt_neox: integer"
    ):
        build_section(tmp_path, "gpt_neox")


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta"])
def test_layer_of_a_class_that_the_family_lacks_is_not_that_of_another(
    family: str, tmp_path: Path
) -> None:
    _save(tmp_path, f"{family}ForMultipleChoice", ENCODER, {})
    settings, tensors = hf_layout.read(tmp_path)
    loaded = hf_model.from_hf("roberta", tmp_path, settings, tensors, predicts=False)
    assert loaded.head is None
    assert loaded.unexpected == ("classifier.bias", "classifier.weight")


# Classes that are not read, and those with a task's layer that their families have.
UNREAD = [
    ("T5ForSequenceClassification", T5, "none"),
    ("BartForQuestionAnswering", BART, "none"),
    ("OpenAIGPTDoubleHeadsModel", GPT2, "OpenAIGPTForSequenceClassification"),
    ("GPT2DoubleHeadsModel", GPT2, "GPT2ForSequenceClassification, GPT2ForTokenClassification, "
     "GPT2ForQuestionAnswering"),
    ("RobertaForMultipleChoice", ENCODER, "RobertaForSequenceClassification, "
     "RobertaForTokenClassification, RobertaForQuestionAnswering"),
    ("XLMForQuestionAnswering", XLM, "XLMForSequenceClassification, XLMForTokenClassification, "
     "XLMForQuestionAnsweringSimple, XLMForMultipleChoice"),
    ("XLNetForQuestionAnswering", XLNET, "XLNetForSequenceClassification, "
     "XLNetForTokenClassification, XLNetForQuestionAnsweringSimple, XLNetForMultipleChoice"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "others"), UNREAD)
def test_class_that_is_not_read_is_named_with_what_is_possible(
    name: str, settings: dict, others: str, tmp_path: Path
) -> None:
    _save(tmp_path / "whole", name, settings, {})
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "whole")
    theirs.base_model.save_pretrained(tmp_path / "body")
    with pytest.raises(FileError) as raised:
        convert(tmp_path / "whole", tmp_path / "out")
    assert str(raised.value) == (
        f"{tmp_path}/whole/config.json: {name} is not read; with a task's layer nlpkit "
        f"reads of this family: {others}; to begin a run with its body, save that alone, "
        "model.base_model.save_pretrained(DIR) in transformers, and set init_from: DIR"
    )
    content, tensors = hf_layout.read(tmp_path / "body")
    family = hf_model.find_family(content, tmp_path)
    hf_model.from_hf(family, tmp_path / "body", content, tensors, predicts=False)


def test_start_on_a_class_whose_body_is_not_found_names_the_class(tmp_path: Path) -> None:
    _save(tmp_path, "T5ForSequenceClassification", T5, {})
    content, tensors = hf_layout.read(tmp_path)
    with pytest.raises(FileError, match="T5ForSequenceClassification is not read; with a task"):
        hf_model.from_hf("t5", tmp_path, content, tensors, predicts=False)


def test_weights_of_eight_bits_are_refused(tmp_path: Path) -> None:
    _save(tmp_path, "LlamaForCausalLM", KEYS, {"quantization_config": {"quant_method": "fp8"}})
    settings, tensors = hf_layout.read(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    eight = {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1)}
    with pytest.raises(FileError, match=r"up_proj.weight is float8_e4m3fn; weights are floating"):
        hf_model.from_hf("llama", tmp_path, settings, tensors | eight)


def test_dropout_rates_stand_beside_the_family_of_the_command_line(tmp_path):
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}
    transformers.GPT2Config(**sizes).save_pretrained(tmp_path)
    sets = [f"init_from={tmp_path}", "model.embedding_dropout=0.3"]
    common = Common(overrides=sets, family="gpt2")
    model = load_task(common, "gpt1_classify", Start()).recipe.model.config
    assert (model.embedding_dropout, model.residual_dropout, model.hidden_size) == (0.3, 0.1, 32)
