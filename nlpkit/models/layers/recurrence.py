"""The recurrence of torch's RNN, LSTM and GRU cells, and Cho's GRU, over packs without padding.

The tokens stand time first: the first tokens of all sequences, then all second ones, …, the longest
sequence first among them. So a time step is one slice. What the cells make of their input, `gates`,
comes from one matrix product for all tokens. Forward and backward are loops over time; what can
wait is computed for all tokens after the loop, above all the gradient of the weight, for which
autograd computes a product of its own at every step. `bench/recurrence.py` measures it.

N tokens, S sequences, C width of a state, G gates (RNN 1, LSTM 4, GRU 3).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Steps = list[tuple[slice, slice]]


@dataclass(frozen=True)
class TimeFirst:
    """The tokens of a pack, time first."""

    sizes: list[int]  # sequences that have a token at each step, (T,)
    order: Tensor  # (N,) index in the pack of each token
    rows: Tensor  # (S,) index of each sequence, the longest first
    last: Tensor  # (S,) index, time first, of the last token of each sequence of `rows`
    mirror: Tensor  # (N,) index, time first, of the token as far from the other end of its sequence

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> "TimeFirst":
        """Return the order of sequences of these lengths, each at least 1."""
        sizes = np.asarray(lengths, np.int64)
        rows = np.argsort(-sizes, kind="stable")
        ordered = sizes[rows]
        owner = np.repeat(np.arange(len(rows)), ordered)  # sequence of `rows`, one after the other
        ends = np.cumsum(ordered)
        position = np.arange(len(owner)) - (ends - ordered)[owner]
        time_first = np.lexsort((owner, position))
        place = np.empty_like(time_first)
        place[time_first] = np.arange(len(owner))
        mirrored = (ends - 1)[owner] - position
        starts = (np.cumsum(sizes) - sizes)[rows]
        tokens = (starts[owner] + position)[time_first]
        found = tokens, rows, place[ends - 1], place[mirrored[time_first]]
        order, row, last, mirror = (torch.from_numpy(each).to(device) for each in found)
        return cls(np.bincount(position).tolist(), order, row, last, mirror)

    def steps(self) -> Steps:
        """Return the slice of each step's tokens, and that of their predecessors.

        The predecessors of the first step are the initial states: see `previous`.
        """
        found: Steps = []
        start = before = 0
        for size in self.sizes:
            found.append((slice(start, start + size), slice(before, before + size)))
            before, start = start, start + size
        return found

    def previous(self, initial: Tensor, states: Tensor) -> Tensor:
        """Return the states (N, C) before each token; `initial` (S, C) in the order of `rows`."""
        later = [states[before] for _, before in self.steps()[1:]]
        return torch.cat([initial, *later])


def pairs(steps: Steps, initial: Tensor, states: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield each step's slice, and the states before it."""
    for number, (now, before) in enumerate(steps):
        yield now, states[before] if number else initial


class _Backward:
    """The gradient of states as it goes back in time."""

    def __init__(self, steps: Steps, given: Tensor | None, like: Tensor):
        self.steps = steps
        self.of_states = torch.zeros_like(like) if given is None else given.clone()
        self.of_initial = like.new_zeros(steps[0][0].stop, like.shape[1])

    def add(self, number: int, gradient: Tensor) -> None:
        """Add the gradient of the states before a step."""
        before = self.steps[number][1]
        (self.of_states[before] if number else self.of_initial).add_(gradient)


class Rnn(torch.autograd.Function):
    """h = tanh(gates + h W), or relu."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, initial: Tensor, time: TimeFirst, relu: bool
    ) -> Tensor:
        """Return states (N, C) from gates (N, C), the weight (C, C) and initial states (S, C)."""
        states, steps, turned = torch.empty_like(gates), time.steps(), weight.T
        for now, h in pairs(steps, initial, states):
            inner = torch.addmm(gates[now], h, turned, out=states[now])
            inner.relu_() if relu else inner.tanh_()
        ctx.save_for_backward(states, weight, initial)
        ctx.time, ctx.relu = time, relu
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of gates, weight and initial states."""
        states, weight, initial = ctx.saved_tensors
        steps = ctx.time.steps()
        back = _Backward(steps, given, states)
        slope = (states > 0).to(states.dtype) if ctx.relu else 1 - states * states
        of_gates = back.of_states
        for number in range(len(steps) - 1, -1, -1):
            of_step = of_gates[steps[number][0]].mul_(slope[steps[number][0]])
            back.add(number, of_step @ weight)
        of_weight = of_gates.T @ ctx.time.previous(initial, states)
        return of_gates, of_weight, back.of_initial, None, None


