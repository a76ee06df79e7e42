"""GPT-Neo against transformers' GPTNeoForCausalLM: logits, losses, gradients, files, generation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPTNeoConfig, GPTNeoForCausalLM

from nlpkit.attention.cache import Cache
from nlpkit.checkpoints import hf_layout, hf_model, hf_writing
from nlpkit.errors import FileError
from nlpkit.models.gpt_neo import Config
from nlpkit.models.gpt_neo.model import Model
from tests._formats import from_hf, to_hf

VOCAB = 61
LENGTHS = (9, 30, 1, 17)  # one longer than the windows
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


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id, pad_id = VOCAB, None, 0, None, None


def _opened(directory: Path) -> Model:
    loaded = hf_model.from_hf("gpt_neo", directory, *hf_layout.read(directory))
    assert loaded.unexpected == ()
    model = Model(loaded.config, VOCAB).eval()
    model.load_state_dict(loaded.state)
    return model


def _pair(name: str, folder: Path) -> tuple[Any, Model]:
    """Return transformers' model, whose weights let every part matter, and ours from its files."""
    torch.manual_seed(0)
    theirs = GPTNeoForCausalLM(GPTNeoConfig(**SIZES | MODELS[name])).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(folder)
    return theirs, _opened(folder)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Model]:
    return _pair(getattr(request, "param", "as released"), tmp_path)


ALL = pytest.mark.parametrize("pair", MODELS, indirect=True)


def _ids(total: int = sum(LENGTHS), seed: int = 0) -> Tensor:
    return torch.randint(1, VOCAB, (total,), generator=torch.Generator().manual_seed(seed))


@ALL
def test_logits_loss_and_gradients_of_a_pack_equal_transformers_one_by_one(pair) -> None:
    theirs, model = pair
    ids, labels = _ids(), _ids(seed=1)
    expected = torch.cat([theirs(text[None]).logits[0] for text in ids.split(LENGTHS)])
    hidden = model(LENGTHS, ids)
    torch.testing.assert_close(model.logits(hidden), expected, atol=1e-5, rtol=1e-5)
    loss, _ = model.token_loss(hidden, torch.arange(len(ids)), labels)
    right = F.cross_entropy(expected, labels, reduction="sum")
    torch.testing.assert_close(loss, right, rtol=1e-6, atol=0)
    (loss / len(ids)).backward()
    (right / len(ids)).backward()
    _, ours = to_hf("gpt_neo", model.config, {n: p.grad for n, p in model.named_parameters()})
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


@ALL
def test_saved_files_open_in_transformers_and_come_back(pair, tmp_path) -> None:
    theirs, model = pair
    folder = tmp_path / "ours"
    folder.mkdir()
    settings, tensors = to_hf("gpt_neo", model.config, model.state_dict())
    hf_writing.write(folder, settings, tensors)
    again, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(again) is GPTNeoForCausalLM
    assert not any(report.values()), report
    assert again.config.attention_layers == theirs.config.attention_layers
    ids = _ids(30)[None]
    torch.testing.assert_close(again.eval()(ids).logits, theirs(ids).logits, atol=1e-6, rtol=0)
    config, state = from_hf("gpt_neo", folder)
    assert config == model.config
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_alternating_layers_of_any_number_are_the_familys_own(tmp_path) -> None:
    assert _pair("the family's own", tmp_path)[1].config.attention == ()
    windowed = _pair("as released", tmp_path)[1].config
    assert [kind.kind for kind in windowed.attention] == ["causal", "local_window"]
    assert windowed.window == 5
    settings, _ = to_hf("gpt_neo", Config(num_layers=3, hidden_size=24), {})
    assert settings["attention_types"] == [[["global", "local", "global"], 1]]
    assert settings["window_size"] == 256


@pytest.mark.parametrize("name", ["as released", "other types, other width"])
def test_generation_with_a_cache_equals_without(name, tmp_path) -> None:
    model, ids = _pair(name, tmp_path)[1], _ids(24)
    with torch.no_grad():
        whole, cache = model((24,), ids), Cache()
        states = [model((7,), ids[:7], cache=cache)]
        states += [model((1,), ids[i : i + 1], cache=cache) for i in range(7, 24)]
        torch.testing.assert_close(torch.cat(states), whole, atol=1e-5, rtol=1e-5)


def test_old_files_with_saved_masks_are_read(pair, tmp_path) -> None:
    theirs, _ = pair
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(4):
        start = f"transformer.h.{layer}.attn.attention"
        tensors[f"{start}.bias"] = torch.ones(1, 1, 64, 64).tril()
        tensors[f"{start}.masked_bias"] = torch.tensor(-1e9)
    save_file(tensors, tmp_path / "model.safetensors")
    model, ids = _opened(tmp_path), _ids(30)
    expected = theirs(ids[None]).logits[0]
    torch.testing.assert_close(model.logits(model((30,), ids)), expected, atol=1e-5, rtol=1e-5)


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
def test_directory_with_a_setting_that_we_lack_is_refused(pair, settings, message, tmp_path):
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
