"""T5 (Raffel et al. 2020, arXiv:1910.10683) over packs of pairs, in the layout of transformers.

Pre-norm layers, x + sub(norm(x)), with a norm that only scales; no bias in any layer; scores
without the factor 1 / sqrt(D), but with a learned bias for each head and distance, which all layers
of a stack share and whose table the first layer owns on disk. Version 1.1 (Shazeer 2020,
arXiv:2002.05202) has gated feed-forward layers and an output table of its own.

N tokens of the targets, M of the sources, C hidden_size, H heads, D width of a head, V vocabulary.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Settings, State, Values
from nlpkit.contracts.request import Layout
from nlpkit.models.formats.hf_reading import check_fixed
from nlpkit.models.layers.encoder import ACTIVATIONS
from nlpkit.models.layers.encoder_decoder import Attention, EncoderDecoder
from nlpkit.models.layers.packs import Dropout, RMSNorm, dropout
from nlpkit.models.t5 import Config

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2


class FeedForward(nn.Module):
    """down(activation(up(x))), or down(activation(up(x)) · gate(x)) in version 1.1."""

    def __init__(self, config: Config):
        super().__init__()
        width, inside = config.hidden_size, config.intermediate_size
        self.drop, self.activation = Dropout(config.dropout), ACTIVATIONS[config.hidden_act]
        # Named apart, because the layer has another name on disk where there is a gate.
        self.up = None if config.gated else nn.Linear(width, inside, bias=False)
        self.gated_up = nn.Linear(width, inside, bias=False) if config.gated else None
        self.gate = nn.Linear(width, inside, bias=False) if config.gated else None
        self.down = nn.Linear(inside, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated_up is not None and self.gate is not None:
            inner = self.activation(self.gated_up(x)) * self.gate(x)
        else:
            assert self.up is not None
            inner = self.activation(self.up(x))
        return self.down(self.drop(inner))


class Block(nn.Module):
    """x + sub(norm(x)) for attention, in the decoder cross attention, and feed-forward."""

    def __init__(self, config: Config, is_decoder: bool):
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        sizes = (width, config.num_heads, config.num_heads * config.head_dim, False)
        self.drop = Dropout(config.dropout)
        self.attention_norm, self.attention = RMSNorm(width, eps), Attention(*sizes)
        if is_decoder:
            self.cross_norm, self.cross = RMSNorm(width, eps), Attention(*sizes)
        self.feed_norm, self.feed_forward = RMSNorm(width, eps), FeedForward(config)

    def forward(
        self,
        x: Tensor,
        attend: attention.Attend,
        cross: attention.Attend | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        """Return (N, C) from (N, C) and, in the decoder, the encoder's states (M, C)."""
        inner = self.attention_norm(x)
        x = x + self.drop(self.attention(inner, inner, attend))
        if cross is not None:
            x = x + self.drop(self.cross(self.cross_norm(x), source, cross))
        return x + self.drop(self.feed_forward(self.feed_norm(x)))


class LastNorm(RMSNorm):
    """The norm after a stack, with dropout."""

    def __init__(self, config: Config):
        super().__init__(config.hidden_size, config.norm_eps)
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(super().forward(x))


