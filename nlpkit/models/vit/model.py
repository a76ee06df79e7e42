"""ViT (Dosovitskiy et al. 2020, arXiv 2010.11929) over packed images, in transformers' layout.

An image is a sequence: a class token, then its patches, each through one linear layer, with learned
positions. Pre-norm layers and a last norm follow; a task reads the state of the class token.
N tokens of the pack, S images, C hidden_size, P numbers of a patch (channels, rows, columns).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Settings, State, Values
from nlpkit.models.formats.encoder_format import ENCODER
from nlpkit.models.layers import encoder, packs
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.encoder import ACTIVATIONS
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.packs import Dropout, dropout
from nlpkit.models.vit import Config

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = {
    "image_classification": TaskHead("ViTForImageClassification", "classifier"),
    # The head of the paper's pretraining has a hidden layer (sec. 3.1), that of transformers'
    # classifier has none. So the hidden layer is saved as the pooler of ViTModel, and the last one
    # under a name that the classifier does not read.
    "image_classification_mlp": TaskHead.of_two("ViTModel", "mlp_head", "vit.pooler.dense"),
}


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: Config):
        super().__init__()
        width, inside = config.hidden_size, config.intermediate_size
        self.heads, self.drop = config.num_heads, Dropout(config.dropout)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.attention_norm = nn.LayerNorm(width, config.norm_eps)
        self.query = nn.Linear(width, width, config.qkv_bias)
        self.key = nn.Linear(width, width, config.qkv_bias)
        self.value = nn.Linear(width, width, config.qkv_bias)
        self.project = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, config.norm_eps)
        self.up = nn.Linear(width, inside)
        self.down = nn.Linear(inside, width)

    def forward(self, x: Tensor, attend: attention.Attend) -> Tensor:
        """Return (N, C) from (N, C)."""
        inner = self.attention_norm(x)
        layers = self.query, self.key, self.value
        q, k, v = (layer(inner).unflatten(1, (self.heads, -1)) for layer in layers)
        seen = self.project(attend(q, k, v).flatten(1))
        x = x + self.drop(seen)
        added = self.down(self.activation(self.up(self.mlp_norm(x))))
        return x + self.drop(added)


class Model(nn.Module):
    """The encoder; a task puts its own layer on the state of the class token."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        self.config, self.backend = config, backend
        width, (rows, columns) = config.hidden_size, config.patch_shape
        self.patch = nn.Linear(config.num_channels * rows * columns, width)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.position_embedding = nn.Parameter(torch.empty(1, config.max_positions, width))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.attention_tensors = AttentionTensors(
            config.kinds, config.num_layers, config.num_heads, width // config.num_heads
        )
        self.norm = nn.LayerNorm(width, config.norm_eps)
        pooled = config.pooler_output_size or width
        self.pooler = nn.Linear(width, pooled) if config.pooler else None
        self.attention_choice = ""  # backends with their reasons, for the log
        encoder.initialize(self.named_parameters(), config.init_std)

    def forward(self, lengths: Sequence[int], patches: Tensor) -> Tensor:
        """Return the last hidden states (N, C) of a pack of images of these `lengths`.

        The first row of each image in `patches` (N, P) is the place of the class token.

        Raises:
            ValueError: an image has more or fewer patches than the model.
        """
        config = self.config
        if wrong := next((n for n in lengths if n != config.max_positions), None):
            raise ValueError(
                f"an image of {wrong - 1} patches; the model reads {config.num_patches}"
            )
        layout = attention.layout_of(lengths, patches.device)
        kinds = self.attention_tensors
        heads = kinds.heads_like(self.patch.weight, config.attention_dropout, self.backend)
        attends = kinds.prepare(heads, layout)
        self.attention_choice = attention.reasons(attends)
        is_class = (layout.positions == 0)[:, None]
        embedded = self.patch(patches.to(self.patch.weight.dtype))
        x = torch.where(is_class, self.class_token[0].to(embedded.dtype), embedded)
        x = x + F.embedding(layout.positions, self.position_embedding[0])
        x = dropout(x, config.dropout, self.training)
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, attend)
        return self.norm(x)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each image in a task: its class token's state."""
        return packs.first_states(hidden, lengths)

    def pooled(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, pooler_output_size), what transformers' ViTModel calls its pooler output."""
        assert self.pooler is not None
        activation = {**ACTIVATIONS, "tanh": torch.tanh}[self.config.pooler_act]
        return activation(self.pooler(self.summary(hidden, lengths)))


