"""The original Transformer (Vaswani et al. 2017, arXiv:1706.03762) over packs of pairs.

Post-norm layers, norm(x + sub(x)), without a norm after the last one; one table, times sqrt(C), for
sources, targets and the output, or another one for sources with a vocabulary of their own. It is
`torch.nn.Transformer` without that model's two last norms, and `MarianMTModel` of transformers,
whose layout checkpoints have. As in tensor2tensor and Marian, the sines of a position stand before
its cosines; the paper alternates them.

N tokens of the targets, M of the sources, C hidden_size, V vocabulary.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.contracts.format import Settings, State, Values
from nlpkit.contracts.request import Layout
from nlpkit.models.formats import post_norm_format
from nlpkit.models.formats.post_norm_format import POSITIONS, POST_NORM
from nlpkit.models.layers import post_norm
from nlpkit.models.layers.embeddings import sinusoids
from nlpkit.models.layers.encoder_decoder import EncoderDecoder
from nlpkit.models.layers.packs import dropout
from nlpkit.models.transformer import Config

LORA_TARGETS = post_norm.LORA_TARGETS


class Model(EncoderDecoder):
    """The Transformer with its output table."""

    config: Config
    source_embedding: nn.Parameter | None

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend, block=partial(post_norm.Block, config))
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
_TARGETS = "target_embedding"  # the table of the targets, where that of the sources is another one


def _more_settings(config: Config) -> Values:
    more = post_norm_format.more_settings(config)
    return more | {
        _SHARED: config.source_vocab_size is None,
        "nlpkit": {"positions": config.positions, **more["nlpkit"]},
    }


def _read_settings(settings: Settings, sizes: Values) -> Values:
    return post_norm_format.read_settings(settings, sizes) | {
        "positions": settings.get("nlpkit", {}).get("positions", "sinusoidal"),
        "source_vocab_size": None if settings.get(_SHARED, True) else settings["vocab_size"],
    }


def _join(config: Config, state: State) -> State:
    rest = dict(post_norm_format.join(config, state))
    if config.source_vocab_size is not None:
        rest[_TARGETS] = rest.pop("token_embedding")
    return rest


def _split(config: Config, settings: Settings, state: State) -> State:
    rest = dict(post_norm_format.split(config, settings, state))
    targets = rest.pop(_TARGETS, None)
    if config.source_vocab_size is not None and targets is not None:
        rest["token_embedding"] = targets
    return rest


FORMAT = replace(
    POST_NORM,
    architecture="MarianMTModel",
    names={
        **POST_NORM.names,
        "source_embedding": "model.encoder.embed_tokens.weight",
        _TARGETS: "model.decoder.embed_tokens.weight",
    },
    ignored=(POSITIONS,),  # of sines and cosines
    sizes={**POST_NORM.sizes, "scale_embedding": "scale_embedding"},
    defaults={**POST_NORM.defaults, "scale_embedding": False},
    fixed={**POST_NORM.fixed, "normalize_embedding": False},
    more_settings=_more_settings,
    read_config=_read_settings,
    join=_join,
    split=_split,
)
