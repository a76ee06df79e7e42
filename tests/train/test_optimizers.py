"""Optimizers by name: three steps against torch's by hand, and which parameters each one gets.

Expected numbers are those of torch.optim on plain tensors, counts are by hand.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.optimizer import Group, describe
from nlpkit.errors import Unsupported
from nlpkit.models import families, lora
from nlpkit.models.adapter_config import Config as LoraConfig
from nlpkit.models.layers.head import DenseHead, Head
from nlpkit.models.matrices import layer_matrices
from nlpkit.models.meta import meta_model
from nlpkit.train import trackers
from nlpkit.train.optim import groups, optimizers, set_rates
from nlpkit.train.schedule import ResolvedTraining

NAMES = registry.names("train/optimizers")
FAMILIES = registry.names("models")
SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24}
VOCAB = 11


def _settings(optimizer: Any, **more: Any) -> ResolvedTraining:
    given = {"steps": 9, "schedule": "constant", "lr": 0.02, "weight_decay": 0.1} | more
    return ResolvedTraining.model_validate(given | {"optimizer": optimizer})


def _config(family: str, **more: Any) -> Any:
    config = registry.load("models", family).Config
    return config(**{k: v for k, v in (SIZES | more).items() if k in config.model_fields})


def _outline(family: str, **more: Any) -> nn.Module:
    """Return a small model without its weights."""
    return meta_model(families.load_model(family).Model, _config(family, **more), VOCAB)


def _model(family: str, **more: Any) -> nn.Module:
    torch.manual_seed(1)
    return families.load_model(family).Model(_config(family, **more), VOCAB, "auto")


def _installed(name: str) -> None:
    if package := registry.load("train/optimizers", name).PACKAGE:
        pytest.importorskip(package.replace("-", "_"))


# --- which parameters ----------------------------------------------------------------------------


def _names(model: nn.Module) -> dict[str, int]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: count for parameter, count in layer_matrices(model).items()}


@pytest.mark.parametrize("optimizer", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_in_exactly_one_group(family: str, optimizer: str) -> None:
    model = _outline(family)
    found = groups(model, _settings(optimizer))
    grouped = [id(parameter) for group in found for parameter in group.parameters]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    assert all(group.parameters for group in found)
    vectors = {id(p) for p in model.parameters() if p.ndim < 2}
    decayed = {id(p) for group in found if group.weight_decay for p in group.parameters}
    assert decayed == {*grouped} - vectors


# The parts of families that are no layers, and tensors in layers that are no matrices.
OTHERS = (
    *("token_embedding", "position_embedding", "segment_embedding", "prompt_embedding"),
    *("source_embedding", "language_embedding", "output_embedding", "output_projection"),
    *("source_positions", "target_positions", "class_token", "position_bias", "query_start"),
    *(
        "embeddings",
        "layers.distance_embedding",
        "widen",
        "patch",
        "attention_tensors",
        "encoder_tensors",
    ),
    *("pooler", "next_sentence", "order_classifier", "replaced_dense", "replaced_score"),
    *("output_dense", "bridge", "weight", "place_weight", "head", "objective_heads"),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_matrices_are_all_but_tables_heads_projections_and_vectors(family: str) -> None:
    model = _outline(family)
    model.head = DenseHead(16, 3, 0.0)
    model.objective_heads = nn.ModuleDict({"span": nn.ModuleList([nn.Linear(16, 16)])})
    found = _names(model)
    # `weight` stands alone only in the score of an additive alignment, which is a vector.
    of_layers = {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim > 1 and not {*name.split(".")[:-1], name} & {*OTHERS}
        and not any(f".{word}" in name for word in ("widen", "attention_tensors"))
    }  # fmt: skip
    assert {*found} == of_layers
    assert bool(found) == (family != "word2vec")  # two tables alone
    assert not {*registry.load("models", family).VOCABULARY} & {*found}


BY_HAND: dict[str, tuple[dict[str, Any], dict[int, int]]] = {
    # Settings beside `SIZES`, and how many tensors hold how many matrices; two layers.
    "bert": ({}, {1: 2 * 6}),  # query, key, value, project, up, down
    "gpt": ({}, {1: 2 * 3, 3: 2}),  # c_proj, c_fc, c_proj; q, k and v are one tensor
    "gpt2": ({}, {1: 2 * 3, 3: 2}),
    "cpm_ant": ({}, {1: 2 * 7}),  # q, k, v, out, gate, up, down
    "albert": ({"num_groups": 1}, {1: 6}),  # both layers are the same
    "electra": ({}, {1: 2 * 2 * 6}),  # generator and discriminator
    "xlnet": ({}, {1: 2 * 6}),  # four of them kept by heads
    "vit": ({}, {1: 2 * 6}),
    "bart": ({}, {1: 2 * (4 + 2) + 2 * (8 + 2)}),
    "t5": ({}, {1: 2 * (4 + 2) + 2 * (8 + 2)}),  # encoder; decoder with cross attention
    "lstm": ({}, {4: 2 * 2}),  # from below and from before, of four gates
    "gru": ({}, {3: 2 * 2}),
    "rnn": ({}, {1: 2 * 2}),
}


@pytest.mark.parametrize("family", BY_HAND)
def test_number_of_matrices_is_that_by_hand(family: str) -> None:
    settings, expected = BY_HAND[family]
    counts = sorted(_names(_outline(family, **settings)).values())
    assert {count: len([*same]) for count, same in itertools.groupby(counts)} == expected


def test_attention_of_a_recurrent_decoder_has_matrices_and_vectors() -> None:
    found = _names(_outline("seq2seq", score="additive", num_directions=2))
    attending = {name for name in found if "alignment" in name or "combine" in name}
    assert attending == {
        *("decoder.alignment.key.weight", "decoder.alignment.query.weight"),
        "decoder.combine.weight",
    }
    assert {count for name, count in found.items() if name not in attending} <= {1, 3, 4}


def test_learned_tensors_of_attention_are_no_matrices() -> None:
    aft = AttentionChoice.of("aft")
    aft = AttentionChoice(kind=aft.kind, config=aft.config.model_copy(update={"max_length": 8}))
    model = _outline("gpt2", attention=(aft,))
    learned = [name for name, _ in model.named_parameters() if "attention_tensors" in name]
    assert learned
    assert not {*learned} & {*_names(model)}


def test_adapters_are_matrices_and_frozen_weights_are_in_no_group() -> None:
    model = _model("gpt2")
    module = families.load_model("gpt2")
    config = LoraConfig(rank=2, targets=["c_attn", lora.TABLE])
    lora.adapt(model, config, lora.find_targets(config, module, model.config))
    model.head = Head(16, 3, 0.0)
    found = groups(model, _settings("muon"))
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_count = {
        g.matrices: {names[p] for p in g.parameters} for g in found if g.optimizer == "Muon"
    }
    assert all(".lora_" in name for each in by_count.values() for name in each)
    # B of the fused layer has the rows of q, k and v.
    assert by_count[3] == {f"layers.{n}.attn.c_attn.lora_B" for n in range(2)}
    adamw = {names[p] for g in found if g.optimizer == "AdamW" for p in g.parameters}
    tables = {*lora.name_matrices(lora.TABLE).values()}
    assert adamw == {"head.weight"} | ({"head.bias"} & {*names.values()}) | tables


class _Outside(nn.Module):
    """A family of someone else's, with weights that only it knows."""

    MATRICES = {"layers.0.kernel": 2, "layers.1.0.weight": 0, "absent.weight": 1}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        own = nn.Module()
        own.kernel = nn.Parameter(torch.zeros(4, 3))
        self.layers = nn.ModuleList([own, nn.ModuleList([nn.Linear(5, 5)]), nn.Linear(5, 1)])
        self.absent = None


