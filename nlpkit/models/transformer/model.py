"""The original Transformer (Vaswani et al. 2017, arXiv:1706.03762) over packs of pairs.

Post-norm layers, norm(x + sub(x)), without a norm after the last one; one table, times sqrt(C), for
sources, targets and the output, or another one for sources with a vocabulary of their own. It is
`torch.nn.Transformer` without that model's two last norms, and `MarianMTModel` of transformers,
whose layout checkpoints have. As in tensor2tensor and Marian, the sines of a position stand before
its cosines; the paper alternates them.

N tokens of the targets, M of the sources, C hidden_size, V vocabulary.
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.format import HfFormat, Settings, State, Values
from nlpkit.contracts.request import Layout
from nlpkit.models.layers import encoder
from nlpkit.models.layers.encoder_decoder import Attention, EncoderDecoder
from nlpkit.models.layers.packs import Dropout, dropout
from nlpkit.models.layers.positions import sinusoids
from nlpkit.models.transformer import Config

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
ACTIVATIONS = {**encoder.ACTIVATIONS, "swish": F.silu}


class Block(nn.Module):
    """norm(x + sub(x)) for attention, in the decoder cross attention, and feed-forward."""

    def __init__(self, config: Config, is_decoder: bool):
        super().__init__()
        width, inside = config.hidden_size, config.intermediate_size
        self.drop, self.activation = Dropout(config.dropout), ACTIVATIONS[config.hidden_act]
        self.attention = Attention(width, config.num_heads)
        self.attention_norm = nn.LayerNorm(width)
        if is_decoder:
            self.cross = Attention(width, config.num_heads)
            self.cross_norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inside), nn.Linear(inside, width)
        self.output_norm = nn.LayerNorm(width)

    def forward(
        self,
        x: Tensor,
        attend: attention.Attend,
        cross: attention.Attend | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        """Return (N, C) from (N, C) and, in the decoder, the encoder's states (M, C)."""
        x = self.attention_norm(x + self.drop(self.attention(x, x, attend)))
        if cross is not None:
            x = self.cross_norm(x + self.drop(self.cross(x, source, cross)))
        return self.output_norm(x + self.drop(self.down(self.activation(self.up(x)))))


