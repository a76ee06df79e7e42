"""Where models drop, how CPM-Ant's weights are drawn, and what prompt tuning changes.

Dropout is replaced by a fixed pattern, here and in transformers: then the outputs of training are
equal if the same tensors are dropped, and by how much. Attention's own dropout is left out; the
backends' tests have it.
"""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    CpmAntConfig,
    CpmAntForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

from nlpkit.errors import UsageError
from nlpkit.models import families
from nlpkit.models.cpm_ant import Config as CpmAnt
from nlpkit.models.cpm_ant import model as cpm_ant_model
from nlpkit.models.gpt import Config as Gpt
from nlpkit.models.gpt import model as gpt_model
from nlpkit.models.gpt2 import Config as Gpt2
from nlpkit.models.gpt2 import model as gpt2_model
from nlpkit.models.layers import embeddings, encoder, packs
from nlpkit.models.layers import gpt as gpt_layers
from nlpkit.models.layers.head import Head
from tests import _tiny
from tests._families import oracle
from tests._formats import to_hf
from tests._tiny_tasks import CLASSES, NLG, NLU, start, task

WIDTH, INSIDE, VOCAB, TOKENS = 32, 48, 61, 23
RATE = 0.25
CPM_ANT = CpmAnt(
    hidden_size=WIDTH, num_layers=2, num_heads=4, intermediate_size=INSIDE, prompt_types=4,
    prompt_length=5, segment_types=4, num_buckets=32, max_distance=40, dropout=RATE,
)  # fmt: skip
GPTS = {  # ours and theirs
    "gpt": (Gpt, gpt_model.Model, OpenAIGPTConfig, OpenAIGPTLMHeadModel),
    "gpt2": (Gpt2, gpt2_model.Model, GPT2Config, GPT2LMHeadModel),
}


