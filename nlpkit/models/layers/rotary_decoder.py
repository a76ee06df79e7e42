"""A decoder with rotary positions: token embeddings, pre-norm blocks, a norm, an output table.

LLaMA and GPT-NeoX add their blocks. N tokens of the pack, C hidden_size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.encoder import initialize
from nlpkit.models.layers.packs import layout_within
from nlpkit.models.layers.rotary import Rotation
from nlpkit.models.layers.rotary_config import RotaryDecoderConfig
from nlpkit.models.layers.vocabulary_head import OutputHead

SIZES = {  # our settings with transformers' names
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "tie": "tie_word_embeddings",
    "attention_dropout": "attention_dropout",
    "init_std": "initializer_range",
}
DEFAULTS = {"tie_word_embeddings": False, "attention_dropout": 0.0, "initializer_range": 0.02}


class RotaryDecoder(OutputHead):
    """A decoder of blocks `block(x, attend, rows)`, in which attention turns queries and keys."""

    def __init__(
        self,
        config: RotaryDecoderConfig,
        vocab_size: int,
        backend: str,
        make_block: Callable[[], nn.Module],
        final_norm: nn.Module,
    ):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.layers = nn.ModuleList(make_block() for _ in range(config.num_layers))
        self.attention_tensors = AttentionTensors(
            config.kinds, config.num_layers, config.num_heads, config.width_per_head
        )
        self.final_norm = final_norm
        self.make_output(vocab_size, width, tie=config.tie, bias=False)
        initialize(self.named_parameters(), config.init_std)

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        cache: Cache | None = None,
        rows: Tensor | None = None,
        **fields: Tensor,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        With `rows` (M,), in the order of the pack, these are the states of these tokens alone. The
        `cache` has keys and values of the earlier tokens; this call adds those of its tokens.
        `fields` is what else the objective gives, (N,) each: kinds of attention may read it.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        config, kinds = self.config, self.attention_tensors
        layout = layout_within(lengths, config.max_positions, input_ids.device, cache)
        layout = layout.with_fields(fields)
        heads = kinds.heads_like(self.token_embedding, config.attention_dropout, self.backend)
        heads = replace(heads, key_heads=config.setting("num_key_heads"))
        attends = kinds.prepare(heads, layout, cache=cache)
        self.attention_choice = attention.reasons(attends)
        places = fields.get("position_ids", layout.positions)
        rotation = Rotation(config.rope, config.rotary_channels, places, heads.dtype)
        x = F.embedding(input_ids, self.token_embedding)
        way = [*zip(self.layers, attends, strict=True)] * config.setting("passes", 1)
        for number, (layer, attend) in enumerate(way, 1):
            x = layer(x, rotation.of(attend), rows if number == len(way) else None)
        return self.final_norm(x)
