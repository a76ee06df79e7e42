"""What families with an encoder and a decoder share: the way of a pack through both.

The encoder reads the sources once; sequence i of the targets sees sequence i of the sources, by
cross attention over two layouts. In generation the cache holds the keys and values that the decoder
made of the encoder's states, so later steps have no source. A family adds its blocks and `embed`.

N tokens of the targets, M of the sources, S sequences, C hidden_size, H heads, D width of a head.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.request import Layout
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.encoder_config import EncoderDecoderConfig
from nlpkit.models.layers.output_head import OutputHead
from nlpkit.models.layers.packs import layout_within
from nlpkit.plural import number_of

CROSS = AttentionChoice.of("full")  # a token of a target sees its whole source


class Attention(nn.Module):
    """Multi-head attention; keys and values are made of `memory`, in cross attention the source."""

    def __init__(self, width: int, heads: int, inner: int | None = None, bias: bool = True):
        super().__init__()
        self.heads, inner = heads, inner or width
        self.query = nn.Linear(width, inner, bias)
        self.key = nn.Linear(width, inner, bias)
        self.value = nn.Linear(width, inner, bias)
        self.project = nn.Linear(inner, width, bias)

    def forward(self, x: Tensor, memory: Tensor | None, attend: attention.Attend) -> Tensor:
        """Return (N, C) from (N, C) and `memory` (M, C); None: its keys are in the cache."""
        q = self.query(x).unflatten(1, (self.heads, -1))
        k = v = None
        if memory is not None:
            k = self.key(memory).unflatten(1, (self.heads, -1))
            v = self.value(memory).unflatten(1, (self.heads, -1))
        return self.project(attend(q, k, v).flatten(1))


class EncoderDecoder(OutputHead):
    """The stacks of blocks, and `forward` over packs.

    Args:
        block: makes a block, of the decoder or not: called with its states, its attention and, in
            the decoder, cross attention and the encoder's states.
        norm: makes what follows a stack.
        own: the attention of the encoder; the recipe's is the decoder's.
    """

    scale: float | None = None  # of the scores; None: 1 / sqrt(D)

    def __init__(
        self,
        config: EncoderDecoderConfig,
        vocab_size: int,
        backend: str,
        *,
        block: Callable[[bool], nn.Module],
        norm: Callable[[], nn.Module] = nn.Identity,
        own: AttentionChoice = CROSS,
    ):
        super().__init__()
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        depth, layers = config.encoder_depth, config.num_layers
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, config.hidden_size))
        self.encoder = nn.ModuleList(block(False) for _ in range(depth))
        self.encoder_norm = norm()
        self.decoder = nn.ModuleList(block(True) for _ in range(layers))
        self.decoder_norm = norm()
        heads, width = config.num_heads, config.width_per_head
        self.encoder_tensors = AttentionTensors([own], depth, heads, width)
        self.attention_tensors = AttentionTensors(config.kinds, layers, heads, width)

    @abstractmethod
    def embed(self, ids: Tensor, layout: Layout, is_source: bool) -> Tensor:
        """Return the first states (N, C) of the encoder or the decoder."""

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        source_ids: Tensor | None = None,
        source_lengths: Sequence[int] | None = None,
        cache: Cache | None = None,
        seen: list[list[Tensor]] | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of the targets.

        Sequence i of `input_ids` (N,) is the target of source i of `source_ids` (M,), which is None
        where the cache holds what the encoder made of them. `seen` gets the weights of each layer's
        cross attention.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        limit = self.config.position_limit
        layout = layout_within(lengths, limit, input_ids.device, cache)
        kinds, dropout = self.attention_tensors, self.config.attention_dropout
        heads = kinds.heads_like(self.token_embedding, dropout, self.backend, self.scale)
        keys = source = None
        if source_ids is not None and source_lengths is not None:
            keys = layout_within(source_lengths, limit, source_ids.device)
            attends = self.encoder_tensors.prepare(heads, keys)
            source = self.embed(source_ids, keys, True)
            for block, attend in zip(self.encoder, attends, strict=True):
                source = block(source, attend)
            source = self.encoder_norm(source)
        attends = kinds.prepare(heads, layout, cache=cache)
        cross = attention.prepare(CROSS, heads, layout, keys=keys, cache=cache, role="cross")
        self.attention_choice = attention.reasons([*attends, cross])
        if seen is not None and keys is not None:
            scale = heads.width**-0.5 if self.scale is None else self.scale
            cross = _watch(cross, seen, layout.lengths, keys.lengths, scale)
        x = self.embed(input_ids, layout, False)
        for block, attend in zip(self.decoder, attends, strict=True):
            x = block(x, attend, cross, source)
        return self.decoder_norm(x)

    def alignments(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        source_ids: Tensor,
        source_lengths: Sequence[int],
        layer: int | None = None,
    ) -> list[Tensor]:
        """Return the weights of cross attention in a layer, (T, S) for each sequence.

        They are the mean over the heads. The default layer is the last but one, whose weights are
        the nearest to alignments of words (Garg et al. 2019, arXiv:1909.02074, sec. 4.1).

        Raises:
            ValueError: the decoder has no such layer.
        """
        chosen = self._aligning_layer(layer)
        seen: list[list[Tensor]] = []
        self(lengths, input_ids, source_ids, source_lengths, seen=seen)
        return seen[chosen - 1]

    def alignment_title(self, layer: int | None = None) -> str:
        """Return what `alignments` are; raise `ValueError` if the decoder has no such layer."""
        chosen, heads = self._aligning_layer(layer), self.config.num_heads
        return (
            f"cross attention of the decoder's layer {chosen} of {len(self.decoder)}, "
            f"mean of {number_of(heads, 'heads')}"
        )

    def _aligning_layer(self, layer: int | None) -> int:
        depth = len(self.decoder)
        if layer is None:
            return max(depth - 1, 1)
        if not 1 <= layer <= depth:
            raise ValueError(f"layer {layer} is none of the decoder's 1 to {depth}")
        return layer


def _watch(
    cross: attention.Attend,
    seen: list[list[Tensor]],
    lengths: Sequence[int],
    source_lengths: Sequence[int],
    scale: float,
) -> attention.Attend:
    # Each call also adds its weights, the mean over heads, to `seen`. Backends give no weights, so
    # they are computed once more, in float32.

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(q.split(tuple(lengths)), k.split(tuple(source_lengths)), strict=True)
        scores = (torch.einsum("thd,shd->hts", a.float(), b.float()) * scale for a, b in parts)
        seen.append([each.softmax(-1).mean(0) for each in scores])
        return cross(q, k, v)

    return replace(cross, run=run)