def test_a_module_may_say_more_and_less_than_the_rule() -> None:
    # A single row is a vector; 0 takes a linear layer out; a part that is None is not there.
    assert _names(_Outside()) == {"layers.0.kernel": 2}


# --- steps ---------------------------------------------------------------------------------------

OWN: dict[str, dict[str, Any]] = {
    "adamw": {},
    "muon": {"momentum": 0.9, "nesterov": False, "adamw_lr": 0.005, "ns_steps": 4},
    "lion": {"beta1": 0.8, "beta2": 0.95},
    "adafactor": {"beta2_decay": -0.5, "eps1": 0.5, "eps2": 0.05, "clip_threshold": 2.0},
    "sgd": {"momentum": 0.7, "nesterov": True},
}


def _by_hand(name: str, two: list[Tensor], one: list[Tensor]) -> torch.optim.Optimizer:
    """Return the library's optimizer with the settings of `OWN`; decay of tensors in `two`."""
    given = [{"params": two, "weight_decay": 0.1}, {"params": one, "weight_decay": 0.0}]
    if name == "lion":
        from lion_pytorch import Lion

        return Lion(given, lr=0.02, betas=(0.8, 0.95))
    if name == "adafactor":
        return torch.optim.Adafactor(given, lr=0.02, beta2_decay=-0.5, eps=(0.5, 0.05), d=2.0)
    if name == "sgd":
        return torch.optim.SGD(given, lr=0.02, momentum=0.7, nesterov=True)
    return torch.optim.AdamW(given, lr=0.02, betas=(0.9, 0.95), foreach=False)


