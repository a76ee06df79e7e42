"""Virtual tokens before the sequences of every family: against `peft`, and in generation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from torch import Tensor
from transformers import AutoModel

from nlpkit.attention.cache import Cache
from nlpkit.models import families, soft_prompt
from tests import _adapters

COUNT = 5
# The summary is their first state.
ENCODERS = ("albert", "bert", "deberta_v2", "electra", "modernbert", "roberta", "xlm")
STACKS = (*ENCODERS, "gpt", "gpt2", "modernbert_decoder", "xlnet")
IDS = torch.stack([torch.arange(11, 25), torch.arange(20, 34)])


def _prompted(family: str, base: Path) -> tuple[Any, Tensor]:
    """Return our model with a soft prompt, whose base is written, and the rows of the prompt."""
    model: Any = _adapters.base(family, base)
    rows = torch.randn(COUNT, model.token_embedding.shape[1])
    soft_prompt.attach(model, rows.clone())
    return model.eval(), rows


def _of_peft(theirs: Any, rows: Tensor, kind: str) -> Any:
    settings = PromptTuningConfig(
        task_type=kind, num_virtual_tokens=COUNT, token_dim=rows.shape[1],
        num_transformer_submodules=1, num_attention_heads=4, num_layers=2,
    )  # fmt: skip
    model = get_peft_model(theirs, settings).eval()
    with torch.no_grad():
        model.prompt_encoder["default"].embedding.weight.copy_(rows)
    return model


def _with_types(family: str, ids: Tensor) -> dict[str, Tensor]:
    needed = _adapters.CONFIGS[family].inputs
    return {name: torch.zeros_like(ids) for name in needed} | {"input_ids": ids}


@torch.no_grad()
@pytest.mark.parametrize("family", STACKS)
def test_soft_prompt_gives_the_states_of_peft(family: str, tmp_path: Path) -> None:
    ours, rows = _prompted(family, tmp_path / "base")
    plain = AutoModel.from_pretrained(tmp_path / "base").eval()
    before = plain(IDS).last_hidden_state
    expected = _of_peft(plain, rows, "FEATURE_EXTRACTION")(input_ids=IDS).last_hidden_state
    found = ours((14, 14), **_with_types(family, IDS.flatten()))
    torch.testing.assert_close(found.view(2, 14, -1), expected[:, COUNT:], atol=2e-5, rtol=1e-5)
    assert (found.view(2, 14, -1) - before).abs().max() > 0.1
    summary = expected[:, 0 if family in ENCODERS else -1]  # the first token is a virtual one
    if getattr(ours, "pooler", None) is not None:
        summary = torch.tanh(ours.pooler(summary))
    torch.testing.assert_close(ours.summary(found, (14, 14)), summary, atol=2e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", ["bart", "t5", "transformer"])
def test_soft_prompt_before_a_source_gives_the_logits_of_peft(
    family: str, tmp_path: Path, monkeypatch
) -> None:
    # peft looks words up beside transformers' Marian, which then does not scale them.
    plain = _adapters.CONFIGS["transformer"].model_copy(update={"scale_embedding": False})
    monkeypatch.setitem(_adapters.CONFIGS, "transformer", plain)
    ours, rows = _prompted(family, tmp_path / "base")
    peft_model = _of_peft(_adapters.theirs(family, tmp_path / "base"), rows, "SEQ_2_SEQ_LM")
    targets = torch.arange(5, 11)
    expected = peft_model(
        input_ids=IDS[:1], attention_mask=torch.ones_like(IDS[:1]), decoder_input_ids=targets[None]
    ).logits[0]
    given = {"source_ids": IDS[0], "source_lengths": (14,)}
    found = ours.logits(ours((6,), targets, **given))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
    assert {each.shape for each in ours.alignments((6,), targets, **given)} == {(6, 14)}


@torch.no_grad()
@pytest.mark.parametrize("family", ["gpt", "gpt2", "lstm", "modernbert_decoder", "t5"])
def test_soft_prompt_is_read_once_in_generation(family: str) -> None:
    module, light = families.load_model(family), families.load(family)
    config = _adapters.CONFIGS.get(family) or light.Config(hidden_size=32, num_layers=2)
    model: Any = module.Model(config, 40).eval()
    soft_prompt.attach(model, torch.randn(COUNT, 32))
    ids, source = torch.arange(3, 12), {}
    if family == "t5":
        source = {"source_ids": torch.arange(9), "source_lengths": (4, 5)}
    expected = model((4, 5), ids, **source)
    cache = Cache()
    first = model((3, 4), ids[[0, 1, 2, 4, 5, 6, 7]], **source, cache=cache)
    then = model((1, 1), ids[[3, 8]], cache=cache)
    found = torch.cat([first[:3], then[:1], first[3:], then[1:]])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_soft_prompt_alone_has_gradients(tmp_path: Path) -> None:
    ours, _ = _prompted("gpt2", tmp_path / "base")
    table = ours.token_embedding
    ours((14, 14), IDS.flatten()).square().sum().backward()
    assert [name for name, each in ours.named_parameters() if each.grad is not None] == [
        soft_prompt.NAME
    ]
    assert ours.soft_prompt.grad.abs().min() > 0
    assert ours.token_embedding is table
