"""Runs torch's RNN, LSTM and GRU over packs, with the same results and gradients.

On CPUs by `recurrence.py`, which is faster than torch's way through a `PackedSequence`; on GPUs by
torch, that is by cuDNN. Nothing is padded, and no sequence sees another.

N tokens of the pack, S sequences, E input width, C width of a direction, D directions, L layers.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nlpkit.models.layers.packs import dropout
from nlpkit.models.layers.recurrence import Gru, Lstm, Rnn, TimeFirst
from nlpkit.models.layers.recurrent_config import Cell

States = dict[str, Tensor]  # "h" and, of an LSTM, "c": (S, L D, C) each


def make_layers(
    cell: Cell,
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int,
    num_directions: int = 1,
    dropout: float = 0.0,
    nonlinearity: Literal["tanh", "relu"] = "tanh",
) -> nn.RNNBase:
    """Return torch's module, with its initial weights; `dropout` is between layers."""
    made: Callable[..., nn.RNNBase] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}[cell]
    return made(
        input_size,
        hidden_size,
        num_layers=num_layers,
        bidirectional=num_directions == 2,
        dropout=dropout if num_layers > 1 else 0.0,
        **({"nonlinearity": nonlinearity} if cell == "rnn" else {}),
    )


def run(
    layers: nn.RNNBase, x: Tensor, time: TimeFirst, before: States | None = None
) -> tuple[Tensor, States]:
    """Return the last layer's states (N, D C) of a pack x (N, E), and the final states.

    Sequences go on from the states `before`, by default from zeros.
    """
    way = _torch if x.is_cuda else _loops
    return way(layers, x, time, before or zeros(layers, x, len(time.rows)))


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
            initial = [
                part[time.rows, layer * len(directions) + number] for part in before.values()
            ]
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
    if isinstance(layers, nn.GRU):
        return (Gru.apply(F.linear(x, weight, bias), turned, turned_bias, *initial, time),)
    gates = F.linear(x, weight, bias + turned_bias)
    if isinstance(layers, nn.LSTM):
        return Lstm.apply(gates, turned, *initial, time)
    return (Rnn.apply(gates, turned, *initial, time, layers.nonlinearity == "relu"),)


_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


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
    cell = _CELLS[layers.mode]
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


_CELLS: dict[str, Callable[..., Tensor | tuple[Tensor, Tensor]]] = {
    "LSTM": torch.lstm_cell,
    "GRU": torch.gru_cell,
    "RNN_TANH": torch.rnn_tanh_cell,
    "RNN_RELU": torch.rnn_relu_cell,
}
