"""Recurrent encoder and decoder over packs: target i sees source i, and nothing is padded.

Torch's RNN, LSTM and GRU cells (`layers/recurrent.py`); `Config` lists the textbook models.
The decoder begins with the encoder's last states, layer by layer; of two directions, a linear layer
makes one. A joint vocabulary has one table of embeddings for sources, targets and, if tied, output;
sources with a vocabulary of their own have another one.

N tokens of the targets, M of the sources, B sequences, S source tokens, E encoder width,
C hidden_size.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.layers.packs import dropout
from nlpkit.models.layers.recurrence import TimeFirst
from nlpkit.models.layers.recurrent import RecurrentHead, make_layers, run
from nlpkit.models.seq2seq import VOCABULARY, Config
from nlpkit.models.seq2seq.decoder import Decoder, Source, Tokens

LORA_TARGETS = ()  # torch's recurrent layers are no linear layers
FORMAT = own_format(
    Config, *VOCABULARY, "source_embedding", "output_projection", "encoder", "bridge", "decoder"
)


class Model(RecurrentHead):
    """Encoder and decoder with the head that predicts the target's tokens."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        width, inputs = config.hidden_size, config.input_size
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, inputs))
        self.source_embedding = None
        if config.source_vocab_size is not None:
            self.source_embedding = nn.Parameter(torch.empty(config.source_vocab_size, inputs))
        self.encoder = make_layers(config.cell, config, inputs, config.num_directions)
        self.bridge = nn.ModuleDict()
        if config.num_directions == 2 and config.context != "every_step":
            names = ("h", "c") if config.cell == "lstm" else ("h",)
            self.bridge.update({name: nn.Linear(2 * width, width) for name in names})
        self.decoder = Decoder(config)
        self.make_recurrent_output(config, vocab_size, config.output_size)
        if self.source_embedding is not None:
            nn.init.normal_(self.source_embedding, std=config.init_std)

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        source_ids: Tensor | None = None,
        source_lengths: Sequence[int] | None = None,
        teacher_forced: Tensor | None = None,
        cache: Cache | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the states (N, output_size) of the targets that predict their next tokens.

        Args:
            input_ids: (N,) int64, sequence i the target of source i.
            source_ids: (M,) int64; None where the cache holds what the encoder made of them.
            teacher_forced: (N,) bool, in training: whether a step reads its token in `input_ids`,
                or the most likely one by the step before; None: all do.
            seen: gets the weights of attention (N, S).
        """
        layout = attention.layout_of(lengths, input_ids.device, cache)
        kept = Cache() if cache is None else cache
        if source_ids is not None and source_lengths is not None:
            self._encode(source_ids, source_lengths, kept)
        attended = ("values", "keys") if self.config.score is not None else ()
        context = kept.state("source")["context"]
        source = Source.of(context, *(kept.ragged(name) for name in attended))
        tokens = Tokens(
            input_ids, teacher_forced if self.training else None, self._embed, self._most_likely
        )
        decoded = self.decoder(layout, tokens, source, kept.state("decoder"))
        kept.state("decoder").update(decoded.states)
        if seen is not None and decoded.weights is not None:
            seen.append(decoded.weights)
        return dropout(decoded.hidden, self.config.dropout, self.training)

    def alignments(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        source_ids: Tensor,
        source_lengths: Sequence[int],
        layer: int | None = None,
    ) -> list[Tensor]:
        """Return the weights of the source's tokens (S) for each token of the target (T), (T, S).

        Raises:
            ValueError: the model has no attention, or a layer is named: all share one attention.
        """
        self.alignment_title(layer)
        seen: list[Tensor] = []
        self(lengths, input_ids, source_ids, source_lengths, seen=seen)
        rows = seen[0].split(tuple(lengths))
        return [each[:, :size] for each, size in zip(rows, source_lengths, strict=True)]

    def alignment_title(self, layer: int | None = None) -> str:
        """Return what `alignments` are; raise `ValueError` as it does."""
        if self.config.score is None:
            raise ValueError("the model has no attention (model.score is null)")
        if layer is not None:
            raise ValueError(f"there is one attention for all layers, none of layer {layer} alone")
        return f"attention to the source, {self.config.score} score"

    def _encode(self, source_ids: Tensor, source_lengths: Sequence[int], kept: Cache) -> None:
        """Keep contexts (B, E), the decoder's first states, and what attention sees."""
        config = self.config
        time = TimeFirst.of(source_lengths, source_ids.device)
        own = self.source_embedding
        table = self.token_embedding if own is None else own
        values, final = run(self.encoder, self._embed(source_ids, table), time)
        # (B, layers and directions, C) -> (B, layers, E)
        last = {name: part.unflatten(1, (-1, config.num_directions)).flatten(2)
                for name, part in final.items()}  # fmt: skip
        kept.state("source")["context"] = last["h"][:, -1]
        if (align := self.decoder.alignment) is not None:
            for name, packed in (("values", values), ("keys", align.keys(values))):
                kept.ragged(name).extend(packed.split(tuple(source_lengths)))
        if config.context == "every_step":
            last = self.decoder.first_states(values, len(time.rows))
        for name, layer in self.bridge.items():
            made = layer(last[name])
            last[name] = torch.tanh(made) if name == "h" else made
        kept.state("decoder").update(last)

    def _embed(self, ids: Tensor, table: Tensor | None = None) -> Tensor:
        embedded = F.embedding(ids, self.token_embedding if table is None else table)
        return dropout(embedded, self.config.dropout, self.training)

    @torch.no_grad()
    def _most_likely(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden).argmax(1)
