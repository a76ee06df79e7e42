"""BART (Lewis et al. 2020, arXiv:1910.13461) over packs of pairs, in the layout of transformers.

The blocks of the original Transformer, with GELU (sec. 2.1); learned positions and a norm on the
embeddings of each stack, as in RoBERTa. The first token has row 2 of a table of positions: in
fairseq the rows before are those of padding.

N tokens, C hidden_size.
"""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.contracts.request import Layout
from nlpkit.models.bart import Config
from nlpkit.models.formats.post_norm_format import POST_NORM
from nlpkit.models.layers import post_norm
from nlpkit.models.layers.encoder import initialize
from nlpkit.models.layers.encoder_decoder import EncoderDecoder
from nlpkit.models.layers.packs import dropout

LORA_TARGETS = post_norm.LORA_TARGETS


class Model(EncoderDecoder):
    """BART with its output table."""

    config: Config

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend, block=partial(post_norm.Block, config))
        width, rows = config.hidden_size, config.position_rows
        self.source_positions = nn.Parameter(torch.empty(rows, width))
        self.target_positions = nn.Parameter(torch.empty(rows, width))
        self.source_norm, self.target_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.make_output(vocab_size, width, tie=config.tie, bias=config.output_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from N(0, init_std) with torch's current generator; set biases to 0."""
        initialize(self.named_parameters(), self.config.init_std)

    def embed(self, ids: Tensor, layout: Layout, is_source: bool) -> Tensor:
        """Return the normed sum of the embeddings of tokens and of positions (N, C)."""
        table = self.source_positions if is_source else self.target_positions
        norm = self.source_norm if is_source else self.target_norm
        words = F.embedding(ids, self.token_embedding)
        x = norm(words + F.embedding(layout.positions + 2, table))
        return dropout(x, self.config.dropout, self.training)


FORMAT = replace(
    POST_NORM,
    architecture="BartForConditionalGeneration",
    names={
        **POST_NORM.names,
        "source_norm": "model.encoder.layernorm_embedding",
        "target_norm": "model.decoder.layernorm_embedding",
    },
    sizes={**POST_NORM.sizes, "init_std": "init_std"},
    defaults={**POST_NORM.defaults, "init_std": 0.02},
    fixed={
        **POST_NORM.fixed,
        "normalize_embedding": True,
        "scale_embedding": False,
        "static_position_embeddings": False,
    },
)
