"""GPT-NeoX against transformers' GPTNeoXForCausalLM: logits, gradients, files, generation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
)

from nlpkit.attention.cache import Cache
from nlpkit.checkpoints import hf_layout, hf_model, hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.errors import FileError
from nlpkit.models.gpt_neox import Config
from nlpkit.models.gpt_neox.model import TASK_HEADS, Model
from nlpkit.models.layers.head import Head
from tests._formats import from_hf, to_hf

VOCAB = 61
LENGTHS = (9, 30, 1, 17)
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


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id, pad_id = VOCAB, None, 0, None, None


def _theirs(name: str) -> Any:
    """Return a model of transformers, whose weights are so large that every part matters."""
    torch.manual_seed(0)
    settings = json.loads(json.dumps(MODELS[name]))  # transformers changes what it is given
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, **settings)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def _opened(directory: Path) -> Model:
    loaded = hf_model.from_hf("gpt_neox", directory, *hf_layout.read(directory))
    assert loaded.unexpected == ()
    model = Model(loaded.config, VOCAB).eval()
    model.load_state_dict(loaded.state)
    return model


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Model]:
    theirs = _theirs(request.param)
    theirs.save_pretrained(tmp_path)
    return theirs, _opened(tmp_path)


ALL = pytest.mark.parametrize("pair", MODELS, indirect=True)


def _ids(total: int = sum(LENGTHS), seed: int = 0) -> Tensor:
    return torch.randint(1, VOCAB, (total,), generator=torch.Generator().manual_seed(seed))


def _padded(ids: Tensor) -> tuple[Tensor, Tensor]:
    parts = ids.split(LENGTHS)
    rows = nn.utils.rnn.pad_sequence([*parts], batch_first=True)
    return rows, nn.utils.rnn.pad_sequence([torch.ones_like(p) for p in parts], batch_first=True)


@ALL
def test_logits_and_gradients_of_a_pack_equal_transformers_padded_batch(pair) -> None:
    theirs, model = pair
    ids, labels = _ids(), _ids(seed=1)
    rows, mask = _padded(ids)
    expected = theirs(rows, attention_mask=mask).logits[mask.bool()]
    hidden = model(LENGTHS, ids)
    torch.testing.assert_close(model.logits(hidden), expected, atol=1e-5, rtol=1e-5)
    loss, _ = model.token_loss(hidden, torch.arange(len(ids)), labels)
    right = F.cross_entropy(expected, labels, reduction="sum")
    torch.testing.assert_close(loss, right, rtol=1e-6, atol=0)
    (loss / len(ids)).backward()
    (right / len(ids)).backward()
    _, ours = to_hf("gpt_neox", model.config, {n: p.grad for n, p in model.named_parameters()})
    for name, parameter in theirs.named_parameters():
        grad = ours[name.replace("lm_head", "embed_out")]
        torch.testing.assert_close(grad, parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


@ALL
def test_saved_files_open_in_transformers_and_come_back(pair, tmp_path) -> None:
    theirs, model = pair
    folder = tmp_path / "ours"
    folder.mkdir()
    hf_writing.write(folder, *to_hf("gpt_neox", model.config, model.state_dict()))
    again, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(again) is GPTNeoXForCausalLM
    assert not any(report.values()), report
    rows, mask = _padded(_ids())
    found, expected = (
        each(rows, attention_mask=mask).logits[mask.bool()] for each in (again.eval(), theirs)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    config, state = from_hf("gpt_neox", folder)
    assert config == model.config
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@ALL
def test_generation_with_a_cache_equals_without(pair) -> None:
    model, ids = pair[1], _ids(24)
    with torch.no_grad():
        whole, cache = model((24,), ids), Cache()
        states = [model((7,), ids[:7], cache=cache)]
        states += [model((1,), ids[i : i + 1], cache=cache) for i in range(7, 24)]
        torch.testing.assert_close(torch.cat(states), whole, atol=1e-5, rtol=1e-5)


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
    model, ids = _opened(tmp_path), _ids(30)
    expected = theirs(ids[None]).logits[0]
    torch.testing.assert_close(model.logits(model((30,), ids)), expected, atol=1e-5, rtol=1e-5)


def test_tagger_is_transformers_tagger(tmp_path) -> None:
    _theirs("pythia").save_pretrained(tmp_path)
    model = _opened(tmp_path)
    model.head = Head(32, 3, 0.0, bias=True).eval()
    nn.init.normal_(model.head.weight)
    head = TASK_HEADS["token_classification"]
    state = model.state_dict()
    folders = hf_writing.to_hf("gpt_neox", model.config, state, TokenIds(0), head, list("abc"))
    hf_writing.write_folders(tmp_path, folders)
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    ids = _ids()
    rows, mask = _padded(ids)
    expected = theirs(rows, attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(model.head(model(LENGTHS, ids)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "silu"}, "hidden_act is 'silu'; this family has gelu, relu, gelu_new"),
        ({"attention_bias": False}, "attention_bias is False; this family has True only"),
        ({"hidden_dropout": 0.1}, "hidden_dropout is 0.1; this family has 0.0 only"),
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
