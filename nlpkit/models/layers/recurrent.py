"""Recurrent networks over packs: torch's RNN, LSTM and GRU, and the families that are made of one.

On CPUs the layers run by `recurrence.py`, which is faster than torch's way through a
`PackedSequence`, with the same results and gradients; on GPUs by torch, that is by cuDNN, which has
no GRU with the reset gate before the matrix. Nothing is padded, and no sequence sees another.

The families `rnn`, `lstm` and `gru` have embeddings, torch's layers, and the table of embeddings
again as the output. With one direction they are causal, and generation keeps one state of fixed
size a layer; with two they are bidirectional, for tagging, classification and masked language
modelling.

N tokens of the pack, S sequences, E width of embeddings or input, C width of a direction, D
directions, L layers, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.contracts.format import HfFormat
from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.layers.output_head import OutputHead
from nlpkit.models.layers.packs import dropout
from nlpkit.models.layers.recurrence import Gru, GruResetBefore, Lstm, Rnn, TimeFirst
from nlpkit.models.layers.recurrent_config import VOCABULARY, Cell, CellsConfig, RecurrentConfig

LORA_TARGETS = ()  # torch's recurrent layers are no linear layers
_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
States = dict[str, Tensor]  # "h" and, of an LSTM, "c": (S, L D, C) each


class ResetBefore(nn.RNNBase):
    """The parameters of a GRU, with torch's names, whose reset gate comes before the matrix."""

    def __init__(self, *sizes: Any, **settings: Any):
        super().__init__("GRU", *sizes, **settings)


def make_layers(
    cell: Cell,
    config: CellsConfig,
    input_size: int,
    num_directions: int = 1,
    nonlinearity: Literal["tanh", "relu"] = "tanh",
) -> nn.RNNBase:
    """Return torch's module, with its initial weights; dropout is between layers."""
    gru = ResetBefore if config.setting("reset", "after") == "before" else nn.GRU
    made: Callable[..., nn.RNNBase] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": gru}[cell]
    return made(
        input_size,
        config.hidden_size,
        num_layers=config.num_layers,
        bidirectional=num_directions == 2,
        dropout=config.dropout if config.num_layers > 1 else 0.0,
        **({"nonlinearity": nonlinearity} if cell == "rnn" else {}),
    )


def run(
    layers: nn.RNNBase, x: Tensor, time: TimeFirst, before: States | None = None
) -> tuple[Tensor, States]:
    """Return the last layer's states (N, D C) of a pack x (N, E), and the final states.

    Sequences go on from the states `before`, by default from zeros.
    """
    before = before or zeros(layers, x, len(time.rows))
    if not x.is_cuda:
        return _loops(layers, x, time, before)
    if not isinstance(layers, ResetBefore):
        return _torch(layers, x, time, before)
    with torch.autocast("cuda", enabled=False):  # the loops are of one type, that of the weights
        return _loops(layers, x.to(before["h"].dtype), time, before)


def zeros(layers: nn.RNNBase, x: Tensor, count: int) -> States:
    """Return the initial states of `count` sequences."""
    depth = layers.num_layers * (2 if layers.bidirectional else 1)
    dtype = next(layers.parameters()).dtype
    states = torch.zeros(count, depth, layers.hidden_size, dtype=dtype, device=x.device)
    return {"h": states, "c": states} if isinstance(layers, nn.LSTM) else {"h": states}


def _loops(layers: nn.RNNBase, x: Tensor, time: TimeFirst, before: States) -> tuple[Tensor, States]:
    x = x[time.order]
    directions = ("", "_reverse") if layers.bidirectional else ("",)
    finals: dict[str, list[Tensor]] = {name: [] for name in before}
    for layer in range(layers.num_layers):
        if layer:
            x = dropout(x, layers.dropout, layers.training)
        outputs = []
        for number, suffix in enumerate(directions):
            place = layer * len(directions) + number
            initial = [part[time.rows, place] for part in before.values()]
            given = x[time.mirror] if number else x
            states = _direction(layers, f"l{layer}{suffix}", given, time, initial)
            for name, each in zip(before, states, strict=True):
                finals[name].append(each[time.last])
            outputs.append(states[0][time.mirror] if number else states[0])
        x = torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]
    hidden = torch.empty_like(x).index_copy(0, time.order, x)
    return hidden, {name: _of_rows(torch.stack(each, 1), time) for name, each in finals.items()}


def _direction(
    layers: nn.RNNBase, suffix: str, x: Tensor, time: TimeFirst, initial: list[Tensor]
) -> tuple[Tensor, ...]:
    """Return the states (N, C), of an LSTM also the cell states, of one layer and direction."""
    parameters = {name: getattr(layers, f"{name}_{suffix}") for name in _PARAMETERS}
    weight, bias = parameters["weight_ih"], parameters["bias_ih"]
    turned, turned_bias = parameters["weight_hh"], parameters["bias_hh"]
    if isinstance(layers, nn.GRU | ResetBefore):
        gru = Gru if isinstance(layers, nn.GRU) else GruResetBefore
        return (gru.apply(F.linear(x, weight, bias), turned, turned_bias, *initial, time),)
    gates = F.linear(x, weight, bias + turned_bias)
    if isinstance(layers, nn.LSTM):
        return Lstm.apply(gates, turned, *initial, time)
    return (Rnn.apply(gates, turned, *initial, time, layers.nonlinearity == "relu"),)