class Model(EncoderDecoder):
    """The Transformer with its output table."""

    config: Config
    source_embedding: nn.Parameter | None

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(
            config,
            vocab_size,
            backend,
            block=lambda is_decoder: Block(config, is_decoder),
            norm=nn.Identity,
            own=AttentionChoice.of("full"),
        )
        width, rows = config.hidden_size, config.source_vocab_size
        own = None if rows is None else nn.Parameter(torch.empty(rows, width))
        self.register_parameter("source_embedding", own)
        if config.positions == "learned":
            self.source_positions = nn.Parameter(torch.empty(config.max_positions, width))
            self.target_positions = nn.Parameter(torch.empty(config.max_positions, width))
        self.make_output(vocab_size, width, tie=config.tie, bias=config.output_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights with torch's current generator as tensor2tensor does; set biases to 0.

        Matrices have Glorot's uniform distribution. The tables have N(0, 1 / C), so that the input
        times sqrt(C) and, with a norm before it, each logit have variance 1.
        """
        for name, parameter in self.named_parameters():
            if "_tensors." in name or ("norm" in name and name.endswith("weight")):
                continue
            if name.endswith(("embedding", "positions")):
                nn.init.normal_(parameter, std=self.config.hidden_size**-0.5)
            elif parameter.ndim >= 2:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def embed(self, ids: Tensor, layout: Layout, is_source: bool) -> Tensor:
        """Return the sum of the embeddings of tokens and of positions (N, C)."""
        own = self.source_embedding if is_source else None
        x = F.embedding(ids, self.token_embedding if own is None else own)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.hidden_size)
        table: Tensor
        if self.config.positions == "learned":
            table = self.source_positions if is_source else self.target_positions
        else:
            table = _sinusoids_on(*x.shape[1:], self.config.max_positions, x.device)
        x = x + F.embedding(layout.positions, table).to(x.dtype)
        return dropout(x, self.config.dropout, self.training)


@lru_cache(maxsize=4)
def _sinusoids_on(width: int, positions: int, device: torch.device) -> Tensor:
    """Return the table on a device; no buffer, because models are opened without memory first."""
    with torch.inference_mode(False):  # made while text is generated, it may be used in training
        return sinusoids(positions, width).to(device)


_SHARED = "share_encoder_decoder_embeddings"
_BIAS = "final_logits_bias"
_TARGETS = "target_embedding"  # the table of the targets, where that of the sources is another one
_POSITIONS = "embed_positions.weight"


def _more_settings(config: Config) -> Values:
    return {
        "is_encoder_decoder": True,
        "encoder_layers": config.encoder_depth,
        "encoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.intermediate_size,
        "activation_dropout": 0.0,
        "forced_eos_token_id": None,  # transformers' default is an id of the original vocabulary
        _SHARED: config.source_vocab_size is None,
        "nlpkit": {"positions": config.positions, "output_bias": config.output_bias},
    }


def _read_settings(settings: Settings, sizes: Values) -> Values:
    for name in ("attention_heads", "ffn_dim"):
        ours, theirs = settings[f"decoder_{name}"], settings[f"encoder_{name}"]
        if ours != theirs:
            raise ValueError(
                f"encoder_{name} is {theirs} and decoder_{name} {ours}; this family has the same"
            )
    if sizes["hidden_act"] == "silu":
        sizes["hidden_act"] = "swish"
    notes = settings.get("nlpkit", {})
    return sizes | {
        "encoder_layers": settings["encoder_layers"],
        "positions": notes.get("positions", "sinusoidal"),
        # A checkpoint of others may have a bias that is not 0.
        "output_bias": notes.get("output_bias", True),
        "source_vocab_size": None if settings.get(_SHARED, True) else settings["vocab_size"],
    }


def _join(config: Config, state: State) -> State:
    """Return the state dict with the bias in transformers' form, (1, V)."""
    table = state["token_embedding"]
    bias = state.get("token_bias", table.new_zeros(len(table)))
    rest = {name: tensor for name, tensor in state.items() if name != "token_bias"}
    if config.source_vocab_size is not None:
        rest[_TARGETS] = rest.pop("token_embedding")
    return {**rest, _BIAS: bias[None]}


def _split(config: Config, settings: Settings, state: State) -> State:
    """Return the state dict with our form of the bias, and the table of the targets."""
    rest = {name: tensor for name, tensor in state.items() if name not in (_BIAS, _TARGETS)}
    if config.source_vocab_size is not None and _TARGETS in state:
        rest["token_embedding"] = state[_TARGETS]
    return rest | ({"token_bias": state[_BIAS][0]} if config.output_bias and _BIAS in state else {})


_BLOCK = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.project": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "cross.query": "encoder_attn.q_proj",
    "cross.key": "encoder_attn.k_proj",
    "cross.value": "encoder_attn.v_proj",
    "cross.project": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
    "up": "fc1",
    "down": "fc2",
    "output_norm": "final_layer_norm",
}
_SIDES = {"encoder.{encoder_depth}": "model.encoder.layers.{encoder_depth}",
          "decoder.{num_layers}": "model.decoder.layers.{num_layers}"}  # fmt: skip
FORMAT = HfFormat(
    architecture="MarianMTModel",
    pipeline="text2text-generation",
    body="model.",
    names={
        "token_embedding": "model.shared.weight",
        "source_embedding": "model.encoder.embed_tokens.weight",
        _TARGETS: "model.decoder.embed_tokens.weight",
        "output_embedding": "lm_head.weight",
        "token_bias": _BIAS,
        _BIAS: _BIAS,
        "source_positions": f"model.encoder.{_POSITIONS}",
        "target_positions": f"model.decoder.{_POSITIONS}",
        "attention_tensors": "attention_tensors",
        "encoder_tensors": "encoder_tensors",
        **{
            f"{ours}.{name}": f"{theirs}.{their}"
            for ours, theirs in _SIDES.items()
            for name, their in _BLOCK.items()
            if "decoder" in ours or "cross" not in name
        },
    },
    copies={
        "lm_head.weight": "token_embedding",
        "model.encoder.embed_tokens.weight": "token_embedding",
        "model.decoder.embed_tokens.weight": "token_embedding",
    },
    optional=(_BIAS,),
    ignored=(_POSITIONS,),  # of sines and cosines
    sizes={
        "hidden_size": "d_model",
        "num_layers": "decoder_layers",
        "num_heads": "decoder_attention_heads",
        "intermediate_size": "decoder_ffn_dim",
        "max_positions": "max_position_embeddings",
        "hidden_act": "activation_function",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "scale_embedding": "scale_embedding",
        "tie": "tie_word_embeddings",
    },
    defaults={"scale_embedding": False, "tie_word_embeddings": True},
    fixed={"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False},
    more_settings=_more_settings,
    read_config=_read_settings,
    join=_join,
    split=_split,
)
