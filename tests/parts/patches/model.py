"""ViT over packs of images, in the layout of transformers' `vit`: pre-norm blocks, a class token.

N tokens of the pack, C hidden_size, H heads, P numbers of a patch (channels, rows, columns).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.models.compute import compute_dtype
from nlpkit.models.flops import visible_pairs
from nlpkit.models.hf_format import HfFormat, Settings, State
from tests.parts.patches import Config

LORA_TARGETS = ("query", "value")


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: Config):
        super().__init__()
        width, inside = config.hidden_size, config.intermediate_size
        self.heads, self.dropout = config.num_heads, config.dropout
        self.norm_before = nn.LayerNorm(width, config.norm_eps)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.norm_after = nn.LayerNorm(width, config.norm_eps)
        self.up, self.down = nn.Linear(width, inside), nn.Linear(inside, width)

    def forward(self, x: Tensor, attend: attention.Attend) -> Tensor:
        """Return (N, C) from (N, C)."""
        inner = self.norm_before(x)
        q, k, v = (
            layer(inner).unflatten(1, (self.heads, -1))
            for layer in (self.query, self.key, self.value)
        )
        x = x + self._dropped(self.output(attend(q, k, v).flatten(1)))
        return x + self._dropped(self.down(F.gelu(self.up(self.norm_after(x)))))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Model(nn.Module):
    """The encoder; a task puts its own layer on the state of the class token."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        self.config, self.backend = config, backend
        width = config.hidden_size
        self.patch = nn.Linear(config.channels * config.patch_size**2, width)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.position_embedding = nn.Parameter(torch.empty(1, 1 + config.num_patches, width))
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(width, config.norm_eps)
        self.attention_choice = ""
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=config.init_std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, lengths: Sequence[int], patches: Tensor) -> Tensor:
        """Return the last hidden states (N, C).

        Args:
            patches: (N, P); the first row of each image is the place of the class token.
        """
        config = self.config
        layout = attention.layout_of(lengths, patches.device)
        attends = attention.prepare_layers(
            config.kinds,
            config.num_layers,
            lambda choice: attention.prepare(
                choice,
                layout,
                heads=config.num_heads,
                head_dim=config.hidden_size // config.num_heads,
                dtype=compute_dtype(self.patch.weight),
                device=patches.device,
                training=self.training,
                backend=self.backend,
            ),
        )
        self.attention_choice = attention.reasons(attends)
        is_class = (layout.positions == 0)[:, None]
        x = torch.where(is_class, self.class_token[0], self.patch(patches))
        x = x + self.position_embedding[0][layout.positions]
        x = F.dropout(x, config.dropout, self.training)
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, attend)
        return self.norm(x)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C): the state of the class token of each image."""
        sizes = torch.tensor(lengths, device=hidden.device)
        return hidden[sizes.cumsum(0) - sizes]


def flops(config: Config, vocab_size: int, lengths: Sequence[int], targets: int) -> float:
    """Return the multiplications and additions of one training step on a pack."""
    width = config.hidden_size
    weights = config.num_layers * (4 * width**2 + 2 * width * config.intermediate_size)
    weights += config.channels * config.patch_size**2 * width
    return 3 * 2 * (sum(lengths) * weights + 2 * width * visible_pairs(config, lengths))


def _join(config: Config, state: State) -> State:
    """Return the state with the patches' layer as the convolution that transformers has."""
    size = (config.channels, config.patch_size, config.patch_size)
    found = dict(state)
    if "patch.weight" in found:
        found["patch.weight"] = found["patch.weight"].unflatten(1, size)
    return found


def _split(config: Config, settings: Settings, state: State) -> State:
    found = dict(state)
    if "patch.weight" in found:
        found["patch.weight"] = found["patch.weight"].flatten(1)
    return found


_OURS, _THEIRS = "layers.{num_layers}", "vit.encoder.layer.{num_layers}"
_LAYER = {
    "norm_before": "layernorm_before",
    **{name: f"attention.attention.{name}" for name in ("query", "key", "value")},
    "output": "attention.output.dense",
    "norm_after": "layernorm_after",
    "up": "intermediate.dense",
    "down": "output.dense",
}
FORMAT = HfFormat(
    architecture="ViTModel",
    body="vit.",
    names={
        "class_token": "vit.embeddings.cls_token",
        "position_embedding": "vit.embeddings.position_embeddings",
        "patch": "vit.embeddings.patch_embeddings.projection",
        **{f"{_OURS}.{ours}": f"{_THEIRS}.{theirs}" for ours, theirs in _LAYER.items()},
        "norm": "vit.layernorm",
    },
    sizes={
        "image_size": "image_size",
        "patch_size": "patch_size",
        "channels": "num_channels",
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "norm_eps": "layer_norm_eps",
        "dropout": "hidden_dropout_prob",
        "init_std": "initializer_range",
    },
    ignored=("classifier", "pooler"),
    join=_join,
    split=_split,
)