class Lstm(torch.autograd.Function):
    """i, f, g, o = gates + h W; c = f c + i g; h = o tanh(c) (Hochreiter and Schmidhuber 1997)."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, initial: Tensor, cell: Tensor, time: TimeFirst
    ) -> tuple[Tensor, Tensor]:
        """Return states and cell states, (N, C), from gates (N, 4 C) and initial states (S, C)."""
        width, steps, turned = initial.shape[1], time.steps(), weight.T
        gates = gates.clone()  # becomes the gates after their functions
        states, cells = (gates.new_empty(len(gates), width) for _ in range(2))
        squashed = torch.empty_like(cells)
        both = zip(pairs(steps, initial, states), pairs(steps, cell, cells), strict=True)
        for (now, h), (_, c) in both:
            inner = gates[now].addmm_(h, turned)
            i, f, g, o = inner.split(width, 1)
            inner[:, : 2 * width].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c, out=cells[now]).addcmul_(i, g)
            torch.mul(o, torch.tanh(cells[now], out=squashed[now]), out=states[now])
        ctx.save_for_backward(gates, weight, states, cells, squashed, initial, cell)
        ctx.time = time
        ctx.set_materialize_grads(False)
        return states, cells

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, given: Tensor | None, given_cells: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of gates, weight, initial states and initial cell states."""
        gates, weight, states, cells, squashed, initial, cell = ctx.saved_tensors
        steps, width = ctx.time.steps(), states.shape[1]
        of_h, of_c = _Backward(steps, given, states), _Backward(steps, given_cells, states)
        i, f, g, o = gates.split(width, 1)
        before = ctx.time.previous(cell, cells)
        # The gradients of the gates are those of c, times this; of o, those of h.
        factors = torch.cat([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], 1)
        of_output, through = squashed * o * (1 - o), o * (1 - squashed * squashed)
        of_gates = torch.empty_like(gates)
        for number in range(len(steps) - 1, -1, -1):
            now = steps[number][0]
            dh = of_h.of_states[now]
            dc = of_c.of_states[now].addcmul_(dh, through[now])
            of_step = of_gates[now]
            shape = (len(dc), 3, width)
            torch.mul(
                factors[now].view(shape), dc[:, None], out=of_step[:, : 3 * width].view(shape)
            )
            torch.mul(dh, of_output[now], out=of_step[:, 3 * width :])
            of_h.add(number, of_step @ weight)
            of_c.add(number, dc * f[now])
        of_weight = of_gates.T @ ctx.time.previous(initial, states)
        return of_gates, of_weight, of_h.of_initial, of_c.of_initial, None


