"""GPT-2 against transformers' GPT2LMHeadModel: logits, losses, gradients, files, generation."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPT2Model,
)

from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.masks import dense_mask
from nlpkit.checkpoints import hf_layout, hf_model, hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.contracts.request import Layout
from nlpkit.errors import FileError
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.models.gpt2 import Config
from nlpkit.models.gpt2.model import Model
from nlpkit.models.layers.head import Head
from nlpkit.models.layers.packs import last_states
from nlpkit.objectives import clm
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _adapters, _tiny
from tests._formats import from_hf, to_hf

SIZES = {"hidden_size": 32, "num_layers": 3, "num_heads": 4, "max_positions": 40}
SMALL = Config(**SIZES)
VOCAB = 61
LENGTHS = (9, 30, 1, 17)


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id, pad_id = VOCAB, None, 0, None, None


def _random(config: Config) -> Model:
    """Return a model whose weights are large enough for every part to matter, norms too."""
    torch.manual_seed(0)
    model = Model(config, VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def model() -> Model:
    return _random(SMALL)


def _oracle(model: Model) -> GPT2LMHeadModel:
    settings, tensors = to_hf("gpt2", model.config, model.state_dict())
    theirs = GPT2LMHeadModel(GPT2Config(**settings)).eval()
    report = theirs.load_state_dict(tensors)
    assert not report.missing_keys
    assert not report.unexpected_keys
    return theirs


def _ids(total: int = sum(LENGTHS), seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCAB, (total,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("inner", [None, 48])
@pytest.mark.parametrize("backend", ["reference", "sdpa", "cpu_flash"])
def test_states_and_logits_of_a_pack_equal_transformers_one_by_one(backend, inner) -> None:
    model = _random(SMALL.model_copy(update={"intermediate_size": inner}))
    oracle, model.backend = _oracle(model), backend
    ids = _ids()
    hidden = model(LENGTHS, ids)
    for ours, logits, text in zip(
        hidden.split(LENGTHS), model.logits(hidden).split(LENGTHS), ids.split(LENGTHS), strict=True
    ):
        expected = oracle.transformer(text[None]).last_hidden_state[0]
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(logits, oracle(text[None]).logits[0], atol=1e-5, rtol=0)


def test_loss_and_gradients_equal_transformers(model) -> None:
    model, oracle = model.double(), _oracle(model).double()
    ids, labels = _ids(), _ids(seed=1)
    loss, _ = model.token_loss(model(LENGTHS, ids), torch.arange(len(ids)), labels)
    loss.backward()
    expected = torch.zeros((), dtype=torch.float64)
    for text, right in zip(ids.split(LENGTHS), labels.split(LENGTHS), strict=True):
        expected = expected + F.cross_entropy(oracle(text[None]).logits[0], right, reduction="sum")
    expected.backward()
    # the summed loss is reported in single precision
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    _, ours = to_hf("gpt2", SMALL, {name: p.grad for name, p in model.named_parameters()})
    theirs = {name: p.grad for name, p in oracle.named_parameters()}  # the tied table once
    assert theirs.keys() == ours.keys() - {"lm_head.weight"}
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, atol=2e-6, rtol=1e-5, msg=name)


def test_loss_of_transformers_on_its_own_labels_is_ours(model) -> None:
    # transformers shifts labels itself and averages over the T - 1 targets.
    ids = _ids(25)
    expected = _oracle(model)(ids[None], labels=ids[None]).loss
    total, _ = model.token_loss(model((24,), ids[:-1]), torch.arange(24), ids[1:])
    torch.testing.assert_close(total / 24, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("inner", [None, 48])
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(inner, tmp_path) -> None:
    model = _random(SMALL.model_copy(update={"intermediate_size": inner}))
    hf_writing.write(tmp_path, *to_hf("gpt2", model.config, model.state_dict()))
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs) is GPT2LMHeadModel
    assert not any(report.values()), report
    ids = _ids(30)
    expected = theirs.eval()(ids[None]).logits[0]
    torch.testing.assert_close(model.logits(model((30,), ids)), expected, atol=1e-5, rtol=0)
    config, state = from_hf("gpt2", tmp_path)
    assert config == model.config
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value), name


@pytest.mark.parametrize("masks", [False, True], ids=["plain", "with saved masks"])
@pytest.mark.parametrize("kind", [GPT2LMHeadModel, GPT2Model])
def test_foreign_checkpoint_with_or_without_head_is_read(kind, masks, tmp_path) -> None:
    theirs = kind(GPT2Config(vocab_size=VOCAB, n_positions=40, n_embd=32, n_layer=3, n_head=4))
    theirs.eval().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    if masks:  # as openai-community/gpt2 is: buffers of earlier versions, fewer settings
        tensors = load_file(tmp_path / "model.safetensors")
        prefix = "transformer." if kind is GPT2LMHeadModel else ""
        for layer in range(3):
            tensors[f"{prefix}h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40).tril()
            tensors[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        save_file(tensors, tmp_path / "model.safetensors")
        added = ("n_inner", "scale_attn_weights", "tie_word_embeddings", "add_cross_attention")
        settings = {name: value for name, value in settings.items() if name not in added}
        (tmp_path / "config.json").write_text(json.dumps(settings | {"n_ctx": 40}))
    loaded = hf_model.from_hf("gpt2", tmp_path, *hf_layout.read(tmp_path))
    assert loaded.unexpected == ()
    model = Model(loaded.config, VOCAB).eval()
    model.load_state_dict(loaded.state)
    ids = _ids(30)
    body = theirs.transformer if kind is GPT2LMHeadModel else theirs
    expected = body(ids[None]).last_hidden_state[0]
    torch.testing.assert_close(model((30,), ids), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("activation_function", "relu", "activation_function is 'relu'; GPT-2 has gelu_new"),
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx is True"),
        ("scale_attn_weights", False, "scale_attn_weights is False; this family has True only"),
        ("add_cross_attention", True, "add_cross_attention is True"),
        ("tie_word_embeddings", False, "tie_word_embeddings is False"),
    ],
)
def test_checkpoint_with_a_setting_that_we_lack_is_refused(
    model, setting, value, message, tmp_path
) -> None:
    settings, tensors = to_hf("gpt2", SMALL, model.state_dict())
    hf_writing.write(tmp_path, settings | {setting: value}, tensors)
    with pytest.raises(FileError) as raised:
        from_hf("gpt2", tmp_path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_checkpoint_names_the_tokenizers_ends_and_not_those_of_openai(tmp_path) -> None:
    # Without them transformers takes 50256, which ends no text of a smaller vocabulary.
    _adapters.base("gpt2", tmp_path / "base")
    convert(tmp_path / "base", tmp_path / "out")
    tokenizer = open_checkpoint(tmp_path / "out").tokenizer
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id)
    assert tokenizer.eos_id is not None


def test_classifier_is_transformers_classifier(model, tmp_path) -> None:
    model.head = Head(32, 3, 0.0).eval()
    with torch.no_grad():
        model.head.weight.normal_()
    folders = hf_writing.to_hf(
        "gpt2", SMALL, model.state_dict(), TokenIds(0), labels=["a", "b", "c"]
    )
    hf_writing.write_folders(tmp_path, folders)
    theirs, report = GPT2ForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert report["unexpected_keys"] <= {"lm_head.weight"}  # a copy of the token table
    assert theirs.config.architectures == ["GPT2ForSequenceClassification"]
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    ids = _ids()
    ours = model.head(last_states(model(LENGTHS, ids), LENGTHS))
    padded = torch.nn.utils.rnn.pad_sequence(ids.split(LENGTHS), batch_first=True)  # pad is 0
    expected = theirs.eval()(padded, attention_mask=(padded != 0).long()).logits
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_initial_weights_are_drawn_as_in_the_paper() -> None:
    # Radford et al. 2019, sec. 2.3: residual layers by 1 / sqrt(their number), here 2 x 2.
    for name, value in Model(Config(num_layers=2), 3000).state_dict().items():
        if value.ndim == 1:  # biases 0, scales 1
            assert torch.equal(value, torch.full_like(value, float("bias" not in name)))
        else:
            std = 0.01 if name.endswith("c_proj.weight") else 0.02
            # Five standard errors of a standard deviation: sigma / sqrt(2 n).
            assert abs(float(value.std()) - std) < 5 * std / (2 * value.numel()) ** 0.5, name
            assert abs(float(value.mean())) < 5 * std / value.numel() ** 0.5, name


def test_default_sizes_give_the_papers_parameters() -> None:
    with torch.device("meta"):
        model = Model(Config(), 50257)
    # openai-community/gpt2: 124,439,808 (transformers' num_parameters of the default GPT2Config)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


GPT3 = (AttentionChoice.of("causal"), AttentionChoice.of("local_window", window=5))


def test_gpt3s_layers_equal_transformers_with_a_mask_in_every_second_layer() -> None:
    model = _random(SMALL.model_copy(update={"attention": GPT3}))
    oracle = _oracle(_random(SMALL))
    ids = _ids(30)
    mask = dense_mask(GPT3[1], Layout([30]))
    bias = torch.zeros(30, 30).masked_fill(~mask, torch.finfo(torch.float32).min)[None, None]
    dense = oracle(ids[None]).logits[0]
    oracle.transformer.h[1].attn.register_forward_pre_hook(
        lambda module, args, more: (args, more | {"attention_mask": bias}), with_kwargs=True
    )
    expected = oracle(ids[None]).logits[0]
    found = model.logits(model((30,), ids))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (dense - expected).abs().max() > 1e-2


@pytest.mark.parametrize("kinds", [(), GPT3], ids=["gpt2", "gpt3"])
def test_generation_with_a_cache_equals_without(kinds) -> None:
    model, ids = _random(SMALL.model_copy(update={"attention": kinds})), _ids(24)
    with torch.no_grad():
        whole, cache = model((24,), ids), Cache()
        states = [model((7,), ids[:7], cache=cache)]
        states += [model((1,), ids[i : i + 1], cache=cache) for i in range(7, 24)]
        torch.testing.assert_close(torch.cat(states), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("beam", [1, 3])
def test_texts_of_generation_equal_transformers(model, beam: int) -> None:
    theirs, objective = (
        _oracle(model),
        clm.Objective(clm.Config(max_length=40), _Tokenizer(), SMALL),
    )
    texts = [_ids(n, seed=n).tolist() for n in (5, 9, 2)]
    prompts = [objective.continue_text(ids, 12) for ids in texts]
    settings = Settings(beam=beam, max_new_tokens=12, length_penalty=1.0)
    found = list(generate(model, prompts, settings, Rules((0,), objective.suppress_tokens)))
    for ids, answers in zip(texts, found, strict=True):
        whole = theirs.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=12, num_beams=beam, do_sample=False, eos_token_id=0, pad_token_id=0,
        )  # fmt: skip
        new = whole[0, len(ids) :].tolist()
        assert [*answers[0].ids] == (new[: new.index(0)] if 0 in new else new)


RECIPE = """\
name: tiny
model: {family: gpt2, hidden_size: 32, num_layers: 2, num_heads: 4, max_positions: 64}
tokenizer: {kind: bpe, vocab_size: 400, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 64}
ATTENTION
train: {steps: 8, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, schedule: cosine,
  warmup_steps: 2, precision: fp32, eval_every: 4, save_every: 4, keep: 2}