def _thinned(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return what a fixed pattern leaves: another factor for each element, by its place."""
    if not training or x.shape[-1] not in (WIDTH, INSIDE):  # attention's weights are (…, T, T)
        return x
    pattern = 1 + p * torch.sin(torch.arange(x.numel(), dtype=x.dtype))
    return x * pattern.view(x.shape)


@pytest.fixture
def thinned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """Put the pattern in the place of dropout."""
    monkeypatch.setattr(F, "dropout", _thinned)
    for module in (cpm_ant_model, gpt_layers, packs, embeddings, encoder):
        monkeypatch.setattr(module, "dropout", _thinned)
    return _thinned


def _filled(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model with weights so large that every part matters, in training mode."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.train()


def test_cpm_ant_drops_where_transformers_does_and_on_the_embeddings(thinned) -> None:
    ours = _filled(cpm_ant_model.Model(CPM_ANT, VOCAB, "reference").double())
    settings, tensors = to_hf("cpm_ant", CPM_ANT, ours.state_dict())
    theirs = CpmAntForCausalLM(CpmAntConfig(**settings)).double().train()
    theirs.load_state_dict(tensors)
    assert settings["dropout_p"] == RATE
    ids, place = torch.randint(10, VOCAB, (TOKENS,)), torch.arange(TOKENS)
    segment, context = torch.full_like(ids, 2), torch.ones(TOKENS, dtype=torch.bool)
    body = theirs.cpmant
    hidden = body.input_embedding(ids) + body.segment_embedding(segment)
    # transformers' port does not drop here.
    hidden = thinned(hidden, RATE)
    bias = body.position_bias(place[None], place[None], segment[None], segment[None])
    everything = torch.ones(1, TOKENS, TOKENS, dtype=torch.bool)
    expected, _, _ = body.encoder(hidden[None], everything, bias)
    found = ours((TOKENS,), ids, segment, place, context)
    torch.testing.assert_close(found, expected[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dropped", ["residual", "embedding"])
@pytest.mark.parametrize("family", GPTS)
def test_gpt_drops_where_transformers_does(thinned, family: str, dropped: str) -> None:
    sizes, model, their_sizes, their_model = GPTS[family]
    rates = {f"{name}_dropout": 0.0 for name in ("embedding", "residual", "attention")}
    rates[f"{dropped}_dropout"] = RATE
    config = sizes(hidden_size=WIDTH, num_layers=2, num_heads=4, max_positions=40, **rates)
    ours = _filled(model(config, VOCAB, "reference"))
    settings, tensors = to_hf(family, config, ours.state_dict())
    theirs = their_model(their_sizes(**settings)).train()
    theirs.load_state_dict(tensors)
    ids = torch.randint(VOCAB, (TOKENS,))
    expected = theirs(ids[None]).logits[0]
    torch.testing.assert_close(ours.logits(ours((TOKENS,), ids)), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_encoder_drops_where_transformers_does(thinned, family: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{family.capitalize()}Config")(
        vocab_size=oracle.VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=INSIDE, max_position_embeddings=40, hidden_dropout_prob=RATE,
        attention_probs_dropout_prob=0.0, type_vocab_size=1,
    )  # fmt: skip
    theirs = oracle.drawn(f"{family.capitalize()}ForMaskedLM", config)
    theirs.save_pretrained(tmp_path)
    ours, _ = oracle.ours(family, tmp_path)
    ids = torch.randint(5, oracle.VOCAB, (TOKENS,))
    given = {"token_type_ids": torch.zeros_like(ids)} if family == "bert" else {}
    found = ours.train()((TOKENS,), input_ids=ids, **given)
    expected = theirs.train().base_model(ids[None]).last_hidden_state[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    kept = ours.eval()((TOKENS,), input_ids=ids, **given)
    assert not torch.allclose(found, kept, atol=1e-2)


def test_head_of_a_task_drops_its_states_in_training_alone(thinned) -> None:
    head, states = Head(WIDTH, 3, RATE), torch.randn(5, WIDTH)
    expected = thinned(states, RATE) @ head.weight.T
    torch.testing.assert_close(head.train()(states), expected)
    torch.testing.assert_close(head.eval()(states), states @ head.weight.T)


@pytest.mark.parametrize(
    ("family", "kind", "activation"),
    [
        ("xlnet", "sequence_classification", torch.tanh),
        ("xlnet", "multiple_choice", torch.tanh),
        ("electra", "multiple_choice", F.gelu),
    ],
)
def test_head_on_a_summary_drops_behind_its_dense_layer_alone(
    thinned, family: str, kind: str, activation: Callable[[Tensor], Tensor]
) -> None:
    # transformers' sequence summary: `summary_first_dropout` is 0.
    head = families.load_model(family).TASK_HEADS[kind].new(WIDTH, 3, RATE)
    states = torch.randn(5, WIDTH)
    expected = thinned(activation(head.dense(states)), RATE) @ head.weight.T
    torch.testing.assert_close(head.train()(states), expected)


@pytest.fixture(scope="module")
def cpm_ant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("cpm_ant"))


def test_head_of_a_run_has_the_dropout_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    forward = Head.forward

    def noted(head: Head, states: Tensor) -> Tensor:
        if head.training:
            rates.append(head.dropout)
        return forward(head, states)

    monkeypatch.setattr(Head, "forward", noted)
    path = task(tmp_path, "classes", CLASSES, start(tmp_path, "gpt"))
    _tiny.pretrain(path, tmp_path / "run", "objective.dropout=0.375", "train.steps=2")
    assert {*rates} == {0.375}


def _std(model: cpm_ant_model.Model, *names: str) -> float:
    """Return the standard deviation of all parameters whose name ends so."""
    found = [p.flatten() for n, p in model.named_parameters() if n.endswith(names)]
    return float(torch.cat(found).std().detach())


@pytest.mark.parametrize("layers", [2, 8])
@pytest.mark.parametrize("init", ["scaled", "folded"])
def test_cpm_ant_draws_its_weights_from_the_deviations_said(init: str, layers: int) -> None:
    config = CPM_ANT.model_copy(
        update={"hidden_size": 64, "intermediate_size": 96, "num_layers": layers, "init": init}
    )
    torch.manual_seed(1)
    model = cpm_ant_model.Model(config, 2000)
    depth = 2 * layers if init == "scaled" else 1  # Radford et al. 2019, sec. 2.3
    expected = {
        ("token_embedding",): (0.02 if init == "folded" else 1.0) / math.sqrt(64),
        ("prompt_embedding",): (0.02 if init == "folded" else 1.0) / math.sqrt(64),
        ("segment_embedding",): (0.02 if init == "folded" else 1.0) / math.sqrt(64),
        ("position_bias",): 1.0 if init == "folded" else 0.02,
        (".q.weight", ".k.weight", ".v.weight"): 1 / math.sqrt(64),
        (".gate.weight", ".up.weight"): 1 / math.sqrt(64),
        (".out.weight",): 1 / math.sqrt(64 * depth),
        (".down.weight",): 1 / math.sqrt(96 * depth),
    }
    for names, wanted in expected.items():
        count = sum(p.numel() for n, p in model.named_parameters() if n.endswith(names))
        # The standard error of a deviation is that of a normal sample: 1 / sqrt(2 n), times five.
        assert _std(model, *names) == pytest.approx(wanted, rel=5 / math.sqrt(2 * count)), names


@pytest.mark.parametrize(("task_id", "name", "text"), [(None, "nlg", NLG), (3, "nlu", NLU)])
def test_prompt_tuning_changes_the_rows_of_its_prompt_and_nothing_else(
    cpm_ant: Path, tmp_path: Path, name: str, text: str, task_id: int | None
) -> None:
    path = task(tmp_path, name, text, cpm_ant)
    # Decay would show in rows without a gradient.
    sets = ["train.tune=prompt", "train.weight_decay=0.5", "train.steps=3"]
    if task_id is not None:
        sets.append(f"objective.task_id={task_id}")
    saved = _tiny.pretrain(path, tmp_path / "run", *sets)
    old, new = (
        load_file(place / "model.safetensors") for place in (cpm_ant / "checkpoints/latest", saved)
    )
    assert old.keys() == new.keys()
    differing = [key for key in old if not torch.equal(old[key], new[key])]
    assert differing == ["cpmant.input_embedding.weight"]
    (table,) = differing
    words = len(old[table]) - 4 * 4  # four prompts of four rows
    changed = (old[table] != new[table]).any(1).nonzero().squeeze(1) - words
    # On disk the generation prompt, which is the default, is block 2; block 3 is block 3.
    block = 2 if task_id is None else 3
    assert changed.tolist() == [*range(4 * block, 4 * block + 4)]


@pytest.mark.slow
def test_prompt_tuning_resumes_bit_for_bit(cpm_ant: Path, tmp_path: Path) -> None:
    path = task(tmp_path, "nlg", NLG, cpm_ant)
    sets = ("train.tune=prompt", "train.steps=6")
    whole = _tiny.pretrain(path, tmp_path / "whole", *sets)
    parts = _tiny.pretrain_with_stops(path, tmp_path / "parts", [2, 3], *sets)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def test_prompt_tuning_without_a_prompt_or_with_adapters_is_refused(
    cpm_ant: Path, tmp_path: Path
) -> None:
    path = task(tmp_path, "nlg", NLG, cpm_ant)
    with pytest.raises(UsageError, match=r"train\.tune: prompt: .*; lora excludes it"):
        _tiny.pretrain(path, tmp_path / "run", "train.tune=prompt", "lora={}")
    own = _tiny.write(tmp_path / "own")
    with pytest.raises(UsageError, match=r"train\.tune: prompt: .*; objective cpm_ant has none"):
        _tiny.pretrain(own, tmp_path / "other", "train.tune=prompt")
