"""Learning rates by hand and from Vaswani et al. 2017; AdamW against torch's plain loop."""

import itertools
import math

import pytest
import torch
import transformers
from torch import nn

from nlpkit.train.budget import position
from nlpkit.train.optim import optimizers
from nlpkit.train.schedule import ResolvedTraining, lr_factor, stable_end

SCHEDULES = ["constant", "linear", "cosine", "noam", "wsd"]


def _config(**settings) -> ResolvedTraining:
    return ResolvedTraining(**({"steps": 100, "warmup_steps": 20, "schedule": "linear"} | settings))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lr_factor_rises_linearly_to_one_at_the_end_of_the_warmup(schedule: str) -> None:
    config = _config(schedule=schedule, min_lr_ratio=0.25)
    factors = [lr_factor(step, config) for step in range(1, 101)]
    # Steps count from 1, so that the first one already learns.
    assert factors[:4] == [1 / 20, 2 / 20, 3 / 20, 4 / 20]
    assert factors[18] == 19 / 20
    assert factors[19] == 1.0 == max(factors)
    falling = factors[19:]
    if schedule in ("constant", "wsd"):  # without steps of decay
        assert set(falling) == {1.0}
    else:
        assert all(a > b for a, b in itertools.pairwise(falling))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # (40 - 20) / 80 = 1/4 of the way: linear 1 - 1/4, cosine (1 + cos 45°) / 2.
        ("constant", {40: 1.0, 60: 1.0, 99: 1.0}),
        ("linear", {40: 0.75, 60: 0.5, 80: 0.25, 99: 1 / 80}),
        ("cosine", {40: (1 + math.sqrt(0.5)) / 2, 60: 0.5, 80: (1 - math.sqrt(0.5)) / 2}),
        ("noam", {80: 0.5, 45: 2 / 3, 20: 1.0}),
    ],
)
def test_lr_factor_by_hand(schedule: str, expected: dict[int, float]) -> None:
    config = _config(schedule=schedule, steps=99)
    assert {s: lr_factor(s, config) for s in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", {40: 0.75, 60: 0.5, 80: 0.25, 100: 0.0}),
        ("cosine", {40: (1 + math.sqrt(0.5)) / 2, 60: 0.5, 80: (1 - math.sqrt(0.5)) / 2, 100: 0.0}),
    ],
)
def test_lr_factor_of_older_versions_is_zero_in_the_last_step(
    schedule: str, expected: dict[int, float]
) -> None:
    config = _config(schedule=schedule, zero_at_last_step=True)
    assert {s: lr_factor(s, config) for s in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_lr_factor_ends_at_the_smallest_ratio(schedule: str) -> None:
    config = _config(schedule=schedule, min_lr_ratio=0.1, steps=99)
    # It would be reached one step after the last: 1 / 80 of the way before, and less by cosine.
    assert 0.1 < lr_factor(99, config) <= 0.1 + 0.9 / 80 + 1e-12
    assert lr_factor(60, config) == pytest.approx(0.55)  # 0.1 + 0.9 / 2


def test_lr_factor_of_wsd_is_level_and_falls_in_a_straight_line_at_the_end() -> None:
    config = _config(schedule="wsd", decay_steps=19, min_lr_ratio=0.2)
    factors = [lr_factor(step, config) for step in range(1, 101)]
    assert factors[18:81] == [19 / 20, *[1.0] * 62]  # step 19 of the warm-up, steps 20 to 81
    # 0.2 would be reached at step 101, in 20 equal parts of 0.8 / 20.
    assert factors[81:] == pytest.approx([1 - 0.04 * k for k in range(1, 20)], abs=1e-12)
    assert stable_end(config) == 81


def test_wsd_without_a_stable_part_rises_and_falls_without_a_jump() -> None:
    config = _config(schedule="wsd", warmup_steps=60, decay_steps=70, steps=100)
    factors = [lr_factor(step, config) for step in range(1, 101)]
    assert factors == [min(k / 60, 1 - max(0, k - 30) / 71) for k in range(1, 101)]
    assert 0 < factors[-1] < factors[45]


@pytest.mark.parametrize("decay", [0, 100])
def test_runs_of_one_part_have_no_stable_end(decay: int) -> None:
    assert stable_end(_config(schedule="wsd", decay_steps=decay)) is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    # The middle of both; with a longer budget the share that is done is smaller than it was.
    [(0.2, 0.4, 30.0), (0.5, 0.3, 30.0), (0.0, 0.01, 1.0)],
)
def test_position_of_a_step_is_its_middle(before: float, after: float, expected: float) -> None:
    assert position(before, after, _config()) == pytest.approx(expected)


