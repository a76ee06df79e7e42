"""Rotary positions against transformers' functions, and their settings in config.json."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from nlpkit.contracts.request import Layout
from nlpkit.models.layers.rotary import HeadNorm, Rotation, frequencies
from nlpkit.models.layers.rotary_config import Rope, read_rope, write_rope
from nlpkit.models.llama.model import GatedFeedForward

WIDTH, HEADS = 16, 3
LONG = {"factor": 4.0, "original_max_position_embeddings": 64}
# As released models, and what else transformers reads.
SCALINGS: dict[str, Any] = {
    "default": None,
    "linear": {"type": "linear", "factor": 2.5},  # the name of the kind before 4.43
    "llama3": {
        "rope_type": "llama3", **LONG, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "yarn": {"rope_type": "yarn", **LONG},
    "yarn of Qwen2.5": {"type": "yarn", **LONG, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn of DeepSeek": {"type": "yarn", **LONG, "mscale": 0.7, "mscale_all_dim": 1.0},
    "yarn of gpt-oss": {"rope_type": "yarn", **LONG, "truncate": False},
    "yarn with its factor": {"rope_type": "yarn", **LONG, "attention_factor": 1.5},
}  # fmt: skip


def _settings(name: str, **more: Any) -> dict[str, Any]:
    scaling = SCALINGS[name] and dict(SCALINGS[name])
    sizes = {"hidden_size": WIDTH * HEADS, "num_attention_heads": HEADS}
    return {**sizes, "max_position_embeddings": 256, "rope_scaling": scaling, **more}


def _turned(settings: dict[str, Any], x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    theirs = modeling_llama.LlamaRotaryEmbedding(LlamaConfig(**settings))
    cos, sin = theirs(x, positions[None])
    q, _ = modeling_llama.apply_rotary_pos_emb(x[None], x[None], cos, sin, unsqueeze_dim=2)
    return q[0]


@pytest.mark.parametrize("theta", [10000, 500000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_turned_heads_equal_transformers(name: str, theta: float) -> None:
    settings = _settings(name, rope_theta=theta)
    rope = Rope(**read_rope(settings))
    layout = Layout([200, 5, 30], past=[0, 100, 7])
    x = torch.randn(235, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    ours = Rotation(rope, WIDTH, layout.positions, x.dtype)(x)
    expected = _turned(settings, x, layout.positions)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)
    weights = torch.randn_like(x)
    found, right = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (ours, expected))
    torch.testing.assert_close(found, right, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", SCALINGS)
def test_settings_come_back_and_transformers_reads_them_alike(name: str) -> None:
    settings = _settings(name, rope_theta=10000.0)
    rope = Rope(**read_rope(settings))
    written = _settings("default") | write_rope(rope)
    assert Rope(**read_rope(written)) == rope
    new = LlamaConfig(**settings).to_dict()  # as transformers 5 writes them
    assert Rope(**read_rope(new)) == rope
    x, positions = torch.randn(20, HEADS, WIDTH), torch.arange(20) * 11
    expected = _turned(settings, x, positions)
    torch.testing.assert_close(_turned(written, x, positions), expected, atol=1e-6, rtol=0)


def test_some_channels_alone_turn_as_in_gpt_neox() -> None:
    config = GPTNeoXConfig(hidden_size=WIDTH * HEADS, num_attention_heads=HEADS, rotary_pct=0.25)
    x, positions = torch.randn(9, HEADS, WIDTH), torch.arange(9) + 4
    cos, sin = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(x, positions[None])
    turned = [y[None].transpose(1, 2) for y in (x, x)]
    expected, _ = modeling_gpt_neox.apply_rotary_pos_emb(*turned, cos, sin)
    ours = Rotation(Rope(), WIDTH // 4, positions, x.dtype)(x)
    torch.testing.assert_close(ours, expected[0].transpose(0, 1), atol=1e-6, rtol=0)
    assert torch.equal(ours[..., WIDTH // 4 :], x[..., WIDTH // 4 :])


def test_scores_depend_on_distances_alone() -> None:
    # Su et al. 2021, eq. 16: <R_m q, R_n k> is a function of m - n.
    q, k = torch.randn(2, 1, 1, WIDTH, dtype=torch.float64)

    def score(m: int, n: int) -> float:
        turn = Rotation(Rope(), WIDTH, torch.tensor([m, n]), q.dtype)
        return float((turn(torch.cat([q, q]))[0] * turn(torch.cat([k, k]))[1]).sum())

    assert score(3, 1) == pytest.approx(score(12, 10), abs=1e-6)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-3)


def test_first_frequency_is_one_and_the_last_that_of_theta() -> None:
    # theta^(-2i/R), i from 0; the last of 16 channels is i = 7.
    found = frequencies(Rope(theta=100.0), 16, torch.device("cpu"))
    torch.testing.assert_close(found[[0, 7]], torch.tensor([1.0, 100 ** (-14 / 16)]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "linear"}, "kind linear needs factor"),
        ({"kind": "yarn", "factor": 2.0}, "kind yarn needs original_positions"),
        ({"factor": 2.0}, "factor: rotary positions of kind default do not have it"),
        ({"kind": "linear", "factor": 2.0, "beta_fast": 1.0}, "beta_fast: rotary .* linear do"),
        (
            {"kind": "llama3", "factor": 2.0, "original_positions": 8, "high_freq_factor": 1.0},
            "high_freq_factor must be greater",
        ),
    ],
)
def test_settings_that_do_not_fit_the_type_are_named(settings: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Rope(**settings)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "axial"])
def test_unknown_type_is_named(kind: str) -> None:
    with pytest.raises(ValueError, match=f"rope_type is '{kind}'; this family has default, linear"):
        read_rope({"rope_scaling": {"rope_type": kind, "factor": 2.0}})


def test_norm_of_heads_and_gated_layers_equal_transformers() -> None:
    x = torch.randn(5, HEADS, WIDTH)
    norm, theirs = HeadNorm(WIDTH, 1e-6), modeling_llama.LlamaRMSNorm(WIDTH, 1e-6)
    torch.nn.init.normal_(norm.weight)
    theirs.load_state_dict(norm.state_dict())
    torch.testing.assert_close(norm(x), theirs(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x.bfloat16()).dtype == torch.bfloat16
    config = LlamaConfig(**_settings("default"), intermediate_size=40, mlp_bias=True)
    ours, x = GatedFeedForward(HEADS * WIDTH, 40, bias=True), x.flatten(1)
    other = modeling_llama.LlamaMLP(config)
    other.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), other(x))
