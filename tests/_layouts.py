"""Directories of the younger families as they are published, with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from nlpkit.tokenizers import bpe, unigram, wordpiece

TEXTS = ["the cat sat on a mat", "a dog ran to the big red house", "no name on the house"] * 8
LENGTHS = (7, 4, 9)
FIRST = 8  # id of the first token that is certainly no padding
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
USUAL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
KEYS = {**USUAL, "num_key_value_heads": 2}
LLAMA3 = {  # as of Llama 3.2
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
ROLES = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}


def _byte_pairs(folder: Path) -> int:
    made = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=290, min_frequency=1))
    made.save(folder)
    return made.vocab_size


def _modernbert(folder: Path) -> int:
    _byte_pairs(folder)
    made = bpe.Tokenizer.load(folder).extended(ROLES.values())
    made.save(folder)
    settings = {**ROLES, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return made.vocab_size


def _wordpiece(folder: Path) -> int:
    made = wordpiece.Tokenizer.train(TEXTS, wordpiece.Config(vocab_size=80, min_frequency=1))
    lines = "".join(f"{made.token(number)}\n" for number in range(made.vocab_size))
    (folder / "vocab.txt").write_text(lines, "utf-8")
    return made.vocab_size


def _unigram(folder: Path) -> int:
    made = unigram.Tokenizer.train(TEXTS, unigram.Config(vocab_size=320))
    made = made.extended(["[CLS]", "[SEP]", "[MASK]"])
    made.save(folder)
    return made.vocab_size


class Layout(NamedTuple):
    """A family, transformers' class and its settings, the tokenizer, and whether it is tied."""

    family: str
    architecture: str
    settings: dict[str, Any]
    tokens: Callable[[Path], int] = _byte_pairs
    ties: tuple[bool, ...] = (True, False)


LAYOUTS = {
    "distilbert": Layout(
        "distilbert", "DistilBertForMaskedLM",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 66},
        _wordpiece,
    ),
    "gpt_neo": Layout(
        "gpt_neo", "GPTNeoForCausalLM",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
         "window_size": 5, "attention_types": [[["global", "local"], 1]]}, ties=(True,),
    ),
    "llama": Layout(
        "llama", "LlamaForCausalLM", {**KEYS, "rope_parameters": LLAMA3},
    ),
    "mistral": Layout("llama", "MistralForCausalLM", {**KEYS, "sliding_window": 5}),
    "qwen2": Layout("llama", "Qwen2ForCausalLM", KEYS),
    "qwen3": Layout("llama", "Qwen3ForCausalLM", {**KEYS, "head_dim": 16}),
    "gpt_neox": Layout(
        "gpt_neox", "GPTNeoXForCausalLM", {**USUAL, "rotary_pct": 0.25},
    ),
    "deberta-v2": Layout(
        "deberta_v2", "DebertaV2ForMaskedLM",
        {**USUAL, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
         "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False,
         "type_vocab_size": 0}, _unigram,
    ),
    "modernbert": Layout(
        "modernbert", "ModernBertForMaskedLM", {**USUAL, "local_attention": 6}, _modernbert
    ),
    "modernbert-decoder": Layout(
        "modernbert_decoder", "ModernBertDecoderForCausalLM", {**USUAL, "local_attention": 6},
        _modernbert,
    ),
}  # fmt: skip
DECODERS = [name for name, each in LAYOUTS.items() if each.architecture.endswith("CausalLM")]


def publish(folder: Path, name: str, tie: bool = True) -> Path:
    """Save a model whose weights are so large that every part matters, and its tokenizer."""
    layout = LAYOUTS[name]
    folder.mkdir()
    made = getattr(transformers, layout.architecture)
    ids = {f"{role}_token_id": 0 for role in ("pad", "bos", "eos", "cls", "sep")}
    settings = {**layout.settings, **ids, "tie_word_embeddings": tie}
    torch.manual_seed(0)
    config = made.config_class(vocab_size=layout.tokens(folder), **settings)
    model = made(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder


def theirs(path: Path, name: str) -> Any:
    auto = transformers.AutoModelForCausalLM if name in DECODERS else None
    model = (auto or transformers.AutoModelForMaskedLM).from_pretrained(path)
    assert type(model).__name__ == LAYOUTS[name].architecture
    model.set_attn_implementation("eager")
    return model.eval()


def assert_same_logits(model: Any, other: Any) -> None:
    """Assert that a pack of ours has the logits of a padded batch of transformers."""
    rows = other.config.vocab_size
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(FIRST, rows, (sum(LENGTHS),), generator=draw)
    padded, seen = (
        torch.nn.utils.rnn.pad_sequence(each.split(LENGTHS), True)
        for each in (ids, torch.ones_like(ids))
    )
    with torch.no_grad():
        expected = other(input_ids=padded, attention_mask=seen).logits[seen.bool()]
        torch.testing.assert_close(model.logits(model(LENGTHS, ids)), expected, **CLOSE)