@pytest.mark.parametrize("d_model", [512, 4096])
def test_lr_factor_noam_is_vaswanis_up_to_a_constant(d_model: int) -> None:
    # Vaswani et al. 2017, eq. 3: d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)
    warmup = 4000
    config = ResolvedTraining(steps=100_000, warmup_steps=warmup, schedule="noam")
    ratios = {
        d_model**-0.5 * min(step**-0.5, step * warmup**-1.5) / lr_factor(step, config)
        for step in (1, 2, 777, 3999, 4000, 4001, 20_000, 100_000)
    }
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-12)
    assert max(ratios) == pytest.approx((d_model * warmup) ** -0.5, rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lr_factor_warmup_of_one_step_starts_at_the_peak(schedule: str) -> None:
    assert lr_factor(1, _config(schedule=schedule, warmup_steps=1)) == 1.0


@pytest.mark.parametrize("warmup", [0, 1, 4])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_lr_factor_falls_as_that_of_transformers(schedule: str, warmup: int) -> None:
    make = getattr(transformers, f"get_{schedule}_schedule_with_warmup")
    # Its steps count from 0, and so does its peak.
    peak = max(0, warmup - 1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = make(optimizer, peak, 10)
    config = _config(schedule=schedule, warmup_steps=warmup, steps=10)
    for step in range(1, 11):
        if step > peak:
            assert lr_factor(step, config) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
            assert lr_factor(step, config) > 0
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lr_factor_all_warmup_ends_at_the_peak(schedule: str) -> None:
    config = _config(schedule=schedule, warmup_steps=100)
    assert [lr_factor(50, config), lr_factor(100, config)] == [0.5, 1.0]


def _net() -> nn.Module:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    net[3].weight.requires_grad_(False)
    return net


def adamw(net: nn.Module, settings: ResolvedTraining) -> torch.optim.Optimizer:
    (made,) = optimizers(net, settings)
    assert isinstance(made, torch.optim.AdamW)
    return made


def test_adamw_decays_matrices_and_not_vectors() -> None:
    net = _net()
    optimizer = adamw(net, _config(weight_decay=0.3, lr=0.5))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    trained = {name: decay.get(id(p)) for name, p in net.named_parameters()}
    assert trained == {
        "0.weight": 0.3, "1.weight": 0.3, "1.bias": 0.0, "2.weight": 0.0, "2.bias": 0.0,
        "3.weight": None, "3.bias": 0.0,
    }  # fmt: skip
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for p in net.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    optimizer.step()
    for name, p in net.named_parameters():
        # Without a gradient only the decay acts, once the learning rate: 1 - 0.5 * 0.3.
        torch.testing.assert_close(p.detach(), before[name] * (0.85 if trained[name] else 1.0))


def test_adamw_uses_the_recipes_settings() -> None:
    optimizer = adamw(_net(), _config(lr=0.02, beta1=0.8, beta2=0.95, adam_eps=1e-5))
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.02, (0.8, 0.95), 1e-5)


def test_adamw_of_matrices_alone_has_no_empty_group() -> None:
    optimizer = adamw(nn.Linear(3, 3, bias=False), _config())
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]


def test_adamw_equals_torchs_unfused_loop() -> None:
    nets = [_net(), _net()]
    config = _config(lr=0.05, weight_decay=0.1, beta1=0.8, beta2=0.9, adam_eps=1e-6)
    ours = adamw(nets[0], config)
    plain = [p for p in nets[1].parameters() if p.requires_grad]
    theirs = torch.optim.AdamW(
        [
            {"params": [p for p in plain if p.ndim == 2], "weight_decay": 0.1},
            {"params": [p for p in plain if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=0.05, betas=(0.8, 0.9), eps=1e-6, fused=False, foreach=False,
    )  # fmt: skip
    for step in range(1, 11):
        words = torch.randint(0, 11, (16,))
        target = torch.randn(16, 2)
        for net, optimizer in zip(nets, (ours, theirs), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * lr_factor(step, config)
            optimizer.zero_grad()
            (net(words) - target).square().mean().backward()
            optimizer.step()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        # Ten steps in float32, summed in another order.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
