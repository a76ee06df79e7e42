"""`model.passes`: transformers' own layers called in a loop; files; what FLOPs and plans count."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from nlpkit.attention.cache import Cache
from nlpkit.checkpoints import hf_layout, hf_model
from nlpkit.errors import UsageError
from nlpkit.models import families
from nlpkit.models.flops import step_flops
from nlpkit.runs.convert import convert
from tests import _tiny

VOCAB, LENGTHS, PASSES = 61, (9, 30, 1), 3
CONFIGS = {
    "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "llama": LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=40, max_position_embeddings=64,
    ),
}  # fmt: skip
BODIES = {"gpt2": ("transformer", "h"), "llama": ("model", "layers")}
RECIPE = """\
name: tiny
model: {family: gpt2, hidden_size: 32, num_layers: 2, num_heads: 4, max_positions: 64, passes: 3}
tokenizer: {kind: bpe, vocab_size: 400, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 64}
train: {steps: 4, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, schedule: cosine,
  precision: fp32, eval_every: 4, save_every: 2}
"""


def _pair(family: str, folder: Path) -> tuple[Any, Any]:
    """Return transformers' model with its layers in a loop, and ours with the same weights."""
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(CONFIGS[family]).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    theirs.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"passes": PASSES}))
    loaded = hf_model.from_hf(family, folder, *hf_layout.read(folder))
    ours = families.load_model(family).Model(loaded.config, VOCAB).eval()
    ours.load_state_dict(loaded.state)
    body, name = BODIES[family]
    layers = getattr(getattr(theirs, body), name)
    setattr(getattr(theirs, body), name, nn.ModuleList([*layers] * PASSES))
    theirs.config.num_hidden_layers = len(layers) * PASSES
    return theirs, ours


def _ids(size: int) -> Tensor:
    return torch.randint(0, VOCAB, (size,), generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize("family", CONFIGS)
def test_layers_in_a_loop_give_transformers_logits_and_gradients(family, tmp_path) -> None:
    theirs, ours = _pair(family, tmp_path)
    ids = _ids(sum(LENGTHS))
    rows = [theirs(part[None], use_cache=False).logits[0] for part in ids.split(LENGTHS)]
    found = ours.logits(ours(LENGTHS, ids))
    torch.testing.assert_close(found, torch.cat(rows), atol=2e-5, rtol=1e-4)
    target = _ids(sum(LENGTHS)).flip(0)
    F.cross_entropy(found, target).backward()
    F.cross_entropy(torch.cat(rows), target).backward()
    body, name = BODIES[family]
    norm = "ln_1" if family == "gpt2" else "input_layernorm"
    for number in range(2):
        expected = getattr(getattr(getattr(theirs, body), name)[number], norm).weight.grad
        own = getattr(ours.layers[number], norm).weight.grad
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", CONFIGS)
def test_rows_and_a_cache_give_the_same_states(family, tmp_path) -> None:
    _, model = _pair(family, tmp_path)
    ids, rows = _ids(24), torch.tensor([3, 20])
    with torch.no_grad():
        whole, cache = model((24,), ids), Cache()
        torch.testing.assert_close(model((24,), ids, rows=rows), whole[rows])
        states = [model((7,), ids[:7], cache=cache)]
        states += [model((1,), ids[i : i + 1], cache=cache) for i in range(7, 24)]
    torch.testing.assert_close(torch.cat(states), whole, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", CONFIGS)
def test_flops_are_those_of_as_many_layers_more(family) -> None:
    config = families.load(family).Config
    sizes = {"hidden_size": 32, "num_heads": 4, "intermediate_size": 40}
    looped = config(**sizes, num_layers=2, passes=PASSES)
    deep = config(**sizes, num_layers=2 * PASSES)
    count = [step_flops(family, each, VOCAB, [5, 9], 12) for each in (looped, deep)]
    assert count[0] == count[1]


def test_checkpoint_of_a_run_opens_here_alone_and_is_not_converted(tmp_path, capsys) -> None:
    path = _tiny.write(tmp_path, text=RECIPE)
    checkpoint = _tiny.pretrain(path, tmp_path / "whole")
    assert capsys.readouterr().err.count("passes: 3: transformers has no such model, and") == 1
    _tiny.pretrain_with_stops(path, tmp_path / "broken", [3])
    assert _tiny.metrics(tmp_path / "whole") == _tiny.metrics(tmp_path / "broken")
    settings, tensors = hf_layout.read(checkpoint)
    assert (settings["model_type"], settings["passes"]) == ("nlpkit-gpt2", 3)
    loaded = hf_model.from_hf("gpt2", checkpoint, settings, tensors)
    assert loaded.config.setting("passes") == 3
    with pytest.raises(ValueError, match="nlpkit-gpt2"):
        AutoModelForCausalLM.from_pretrained(checkpoint)
    with pytest.raises(UsageError, match="passes 3: transformers has no gpt2 whose layers run"):
        convert(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", CONFIGS)
def test_one_pass_is_written_as_before(family, tmp_path) -> None:
    module, config = families.load_model(family), families.load(family).Config()
    assert "passes" not in module.FORMAT.more_settings(config)