class Model(EncoderDecoder):
    """T5 with its output table."""

    config: Config
    scale = 1.0

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(
            config,
            vocab_size,
            backend,
            block=lambda is_decoder: Block(config, is_decoder),
            norm=lambda: LastNorm(config),
            own=config.encoder_attention,
        )
        self.make_output(vocab_size, config.hidden_size, tie=config.tie, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from normal distributions with torch's current generator, as T5 does.

        As scores have no factor 1 / sqrt(D), the queries' weights are smaller by it.
        """
        config = self.config
        width, inner = config.hidden_size, config.num_heads * config.head_dim
        stds = {
            # Differs from HF: an output table of its own has 1 / sqrt(C), as in t5x, so that logits
            # are near 1; with 1 the first loss is 50 nats.
            "token_embedding": 1.0,
            "query.weight": (width * config.head_dim) ** -0.5,
            "project.weight": inner**-0.5,
            "down.weight": config.intermediate_size**-0.5,
        }
        for name, parameter in self.named_parameters():
            if "norm" in name or "_tensors.layer_" in name:
                continue
            std = next((each for end, each in stds.items() if name.endswith(end)), width**-0.5)
            nn.init.normal_(parameter, std=config.init_factor * std)

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table is multiplied by, (M, C): smaller states where it is tied."""
        return hidden * self.config.hidden_size**-0.5 if self.config.tie else hidden

    def embed(self, ids: Tensor, layout: Layout, is_source: bool) -> Tensor:
        """Return the embeddings (N, C): one table for both stacks, and no positions."""
        words = F.embedding(ids, self.token_embedding)
        return dropout(words, self.config.dropout, self.training)


def _more_settings(config: Config) -> Values:
    # For transformers, `gated-gelu` is the tanh form.
    names = {"gelu_new": "gelu"} if config.gated else {}
    activation = names.get(config.hidden_act, config.hidden_act)
    return {
        "is_encoder_decoder": True,
        "num_layers": config.encoder_depth,
        "feed_forward_proj": f"gated-{activation}" if config.gated else activation,
        # transformers 5 ties what is equal, and divides the output's states by the second.
        "tie_word_embeddings": config.tie,
        "scale_decoder_outputs": config.tie,
        "nlpkit": {"attention_dropout": config.attention_dropout},
    }


def _read_settings(settings: Settings, sizes: Values) -> Values:
    kind = settings.get("feed_forward_proj", "relu")
    gate, _, name = kind.rpartition("-")
    activation = "gelu_new" if kind == "gated-gelu" else name
    if gate not in ("", "gated") or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(
            f"feed_forward_proj is {kind!r}; this family has NAME or gated-NAME of {known}"
        )
    # transformers reads these first, if they are there.
    check_fixed({"dense_act_fn": activation, "is_gated_act": gate == "gated"}, settings)
    notes = settings.get("nlpkit", {})
    depth = settings["num_layers"]
    tie = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    return sizes | {
        "encoder_layers": depth,
        "num_layers": settings.get("num_decoder_layers") or depth,
        "hidden_act": activation,
        "gated": gate == "gated",
        "tie": tie and settings.get("model_type") != "mt5",  # mT5 is version 1.1
        "attention_dropout": notes.get("attention_dropout", sizes["dropout"]),
    }


def _split(config: Config, settings: Settings, state: State) -> State:
    # transformers leaves the output table out where it is equal, as before training.
    if config.tie or "output_embedding" in state or "token_embedding" not in state:
        return state
    return {**state, "output_embedding": state["token_embedding"].clone()}


_ATTENTION = {"query": "q", "key": "k", "value": "v", "project": "o"}
_FEED_FORWARD = {"up": "wi", "gated_up": "wi_0", "gate": "wi_1", "down": "wo"}
# A part of a block and its norm, with transformers' name of the part and those of its layers.
_SELF = ("attention", "attention_norm", "SelfAttention", _ATTENTION)
_CROSS = ("cross", "cross_norm", "EncDecAttention", _ATTENTION)
_FEED = ("feed_forward", "feed_norm", "DenseReluDense", _FEED_FORWARD)


def _block(ours: str, theirs: str, *parts: tuple[str, str, str, dict[str, str]]) -> dict[str, str]:
    names = {}
    for number, (part, norm, their_part, layers) in enumerate(parts):
        place = f"{theirs}.layer.{number}"
        names[f"{ours}.{norm}"] = f"{place}.layer_norm"
        names |= {f"{ours}.{part}.{n}": f"{place}.{their_part}.{t}" for n, t in layers.items()}
    return names


_TABLE = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
FORMAT = HfFormat(
    architecture="T5ForConditionalGeneration",
    pipeline="text2text-generation",
    names={
        "token_embedding": "shared.weight",
        "output_embedding": "lm_head.weight",
        "encoder_norm": "encoder.final_layer_norm",
        "decoder_norm": "decoder.final_layer_norm",
        "encoder_tensors.shared_0_table": f"encoder.{_TABLE}",
        "attention_tensors.shared_0_table": f"decoder.{_TABLE}",
        "attention_tensors": "attention_tensors",  # of other kinds of attention
        **_block("encoder.{encoder_depth}", "encoder.block.{encoder_depth}", _SELF, _FEED),
        **_block("decoder.{num_layers}", "decoder.block.{num_layers}", _SELF, _CROSS, _FEED),
    },
    copies={
        "lm_head.weight": "token_embedding",
        "encoder.embed_tokens.weight": "token_embedding",
        "decoder.embed_tokens.weight": "token_embedding",
    },
    # A table that old versions of transformers saved and never used.
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias",),
    sizes={
        "hidden_size": "d_model",
        "num_layers": "num_decoder_layers",
        "num_heads": "num_heads",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "num_buckets": "relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance",
        "dropout": "dropout_rate",
        "norm_eps": "layer_norm_epsilon",
        "init_factor": "initializer_factor",
    },
    defaults={
        "num_decoder_layers": None,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "initializer_factor": 1.0,
    },
    fixed={"is_causal": None, "is_encoder_decoder": True},
    more_settings=_more_settings,
    read_config=_read_settings,
    split=_split,
)