"""


@pytest.mark.slow
def test_run_stopped_and_resumed_is_the_uninterrupted_one(tmp_path) -> None:
    path = _tiny.write(tmp_path, text=RECIPE.replace("ATTENTION\n", ""))
    whole = _tiny.pretrain(path, tmp_path / "whole")
    broken = _tiny.pretrain_with_stops(path, tmp_path / "broken", [5, 8])
    assert _tiny.metrics(tmp_path / "whole") == _tiny.metrics(tmp_path / "broken")
    one, two = hf_layout.read(whole)[1], hf_layout.read(broken)[1]
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())
    first = next(r for r in _tiny.metrics(tmp_path / "whole") if "loss" in r)
    # At first all 400 tokens are about as likely: ln 400 = 5.99.
    assert abs(first["loss"] - 5.99) < 0.3
    theirs = AutoModelForCausalLM.from_pretrained(whole)
    assert theirs.config.model_type == "gpt2"
    assert theirs.config.eos_token_id == open_checkpoint(whole).tokenizer.eos_id


def test_run_of_gpt3_keeps_its_kinds_and_is_not_taken_for_a_gpt2(tmp_path) -> None:
    kinds = "attention: {layers: [{kind: causal}, {kind: local_window, window: 8}]}"
    path = _tiny.write(tmp_path, text=RECIPE.replace("ATTENTION", kinds))
    checkpoint = _tiny.pretrain(path, tmp_path / "run")
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "nlpkit-gpt2"
    opened = open_checkpoint(checkpoint).model
    assert opened.config.kinds == (
        AttentionChoice.of("causal"),
        AttentionChoice.of("local_window", window=8),
    )


def test_prefix_in_one_of_two_layers_has_all_of_a_text_as_context_where_none_is_given() -> None:
    kinds = {
        first: tuple(map(AttentionChoice.of, (first, "causal"))) for first in ("prefix", "full")
    }
    models = {name: _random(Config(**SIZES, attention=each)) for name, each in kinds.items()}
    assert models["prefix"].span_position_embedding is None  # GLM needs prefix in every layer
    ids, context = torch.randint(0, VOCAB, (sum(LENGTHS),)), torch.zeros(sum(LENGTHS)).bool()
    with torch.no_grad():
        found, expected = models["prefix"](LENGTHS, ids), models["full"](LENGTHS, ids)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(models["prefix"](LENGTHS, ids, context=context), found)


def test_field_of_the_objective_reaches_a_kind_that_is_causal_without_it() -> None:
    kinds = {kind: (AttentionChoice.of(kind),) for kind in ("tests.parts.hybrid", "causal", "full")}
    models = {kind: _random(Config(**SIZES, attention=kinds[kind])) for kind in kinds}
    hybrid = models["tests.parts.hybrid"]
    assert hybrid.config.has_default_attention  # its checkpoint is the plain model
    ids, both_sides = torch.randint(0, VOCAB, (sum(LENGTHS),)), torch.ones(sum(LENGTHS)).bool()
    close = {"rtol": 1e-5, "atol": 1e-5}
    with torch.no_grad():
        torch.testing.assert_close(hybrid(LENGTHS, ids), models["causal"](LENGTHS, ids), **close)
        found, expected = hybrid(LENGTHS, ids, both_sides=both_sides), models["full"](LENGTHS, ids)
    torch.testing.assert_close(found, expected, **close)