_CONVOLUTION = "patch_convolution"  # stands for `patch.weight`, which is 4-dimensional there


def _join(config: Config, state: State) -> State:
    """Return the state dict with the layer of the patches as transformers' convolution."""
    if "patch.weight" not in state:
        return state
    rest = {name: tensor for name, tensor in state.items() if name != "patch.weight"}
    shape = (config.num_channels, *config.patch_shape)
    return {**rest, _CONVOLUTION: state["patch.weight"].unflatten(1, shape)}


def _split(config: Config, settings: Settings, state: State) -> State:
    if _CONVOLUTION not in state:
        return state
    rest = {name: tensor for name, tensor in state.items() if name != _CONVOLUTION}
    return {**rest, "patch.weight": state[_CONVOLUTION].flatten(1)}


def _more_settings(config: Config) -> Values:
    # transformers' config.json does not say whether there is a pooler.
    width = config.pooler_output_size or config.hidden_size
    return {"nlpkit": {"pooler": config.pooler}, "pooler_output_size": width}


def _read_config(settings: Settings, sizes: Values) -> Values:
    width = settings.get("pooler_output_size")
    own = settings.get("nlpkit") or {}
    there = "ViTModel" in (settings.get("architectures") or ())
    return sizes | {
        "pooler": bool(own.get("pooler", there)),
        "pooler_output_size": None if width == sizes["hidden_size"] else width,
    }


_OURS, _THEIRS = "layers.{num_layers}", "vit.encoder.layer.{num_layers}"
_LAYER = {
    "attention_norm": "layernorm_before",
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "project": "attention.output.dense",
    "mlp_norm": "layernorm_after",
    "up": "intermediate.dense",
    "down": "output.dense",
}
FORMAT = HfFormat(
    architecture="ViTModel",
    pipeline="image-feature-extraction",
    body="vit.",
    names={
        "class_token": "vit.embeddings.cls_token",
        "position_embedding": "vit.embeddings.position_embeddings",
        _CONVOLUTION: "vit.embeddings.patch_embeddings.projection.weight",
        "patch.bias": "vit.embeddings.patch_embeddings.projection.bias",
        "attention_tensors": "attention_tensors",
        **{f"{_OURS}.{ours}": f"{_THEIRS}.{theirs}" for ours, theirs in _LAYER.items()},
        "norm": "vit.layernorm",
        "pooler": "vit.pooler.dense",
    },
    # ViTModel may be saved without a pooler.
    optional=("pooler",),
    # Without `pooler`, it is not read; the mask token and the decoder are those of
    # ViTForMaskedImageModeling.
    ignored=("pooler", "mask_token", "decoder"),
    sizes={
        **{ours: theirs for ours, theirs in ENCODER.sizes.items() if ours in Config.model_fields},
        "image_size": "image_size",
        "patch_size": "patch_size",
        "num_channels": "num_channels",
        "qkv_bias": "qkv_bias",
        "pooler_act": "pooler_act",
    },
    # What transformers assumes where a config.json says nothing.
    defaults={
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "hidden_act": "gelu",
        "qkv_bias": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
        "pooler_act": "tanh",
    },
    fixed={"is_causal": False},
    # Since transformers 5; on disk it keeps the names of `names`.
    in_memory={
        "encoder.layer.": "layers.",
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    },
    more_settings=_more_settings,
    read_config=_read_config,
    join=_join,
    split=_split,
)