class Gru(torch.autograd.Function):
    """r, z = σ(gates + h W + b); n = tanh(gate + r (h W + b)); h = (1 - z) n + z h.

    Cho et al. 2014 (arXiv:1406.1078), in torch's form: r is applied after the product, and z is the
    share of the old state.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, time: TimeFirst
    ) -> Tensor:
        """Return states (N, C) from gates (N, 3 C), weight and bias of h, and initial states."""
        width, steps, turned = initial.shape[1], time.steps(), weight.T
        gates = gates.clone()  # becomes r, z and n
        states, of_old = (gates.new_empty(len(gates), width) for _ in range(2))
        for now, h in pairs(steps, initial, states):
            inner = torch.addmm(bias, h, turned)
            both = gates[now][:, : 2 * width].add_(inner[:, : 2 * width]).sigmoid_()
            r, z = both.split(width, 1)
            of_old[now] = inner[:, 2 * width :]
            n = gates[now][:, 2 * width :].addcmul_(r, of_old[now]).tanh_()
            torch.lerp(n, h, z, out=states[now])
        ctx.save_for_backward(gates, weight, states, of_old, initial)
        ctx.time = time
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of gates, weight, bias and initial states."""
        gates, weight, states, of_old, initial = ctx.saved_tensors
        steps, width = ctx.time.steps(), states.shape[1]
        back = _Backward(steps, given, states)
        r, z, n = gates.split(width, 1)
        before = ctx.time.previous(initial, states)
        of_new = (1 - z) * (1 - n * n)
        # The gradients of all gates are those of h, times this.
        factors = torch.cat([of_new * of_old * r * (1 - r), (before - n) * z * (1 - z), of_new * r])
        factors = factors.view(3, len(states), width).transpose(0, 1).contiguous()  # (N, 3, C)
        of_old_gates = torch.empty_like(gates)  # of h W + b
        for number in range(len(steps) - 1, -1, -1):
            now = steps[number][0]
            dh = back.of_states[now]
            of_step = of_old_gates[now]
            torch.mul(factors[now], dh[:, None], out=of_step.view(len(dh), 3, width))
            back.add(number, torch.addcmul(of_step @ weight, dh, z[now]))
        of_weight, of_bias = of_old_gates.T @ before, of_old_gates.sum(0)
        of_gates = of_old_gates
        of_gates[:, 2 * width :] = back.of_states * of_new
        return of_gates, of_weight, of_bias, back.of_initial, None


class GruResetBefore(torch.autograd.Function):
    """r, z = σ(gates + h W + b); n = tanh(gate + (r h) W + b); h = (1 - z) n + z h.

    Cho et al. 2014 (arXiv:1406.1078), eq. 5 to 8, with biases; z is the share of the old state.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, time: TimeFirst
    ) -> Tensor:
        """Return states (N, C) from gates (N, 3 C), weight and bias of h, and initial states."""
        width, steps = initial.shape[1], time.steps()
        of_gates, of_new = weight.T.split([2 * width, width], 1)
        gates = gates + bias  # becomes r, z and n
        states = gates.new_empty(len(gates), width)
        for now, h in pairs(steps, initial, states):
            both, n = gates[now].split([2 * width, width], 1)
            r, z = both.addmm_(h, of_gates).sigmoid_().split(width, 1)
            n.addmm_(r * h, of_new).tanh_()
            torch.lerp(n, h, z, out=states[now])
        ctx.save_for_backward(gates, weight, states, initial)
        ctx.time = time
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of gates, weight, bias and initial states."""
        gates, weight, states, initial = ctx.saved_tensors
        steps, width = ctx.time.steps(), states.shape[1]
        back = _Backward(steps, given, states)
        r, z, n = gates.split(width, 1)
        before = ctx.time.previous(initial, states)
        # The gradients of z and n are that of h, times these; of r, that of r h.
        of_z, of_n = (before - n) * z * (1 - z), (1 - z) * (1 - n * n)
        of_r = before * r * (1 - r)
        of_gates = torch.empty_like(gates)
        for number in range(len(steps) - 1, -1, -1):
            now = steps[number][0]
            dh, of_step = back.of_states[now], of_gates[now]
            torch.mul(dh, of_z[now], out=of_step[:, width : 2 * width])
            torch.mul(dh, of_n[now], out=of_step[:, 2 * width :])
            of_product = of_step[:, 2 * width :] @ weight[2 * width :]  # of r h
            torch.mul(of_product, of_r[now], out=of_step[:, :width])
            of_old = of_step[:, : 2 * width] @ weight[: 2 * width]
            back.add(number, of_old.addcmul_(dh, z[now]).addcmul_(of_product, r[now]))
        of_both, of_new = of_gates.split([2 * width, width], 1)
        of_weight = torch.cat([of_both.T @ before, of_new.T @ (r * before)])
        return of_gates, of_weight, of_gates.sum(0), back.of_initial, None
