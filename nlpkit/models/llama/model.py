"""LLaMA, Mistral, Qwen2 and Qwen3 over packed sequences, in the layout of transformers.

Pre-norm blocks, x = x + sub(norm(x)), with RMS norms; rotary positions from 0 in every sequence;
SwiGLU; heads of keys and values that serve several heads of queries. The way through the blocks is
in `layers/stack.py`. N tokens of the pack, C hidden_size, H heads of queries, G of keys, D
width of a head.
"""

from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Settings, Values
from nlpkit.models.formats.hf_reading import check_fixed
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.packs import RMSNorm, select_rows
from nlpkit.models.layers.rotary import HeadNorm
from nlpkit.models.layers.rotary_config import find_rope, read_rope, write_rope
from nlpkit.models.layers.rotary_decoder import DEFAULTS, SIZES, RotaryDecoder
from nlpkit.models.llama import HAVE, Config

LORA_TARGETS = ("q_proj", "v_proj")  # as in peft
# transformers' models with a task's layer, of each variant.
TASK_HEADS = {
    "sequence_classification": TaskHead("ForSequenceClassification", "score", bias=False),
    "token_classification": TaskHead("ForTokenClassification", "score"),
    "question_answering": TaskHead("ForQuestionAnswering", "qa_outputs"),
}


class Attention(nn.Module):
    """Attention with grouped queries (Ainslie et al. 2023, sec. 2.2)."""

    def __init__(self, config: Config):
        super().__init__()
        width, self.width = config.hidden_size, config.width_per_head
        queries, keys = config.num_heads * self.width, config.key_heads * self.width
        bias = config.attention_bias
        self.q_proj = nn.Linear(width, queries, bias or config.variant == "qwen2")
        self.k_proj = nn.Linear(width, keys, bias or config.variant == "qwen2")
        self.v_proj = nn.Linear(width, keys, bias or config.variant == "qwen2")
        self.o_proj = nn.Linear(queries, width, bias)
        if config.variant == "qwen3":
            self.q_norm = HeadNorm(self.width, config.norm_eps)
            self.k_norm = HeadNorm(self.width, config.norm_eps)
        self.has_norms = config.variant == "qwen3"

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        parts = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (part.unflatten(1, (-1, self.width)) for part in parts)  # (N, H or G, D)
        if self.has_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.o_proj(select_rows(attend(q, k, v).flatten(1), rows))


class GatedFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202): down(silu(gate(x)) · up(x)), (N, C) from (N, C)."""

    def __init__(self, width: int, inside: int, bias: bool):
        super().__init__()
        self.gate_proj = nn.Linear(width, inside, bias)
        self.up_proj = nn.Linear(width, inside, bias)
        self.down_proj = nn.Linear(inside, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(_Gate.apply(self.gate_proj(x), self.up_proj(x)))


class _Gate(torch.autograd.Function):
    # Backward computes the activation again, because these tensors are the largest of a layer.

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate.requires_grad_()
            active = F.silu(gate)
        return *torch.autograd.grad(active, gate, grad * up), grad * active


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: Config):
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = RMSNorm(width, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = GatedFeedForward(width, config.intermediate_size, bias=config.mlp_bias)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        attended = self.self_attn(self.input_layernorm(x), attend, rows)
        x = select_rows(x, rows) + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(RotaryDecoder):
    """LLaMA with its language-model head."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend, tie=config.tie)
        norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.make_layers((Block(config) for _ in range(config.num_layers)), norm)
        self.reset_parameters()


_CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_BIASES = ("attention_bias", "mlp_bias")
_FULL, _NEAR = "full_attention", "sliding_attention"


def _more_settings(config: Config) -> Values:
    window = config.sliding_window
    settings: Values = {
        "architectures": [f"{_CLASSES[config.variant]}ForCausalLM"],
        "hidden_act": "silu",
        "num_key_value_heads": config.key_heads,
        "head_dim": config.width_per_head,
        **write_rope(config.rope),
    }
    if config.variant == "mistral":
        settings["sliding_window"] = window
    elif config.variant != "llama":
        full = config.num_layers if window is None else config.full_layers
        windows = {"use_sliding_window": window is not None, "max_window_layers": full}
        settings |= {"sliding_window": window, **windows}
    # Without an architecture, transformers does not open it as the family's.
    only_ours = {"passes": config.passes, "architectures": []}
    return settings if config.passes == 1 else settings | only_ours


def _read_settings(settings: Settings, sizes: Values) -> Values:
    check_fixed({"partial_rotary_factor": 1.0}, find_rope(settings))
    variant = settings["model_type"].removeprefix("nlpkit-")  # of a model that is only ours
    if sizes["head_dim"] is None and variant == "qwen3":
        sizes["head_dim"] = 128  # transformers' default
    # transformers ignores settings that the variant does not have.
    absent = {name: False for name in _BIASES if variant not in HAVE[name]}
    own = {"variant": variant, "rope": read_rope(settings), "passes": settings.get("passes", 1)}
    return sizes | absent | own | _read_windows(settings, variant)


def _read_windows(settings: Settings, variant: str) -> Values:
    """Return the window, and how many layers have none, of transformers' settings."""
    window: int | None = settings.get("sliding_window", 4096)
    if variant == "mistral":
        return {"sliding_window": window}
    if variant == "llama":
        return {}
    window = window if settings.get("use_sliding_window") else None
    layers, full = settings["num_hidden_layers"], settings.get("max_window_layers", 28)
    types = settings.get("layer_types")
    if types is not None:
        full = len([*takewhile(lambda each: each == _FULL, types)])
        near = layers - full if window is not None else 0
        if types != [_FULL] * (layers - near) + [_NEAR] * near:
            raise ValueError(
                f"layer_types is {types}; this family has {_FULL} in the first layers, and "
                f"{_NEAR} with use_sliding_window in the others"
            )
    if window is None or full >= layers:
        return {}
    return {"sliding_window": window, "full_layers": full}


FORMAT = HfFormat(
    architecture="LlamaForCausalLM",
    pipeline="text-generation",
    body="model.",
    bodies={
        f"{_CLASSES[variant]}ForQuestionAnswering": "transformer."
        for variant in ("llama", "qwen2", "qwen3")
    },
    names={
        "token_embedding": "model.embed_tokens.weight",
        "output_embedding": "lm_head.weight",
        "attention_tensors": "attention_tensors",
        "final_norm": "model.norm",
        "layers.{num_layers}": "model.layers.{num_layers}",
    },
    copies={"lm_head.weight": "token_embedding"},
    ignored=("rotary_emb.inv_freq",),  # saved by versions before 4.32
    sizes={
        **SIZES,
        "variant": "model_type",
        "num_key_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "norm_eps": "rms_norm_eps",
        "attention_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
    },
    defaults={
        **DEFAULTS,
        "num_key_value_heads": None,
        "head_dim": None,
        "attention_bias": False,
        "mlp_bias": False,
    },
    fixed={"is_causal": True, "hidden_act": "silu", "partial_rotary_factor": 1.0},
    bos_and_eos=True,
    more_settings=_more_settings,
    read_config=_read_settings,
)