def _three_steps(
    parameters: list[nn.Parameter], made: list[torch.optim.Optimizer], copies: list[Tensor],
    theirs: list[torch.optim.Optimizer], split: Callable[[int, Tensor], list[Tensor]],
) -> None:  # fmt: skip
    """Give both the same random gradients and rates for three steps.

    `split` cuts the gradient of a parameter, by its number, as the copies are cut.
    """
    draw = torch.Generator().manual_seed(7)
    pieces = [split(n, p.detach().clone()) for n, p in enumerate(parameters)]
    assert [p.shape for each in pieces for p in each] == [p.shape for p in copies]
    for factor in (1.0, 0.75, 0.5):
        gradients = [torch.randn(p.shape, generator=draw) for p in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        cut = [part for n, gradient in enumerate(gradients) for part in split(n, gradient)]
        for copy, part in zip(copies, cut, strict=True):
            copy.grad = part.clone()
        set_rates(made, factor)
        for optimizer in theirs:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("peak", group["lr"]) * factor
        for optimizer in (*made, *theirs):
            optimizer.step()
    ended = [part for n, p in enumerate(parameters) for part in split(n, p.detach())]
    for ours, expected in zip(ended, copies, strict=True):
        torch.testing.assert_close(ours, expected.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "muon"])
def test_three_steps_are_those_of_the_library(name: str) -> None:
    _installed(name)
    model = _model("gpt2")
    more = {"beta2": 0.95} if name == "adamw" else {}
    made = optimizers(model, _settings({"name": name, **OWN[name]}, **more))
    parameters = [*model.parameters()]
    copies = [p.detach().clone().requires_grad_() for p in parameters]
    theirs = _by_hand(name, [c for c in copies if c.ndim > 1], [c for c in copies if c.ndim < 2])
    _three_steps(parameters, made, copies, [theirs], lambda _, tensor: [tensor])


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
@pytest.mark.parametrize("family", ["gpt2", "xlnet", "lstm", "gru", "albert"])
def test_three_steps_of_muon_are_those_of_torch_on_single_matrices(
    family: str, adjust: str
) -> None:
    model = _model(family)
    own = {"name": "muon", "adjust_lr_fn": adjust, **OWN["muon"]}
    made = optimizers(model, _settings(own, beta2=0.95))
    assert [type(each).__name__ for each in made] == ["Muon", "AdamW"]
    parameters, numbers = [*model.parameters()], layer_matrices(model)

    def split(number: int, tensor: Tensor) -> list[Tensor]:
        count = numbers.get(parameters[number])
        return [*tensor.flatten(1).chunk(count)] if count else [tensor]

    found = [split(n, p.detach().clone()) for n, p in enumerate(parameters)]
    copies = [part.clone().requires_grad_() for each in found for part in each]
    of = [p for p, each in zip(parameters, found, strict=True) for _ in each]
    theirs: list[torch.optim.Optimizer] = [
        torch.optim.Muon(
            [c for c, p in zip(copies, of, strict=True) if p in numbers],
            lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=False, ns_steps=4,
            adjust_lr_fn=adjust,
        ),
        _by_hand(
            "adamw",
            [c for c, p in zip(copies, of, strict=True) if p not in numbers and p.ndim > 1],
            [c for c, p in zip(copies, of, strict=True) if p not in numbers and p.ndim < 2],
        ),
    ]  # fmt: skip
    for group in theirs[1].param_groups:
        group["lr"] = 0.005
    _three_steps(parameters, made, copies, theirs, split)


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_muon_of_a_run_in_float32_iterates_in_float32(shape: tuple[int, int]) -> None:
    """A CPU without units for bfloat16 takes 25 times as long in it."""
    model = nn.Linear(*shape, bias=False)
    group = Group("Muon", "layer matrices", [*model.parameters()], 1.0, 0.0, 0, 1)
    settings = _settings("muon", lr=1.0, weight_decay=0.0, precision="fp32")
    (made,) = settings.optimizer.module.make(settings.optimizer.config, settings, [group])
    (weight,) = model.parameters()
    before, weight.grad = weight.detach().clone(), torch.randn(weight.shape)
    made.step()
    x = weight.grad.double()  # the first step of Nesterov's momentum has its direction
    x = x.T if len(x) > len(x.T) else x
    x = x / x.norm()
    for _ in range(5):  # Jordan et al. 2024
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    found = (before - weight.detach()) / (0.2 * 40**0.5)
    assert (found.T if len(found) > len(found.T) else found).double().sub(x).abs().max() < 1e-5


