"""The GRU of Cho et al. 2014, whose reset gate comes before the matrix, step by step by hand."""

import pytest
import torch
from torch import Tensor, nn

from nlpkit.models import families
from nlpkit.models.layers import recurrent
from nlpkit.models.layers.recurrence import TimeFirst
from nlpkit.models.matrices import layer_matrices
from nlpkit.models.seq2seq import Config
from nlpkit.models.seq2seq.model import Model

LENGTHS, WIDTH = (3, 7, 1, 7, 4), 6
CLOSE = {"atol": 1e-12, "rtol": 1e-10}
SETTINGS = families.load("gru").Config(hidden_size=WIDTH, num_layers=2, dropout=0, reset="before")


def step(layers: nn.RNNBase, name: str, x: Tensor, h: Tensor) -> Tensor:
    """Return h' (C,) of Cho et al., eq. 5 to 8, with z and 1 - z swapped and torch's two biases."""
    w, u = getattr(layers, f"weight_ih_{name}"), getattr(layers, f"weight_hh_{name}")
    b = getattr(layers, f"bias_ih_{name}") + getattr(layers, f"bias_hh_{name}")
    width = len(h)
    rows = [slice(0, width), slice(width, 2 * width), slice(2 * width, 3 * width)]
    r, z = (torch.sigmoid(w[part] @ x + u[part] @ h + b[part]) for part in rows[:2])
    new = rows[2]
    n = torch.tanh(w[new] @ x + u[new] @ (r * h) + b[new])
    return (1 - z) * n + z * h


def by_hand(layers: nn.RNNBase, x: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states (T, D C) of one text x (T, E), and the last ones (L D, C)."""
    suffixes = ("", "_reverse") if layers.bidirectional else ("",)
    last = []
    for layer in range(layers.num_layers):
        sides = []
        for suffix in suffixes:
            h, states = initial[len(last)], []
            for token in x.flip(0) if suffix else x:
                h = step(layers, f"l{layer}{suffix}", token, h)
                states.append(h)
            last.append(h)
            sides.append(torch.stack(states[::-1] if suffix else states))
        x = torch.cat(sides, 1)
    return x, torch.stack(last)


def _layers(num_directions: int) -> nn.RNNBase:
    torch.manual_seed(0)
    return recurrent.make_layers("gru", SETTINGS, 5, num_directions).double()


@pytest.mark.parametrize("num_directions", [1, 2])
def test_states_and_gradients_equal_the_steps_by_hand(num_directions) -> None:
    layers = _layers(num_directions)
    x = torch.randn(sum(LENGTHS), 5, dtype=torch.float64, requires_grad=True)
    shape = (len(LENGTHS), 2 * num_directions, WIDTH)
    h = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    hidden, states = recurrent.run(layers, x, TimeFirst.of(LENGTHS), {"h": h})
    alone = [by_hand(layers, *each) for each in zip(x.split(LENGTHS), h, strict=True)]
    expected = torch.cat([one for one, _ in alone]), torch.stack([last for _, last in alone])
    found, wanted = [], [x, h, *layers.parameters()]
    for given in ((hidden, states["h"]), expected):
        total = given[0].square().sum() + 2 * given[1].sum()
        found.append([*given, *torch.autograd.grad(total, wanted)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_one_step_equals_the_step_by_hand() -> None:
    layers, x = _layers(1), torch.randn(3, 5, dtype=torch.float64)
    h = torch.randn(3, 2, WIDTH, dtype=torch.float64)
    hidden, after = recurrent.one_step(layers, x, {"h": h})
    for row in range(3):
        expected, last = by_hand(layers, x[row][None], h[row])
        torch.testing.assert_close(hidden[row], expected[0], **CLOSE)
        torch.testing.assert_close(after["h"][row], last, **CLOSE)


def test_names_are_those_of_torch_and_the_functions_differ() -> None:
    before, after = _layers(1), nn.GRU(5, WIDTH, 2).double()
    after.load_state_dict(before.state_dict())
    x, time = torch.randn(8, 5, dtype=torch.float64), TimeFirst.of((8,))
    ours, torchs = (recurrent.run(each, x, time)[0] for each in (before, after))
    assert (ours - torchs).abs().max() > 0.005
    assert list(layer_matrices(before).values()) == list(layer_matrices(after).values())


def test_layers_refuse_torchs_way() -> None:
    with pytest.raises(NotImplementedError):
        _layers(1)(torch.zeros(1, 5))


def test_bf16_reads_rounded_inputs_and_keeps_its_states_in_float32() -> None:
    layers, x = _layers(1).float(), torch.randn(sum(LENGTHS), 5)
    time = TimeFirst.of(LENGTHS)
    exact, _ = recurrent.run(layers, x, time)
    with torch.autocast("cpu", torch.bfloat16):
        hidden, _ = recurrent.run(layers, x, time)
    assert hidden.dtype == torch.float32
    torch.testing.assert_close(hidden, exact, atol=0.02, rtol=0.02)


@pytest.mark.gpu
def test_gpu_equals_the_cpu() -> None:
    layers, x, time = _layers(2).float(), torch.randn(sum(LENGTHS), 5), TimeFirst.of(LENGTHS)
    expected, _ = recurrent.run(layers, x, time)
    on_gpu = TimeFirst.of(LENGTHS, "cuda")
    hidden, _ = recurrent.run(layers.cuda(), x.cuda(), on_gpu)
    torch.testing.assert_close(hidden.cpu(), expected, atol=1e-5, rtol=1e-5)
    with torch.autocast("cuda", torch.bfloat16):
        hidden, _ = recurrent.run(layers, x.cuda().bfloat16(), on_gpu)
    torch.testing.assert_close(hidden.float().cpu(), expected, atol=0.02, rtol=0.02)
    hidden.square().sum().backward()


def test_encoder_and_decoder_have_the_cell() -> None:
    model = Model(Config(cell="gru", reset="before", hidden_size=8), 20)
    layers = (model.encoder, model.decoder.cells)
    assert all(isinstance(each, recurrent.ResetBefore) for each in layers)


@pytest.mark.parametrize("family", ["rnn", "lstm"])
def test_other_cells_have_no_such_setting(family) -> None:
    with pytest.raises(ValueError, match="reset"):
        families.load(family).Config(reset="before")
