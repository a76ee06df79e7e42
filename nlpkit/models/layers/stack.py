"""A model of blocks: a table of tokens, blocks that each have their attention, a norm, an output.

GPT-1, GPT-2 and GPT-Neo (`layers/gpt.py`) add learned positions to the tokens; LLaMA and GPT-NeoX
(`layers/rotary_decoder.py`) and ModernBERT (`layers/modernbert.py`) turn queries and keys.
N tokens of the pack, M selected rows, C hidden_size, V vocabulary.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.models.config import ModelConfig
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.encoder import initialize
from nlpkit.models.layers.output_head import OutputHead
from nlpkit.models.layers.packs import layout_within


class Stack(OutputHead):
    """The model; a family calls `make_layers`, then `reset_parameters`, when it is built."""

    score_scale: float | None = None  # of queries times keys; None: 1 / sqrt(width of a head)

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        backend: str,
        *,
        tie: bool = True,
        bias: bool = False,
    ):
        super().__init__()
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, config.hidden_size))
        self.make_output(vocab_size, config.hidden_size, tie=tie, bias=bias)

    def make_layers(self, blocks: Iterable[nn.Module], final_norm: nn.Module) -> None:
        """Add blocks, which are called as `block(x, attend, rows)`, and what is behind them."""
        config = self.config
        self.layers = nn.ModuleList(blocks)
        self.attention_tensors = AttentionTensors(
            config.kinds, config.num_layers, config.num_heads, config.width_per_head
        )
        self.final_norm = final_norm

    def reset_parameters(self) -> None:
        """Draw weights from N(0, std) with torch's current generator; set biases to 0."""
        initialize(self.named_parameters(), self.initial_std)

    def initial_std(self, name: str) -> float:
        """Return the standard deviation of the initial values of a weight."""
        return float(self.config.setting("init_std"))

    def fill_fields(self, fields: Mapping[str, Tensor], input_ids: Tensor) -> Mapping[str, Tensor]:
        """Return fields (N,) of the tokens with those that the objective does not give."""
        return fields

    def embed(self, input_ids: Tensor, places: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        """Return the first states (N, C) of tokens (N,) at `places` (N,) of their sequences."""
        return F.embedding(input_ids, self.token_embedding)

    def turn(
        self, attends: list[attention.Attend], places: Tensor, dtype: torch.dtype
    ) -> list[attention.Attend]:
        """Return the attention of each layer, which turns its queries and keys, if it does."""
        return attends

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        cache: Cache | None = None,
        rows: Tensor | None = None,
        **given: Tensor,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        With `rows` (M,), in the order of the pack, these are the states of these tokens alone. The
        `cache` has keys and values of the earlier tokens; this call adds those of its tokens.
        `given` is what else the objective gives, (N,) each: kinds of attention may read it.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        config, kinds = self.config, self.attention_tensors
        layout = layout_within(lengths, config.position_limit, input_ids.device, cache)
        fields = self.fill_fields(given, input_ids)
        layout = layout.with_fields(fields)
        heads = kinds.heads_like(
            self.token_embedding, config.dropout_of_attention, self.backend, self.score_scale
        )
        heads = replace(heads, key_heads=config.setting("num_key_heads"))
        attends = kinds.prepare(heads, layout, cache=cache)
        self.attention_choice = attention.reasons(attends)
        places = fields.get("position_ids", layout.positions)
        attends = self.turn(attends, places, heads.dtype)
        x = self.embed(input_ids, places, fields)
        way = [*zip(self.layers, attends, strict=True)] * config.setting("passes", 1)
        for number, (layer, attend) in enumerate(way, 1):
            x = layer(x, attend, rows if number == len(way) else None)
        return self.final_norm(x)
