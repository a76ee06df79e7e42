"""Recorded weights are the probabilities that transformers' models give out."""

from pathlib import Path

import pytest
import torch
import transformers

from nlpkit.attention.choice import AttentionChoice, load_kind
from nlpkit.attention.recorded import record
from nlpkit.errors import Unsupported
from nlpkit.models.gpt2 import Config
from nlpkit.models.gpt2.model import Model
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

BERT = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
XLNET = {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
MODELS = {
    "bert": ("BertForPreTraining", transformers.BertConfig(**BERT)),
    "albert": ("AlbertForPreTraining", transformers.AlbertConfig(**BERT, embedding_size=16)),
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config(**GPT2)),
    "modernbert": (  # rotary positions, a window in the second layer
        "ModernBertForMaskedLM",
        transformers.ModernBertConfig(**BERT, local_attention=6, pad_token_id=0),
    ),
    "xlnet": ("XLNetLMHeadModel", transformers.XLNetConfig(**XLNET)),
}


@pytest.mark.parametrize("family", MODELS)
def test_recorded_weights_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    architecture, config = MODELS[family]
    theirs = oracle.drawn(architecture, config)
    theirs.save_pretrained(tmp_path)
    model, _ = oracle.ours(family, tmp_path)
    ids = oracle.tokens()
    with record(model) as found, torch.no_grad():
        model(LENGTHS, ids, **_types(family, ids))
    with torch.no_grad():
        given = [row[None] for row in ids.split(LENGTHS)]
        expected = [theirs(row, output_attentions=True).attentions for row in given]
    assert [each.title for each in found] == ["layer 1", "layer 2"]
    start = 0
    for number, length in enumerate(LENGTHS):
        stop = start + length
        for layer, each in enumerate(found):
            own = each.values[:, start:stop, start:stop]
            torch.testing.assert_close(own, expected[number][layer][0], **CLOSE)
            assert each.values[:, start:stop].sum() == pytest.approx(own.sum().item())
        start = stop


def test_model_computes_the_same_while_it_is_recorded(tmp_path: Path) -> None:
    theirs = oracle.drawn(*MODELS["bert"])
    theirs.save_pretrained(tmp_path)
    model, _ = oracle.ours("bert", tmp_path)
    given = {"input_ids": oracle.tokens(), "token_type_ids": oracle.types()}
    plain = model(LENGTHS, **given)
    with record(model):
        assert torch.equal(model(LENGTHS, **given), plain)
    assert torch.equal(model(LENGTHS, **given), plain)
    assert not any(each._forward_hooks for each in model.modules())


def _types(family: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {} if family in ("gpt2", "modernbert") else {"token_type_ids": torch.zeros_like(ids)}


def _gpt2(kind: str) -> torch.nn.Module:
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_positions": 32}
    choice = AttentionChoice(kind=kind, config=load_kind(kind).Config()).with_defaults("causal", 32)
    return Model(Config(**sizes, attention=(choice,)), VOCAB).eval()


@pytest.mark.parametrize("kind", ["strided", "fixed", "linear"])
def test_recorded_weights_of_other_kinds_are_of_tokens_to_the_left_and_sum_to_1(kind: str) -> None:
    model = _gpt2(kind)
    with record(model) as found, torch.no_grad():
        model((12,), torch.arange(12))
    assert len(found) == 2
    for each in found:
        torch.testing.assert_close(each.values.sum(-1), torch.ones(2, 12), **CLOSE)
        assert each.values.triu(1).abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["aft", "memory_compressed", "relative_keys"])
def test_kind_without_a_weight_for_each_head_is_refused(kind: str) -> None:
    model = _gpt2(kind)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    with pytest.raises(Unsupported, match="no weighted mean"), record(model), torch.no_grad():
        model((12,), torch.arange(12))