def _torch(layers: nn.RNNBase, x: Tensor, time: TimeFirst, before: States) -> tuple[Tensor, States]:
    packed = PackedSequence(x[time.order], torch.tensor(time.sizes))
    given = [part[time.rows].transpose(0, 1).contiguous() for part in before.values()]
    states, final = layers(packed, tuple(given) if len(given) > 1 else given[0])
    parts = final if isinstance(final, tuple) else (final,)
    hidden = torch.empty_like(states.data).index_copy(0, time.order, states.data)
    turned = (_of_rows(part.transpose(0, 1), time) for part in parts)
    return hidden, dict(zip(before, turned, strict=True))


def _of_rows(states: Tensor, time: TimeFirst) -> Tensor:
    """Return states (S, …) in the order of the pack, from the order of `time.rows`."""
    return torch.empty_like(states).index_copy(0, time.rows, states)


def one_step(layers: nn.RNNBase, x: Tensor, states: States) -> tuple[Tensor, States]:
    """Return the last layer's states (S, C) after one token of each sequence x (S, E), and all.

    For layers of one direction, where the input of a step depends on the step before it.
    """
    cell = _CELLS["RESET_BEFORE" if isinstance(layers, ResetBefore) else layers.mode]
    found: dict[str, list[Tensor]] = {name: [] for name in states}
    for layer in range(layers.num_layers):
        if layer:
            x = dropout(x, layers.dropout, layers.training)
        parameters = [getattr(layers, f"{name}_l{layer}") for name in _PARAMETERS]
        given = [part[:, layer] for part in states.values()]
        after = cell(x, given if len(given) > 1 else given[0], *parameters)
        parts = after if isinstance(after, tuple) else (after,)
        x = parts[0]
        for name, part in zip(states, parts, strict=True):
            found[name].append(part)
    return x, {name: torch.stack(parts, 1) for name, parts in found.items()}


def _step_before(x: Tensor, h: Tensor, *parameters: Tensor) -> Tensor:
    """Return the states (S, C) after a step of `ResetBefore`."""
    weight, turned, bias, turned_bias = parameters
    cut = [2 * h.shape[1], h.shape[1]]
    of_both, of_new = turned.split(cut)
    both, new = F.linear(x, weight, bias + turned_bias).split(cut, 1)
    r, z = torch.sigmoid(both + F.linear(h, of_both)).chunk(2, 1)
    n = torch.tanh(new + F.linear(r * h, of_new))
    return n + z * (h - n)


_CELLS: dict[str, Callable[..., Tensor | tuple[Tensor, Tensor]]] = {
    "LSTM": torch.lstm_cell,
    "GRU": torch.gru_cell,
    "RESET_BEFORE": _step_before,
    "RNN_TANH": torch.rnn_tanh_cell,
    "RNN_RELU": torch.rnn_relu_cell,
}


class RecurrentHead(OutputHead):
    """The output of a recurrent model.

    A tied table of another width than the states is reached through `output_projection`.
    """

    def make_recurrent_output(self, config: CellsConfig, vocab_size: int, states: int) -> None:
        """Make the parameters of the output, and draw both tables; `states` is C."""
        self.make_output(vocab_size, states, tie=config.tie_embeddings)
        self.output_projection = None
        if config.tie_embeddings and states != config.input_size:
            self.output_projection = nn.Linear(states, config.input_size, bias=False)
        assert self.token_bias is not None
        nn.init.zeros_(self.token_bias)
        for table in (self.token_embedding, self.output_embedding):
            if table is not None:
                nn.init.normal_(table, std=config.init_std)

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return hidden states (M, C), as wide as the output table."""
        project = self.output_projection
        return hidden if project is None else project(hidden)


class RecurrentModel(RecurrentHead):
    """A recurrent network with its language-model head."""

    def __init__(self, config: RecurrentConfig, vocab_size: int, backend: str = "auto"):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, config.input_size))
        nonlinearity: Literal["tanh", "relu"] = config.setting("nonlinearity", "tanh")
        self.cells = make_layers(
            config.CELL, config, config.input_size, config.num_directions, nonlinearity
        )
        self.make_recurrent_output(config, vocab_size, config.state_size)

    def forward(
        self, lengths: Sequence[int], input_ids: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Return the last layer's states (N, C) for a pack of these `lengths`.

        `input_ids` are (N,) int64. Sequences go on from the states of all layers in the `cache`.

        Raises:
            ValueError: a cache, and states that depend on later tokens.
        """
        if cache is not None and self.config.num_directions == 2:
            raise ValueError("states depend on later tokens: nothing can be generated")
        layout = attention.layout_of(lengths, input_ids.device, cache)
        kept = cache.state("cells") if cache is not None else {}
        x = F.embedding(input_ids, self.token_embedding)
        x = dropout(x, self.config.dropout, self.training)
        time = TimeFirst.of(layout.lengths, input_ids.device)
        hidden, states = run(self.cells, x, time, kept)
        if cache is not None:
            kept.update(states)
        return dropout(hidden, self.config.dropout, self.training)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), what stands for each sequence in a task: the end of each direction."""
        last = super().summary(hidden, lengths)
        if self.config.num_directions == 1:
            return last
        starts = torch.tensor([0, *lengths[:-1]], device=hidden.device).cumsum(0)
        width = self.config.hidden_size
        return torch.cat([last[:, :width], hidden[starts, width:]], 1)


def recurrent_format(config: type[RecurrentConfig]) -> HfFormat:
    """Return the format of a family: nlpkit's own, since transformers has none of them."""
    return own_format(config, *VOCABULARY, "output_projection", "cells")
