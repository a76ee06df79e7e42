"""Longformer (Beltagy et al. 2020, arXiv 2004.05150) over packs, in transformers' layout.

RoBERTa's encoder with the attention kind `longformer`: a token sees a window and the global tokens;
a global token sees all tokens of its sequence, by queries, keys and values of its own (sec. 3.1,
Linear Projections for Global Attention). Token types exist, as in transformers; the released models
have one, and then they only say which text is global.
N tokens of the pack, M selected rows, G global tokens, K tokens of sequences that have one,
S sequences, H heads, D width of a head, C hidden_size, V vocabulary.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.kinds import longformer
from nlpkit.contracts.format import Settings, Values
from nlpkit.contracts.kind import Tokens
from nlpkit.contracts.request import Heads, Layout
from nlpkit.models.formats import encoder_format
from nlpkit.models.layers.embeddings import Embeddings
from nlpkit.models.layers.encoder import Layer, Layers, TypedEncoder
from nlpkit.models.layers.head import DenseHead, TaskHead
from nlpkit.models.layers.packs import select_rows
from nlpkit.models.longformer import KIND, Config

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2


_POOLER = partial(DenseHead, drops_first=False)  # before the scores of a choice
TASK_HEADS = encoder_format.task_heads("Longformer") | {
    "sequence_classification": TaskHead.of_two(
        "LongformerForSequenceClassification", "classifier.out_proj", "classifier.dense"
    ),
    "multiple_choice": TaskHead.of_two(
        "LongformerForMultipleChoice", "classifier", "longformer.pooler.dense", _POOLER
    ),
}
# The rules of transformers' classes for global tokens; without one it asks for a mask.
_RULES = {
    "LongformerForSequenceClassification": "first",
    "LongformerForQuestionAnswering": "question",
    "LongformerForMultipleChoice": "answer",
}


@dataclass(frozen=True)
class GlobalAttend(attention.Attend):
    """Attention of all tokens, and beside it that of the global ones."""

    rows: Tensor  # (G,) the global tokens
    keys: Tensor | None  # (K,) what they see; None: all N
    attend_globally: attention.Attend


class LongformerLayer(Layer):
    """A layer whose global tokens have queries, keys and values of their own."""

    def __init__(self, config: Config):
        super().__init__(config)
        width = config.hidden_size
        self.query_global = nn.Linear(width, width)
        self.key_global = nn.Linear(width, width)
        self.value_global = nn.Linear(width, width)

    def attend(self, own: Tensor, x: Tensor, attend: attention.Attend) -> Tensor:
        """Return (N, H, D), what all tokens see."""
        seen = super().attend(own, x, attend)
        if not isinstance(attend, GlobalAttend):
            return seen
        keys = select_rows(x, attend.keys)
        parts = self.query_global(x[attend.rows]), self.key_global(keys), self.value_global(keys)
        q, k, v = (part.unflatten(1, (self.heads, -1)) for part in parts)
        of_globals = attend.attend_globally(q, k, v)
        return seen.index_copy(0, attend.rows, of_globals.to(seen.dtype))


class LongformerLayers(Layers):
    """Layers of which some or all have global tokens."""

    make_layer = LongformerLayer
    takes_rows = False  # among the rows, global tokens would have to be found

    def prepare(
        self, heads: Heads, layout: Layout, cache: Cache | None = None
    ) -> list[attention.Attend]:
        """Return the attention of each layer; that of global tokens is prepared once per kind."""
        kinds = self.attention_tensors.of_layers
        made = {choice: _attend_globally(choice, heads, layout) for choice in dict.fromkeys(kinds)}
        attends = super().prepare(heads, layout, cache)
        return [
            GlobalAttend(attend.backend, attend.reason, attend.run, *made[choice])
            if made[choice]
            else attend
            for choice, attend in zip(kinds, attends, strict=True)
        ]


def _attend_globally(
    choice: AttentionChoice, heads: Heads, layout: Layout
) -> tuple[Tensor, Tensor | None, attention.Attend] | tuple[()]:
    """Return the global tokens of a kind, what they see, and their attention; () if none is.

    The backend is torch's choice of `auto`: one that is named may be made for windows.
    """
    if choice.kind != KIND:
        return ()
    every = torch.arange(layout.total, device=layout.device)
    fields = {"position": layout.positions}
    fields |= {name: field for name, field in layout.fields.items() if field is not None}
    rows = longformer.find_global(choice.config, Tokens(fields, every)).nonzero().squeeze(1)
    counts = torch.bincount(layout.document_ids[rows], minlength=len(layout.lengths)).tolist()
    if not any(counts):
        return ()
    found = [number for number, count in enumerate(counts) if count]
    queries = Layout([counts[number] for number in found], layout.device)
    keys, of_keys = None, layout
    if len(found) < len(counts):
        chosen = torch.isin(layout.document_ids, torch.tensor(found, device=layout.device))
        keys = chosen.nonzero().squeeze(1)
        of_keys = Layout([layout.lengths[number] for number in found], layout.device)
    heads = replace(heads, backend="auto")
    return rows, keys, attention.prepare(AttentionChoice.of("full"), heads, queries, keys=of_keys)


class Model(TypedEncoder):
    """Longformer with its head of masked tokens."""

    make_layers = LongformerLayers

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        width, rows = config.hidden_size, config.position_rows
        embeddings = Embeddings(config, width, rows, config.type_vocab_size)
        super().__init__(config, vocab_size, backend, embeddings)
        self.make_head(config, vocab_size, width, "gelu")
        self.reset_parameters()


def _more_settings(config: Config) -> Values:
    settings = _ROBERTA.more_settings(config)
    if config.has_default_attention:
        kinds = [config.kinds[n % len(config.kinds)] for n in range(config.num_layers)]
        settings["attention_window"] = [choice.config.window for choice in kinds]
    return settings


def _read_config(settings: Settings, sizes: Values) -> Values:
    windows = settings.get("attention_window", 512)
    windows = [windows] if isinstance(windows, int) else [*windows]
    named = [_RULES[name] for name in settings.get("architectures") or () if name in _RULES]
    rule = named[0] if named else "none"
    if len({*windows}) == 1:
        windows = windows[:1]
    kinds = [
        AttentionChoice.of(KIND, causal=False, window=window, global_tokens=rule)
        for window in windows
    ]
    return _ROBERTA.read_config(settings, sizes) | {"attention": tuple(kinds)}


_LAYER = encoder_format.LAYER | {
    f"{name}_global": f"attention.self.{name}_global" for name in ("query", "key", "value")
}
_ROBERTA = encoder_format.make_roberta("longformer.", "LongformerForMaskedLM", _LAYER)
FORMAT = replace(
    _ROBERTA, more_settings=_more_settings, has_separator=True, read_config=_read_config
)