def test_a_step_of_muon_orthogonalizes_each_of_q_k_and_v() -> None:
    # Jordan et al. 2024: after Newton-Schulz the singular values of an update are about 1, between
    # 0.5 and 1.5; of all three together they would be those of one matrix of three times the rows.
    model = _model("gpt2")
    weight = model.layers[0].attn.c_attn.weight
    before = weight.detach().clone()
    made = optimizers(model, _settings("muon", lr=1.0, weight_decay=0.0))
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape)
    made[0].step()
    for update in (before - weight.detach()).chunk(3):
        values = torch.linalg.svdvals(update / (0.2 * 16**0.5))  # match_rms_adamw
        assert 0.4 < values.min() < values.max() < 1.6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["gpt2", "xlnet", "lstm"])
def test_groups_know_the_size_of_the_state(family: str, name: str) -> None:
    _installed(name)
    model = _model(family)
    settings = _settings(name)
    made = optimizers(model, settings)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in made:
        optimizer.step()
    kept = [
        value.numel()
        for optimizer in made
        for state in optimizer.state.values()
        for key, value in state.items()
        if key != "step"
    ]
    assert sum(group.state for group in groups(model, settings)) == sum(kept)


def test_parameters_without_a_gradient_are_not_touched() -> None:
    for name in NAMES:
        if name == "lion":
            continue
        model = _model("xlnet")
        made = optimizers(model, _settings(name))
        before = [p.detach().clone() for p in model.parameters()]
        for optimizer in made:
            optimizer.step()
        assert all(map(torch.equal, before, model.parameters()))


def test_soft_prompts_are_tuned_without_decay_and_without_muon() -> None:
    model = _outline("cpm_ant")
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.prompt_embedding)
    for name in (*NAMES, {"name": "muon", "adamw_weight_decay": 0.2}):
        (group,) = groups(model, _settings(name, tune="prompt"))
        assert (group.weight_decay, len(group.parameters)) == (0.0, 1)
        assert group.optimizer != "Muon"


def test_a_line_of_a_group_says_its_matrices_weights_rate_and_decay() -> None:
    # By hand: q, k and v of two layers, 3 * 16 * 16 each.
    found = [describe(group.figures()) for group in groups(_outline("gpt2"), _settings("muon"))]
    assert "Muon: 2 x 3 layer matrices; 1,536 weights; lr 0.02, decay 0.1" in found
    assert json.dumps([group.figures() for group in groups(_outline("gpt2"), _settings("muon"))])


# --- settings ------------------------------------------------------------------------------------


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    said = "train.optimizer: lion-pytorch is not installed (pip install lion-pytorch)"
    with pytest.raises(Unsupported) as caught:
        optimizers(_model("gpt2"), _settings("lion"))
    assert str(caught.value) == said
    optimizers(_model("gpt2"), _settings("adamw"))  # needs none


def test_settings_of_adamw_have_no_effect_with_those_that_do_not_use_them() -> None:
    of_adamw = {"beta1", "beta2", "adam_eps"}
    for name in NAMES:
        unused = {*_settings(name).without_effect()} & of_adamw
        assert unused == (set() if name in ("adamw", "muon") else of_adamw)


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match="nesterov: needs a momentum above 0"):
        _settings({"name": "sgd", "momentum": 0.0, "nesterov": True})


def test_threshold_that_torchs_adafactor_refuses_is_refused_with_the_recipe() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        _settings({"name": "adafactor", "clip_threshold": 0.5})
    with pytest.raises(ValueError, match="d should be >= 1"):  # what torch says
        torch.optim.Adafactor(nn.Linear(2, 2).parameters(), d=0.5)
