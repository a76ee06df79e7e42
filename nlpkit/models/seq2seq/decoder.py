"""The recurrent decoder: all targets at once where its inputs are known, else step by step.

A step has to wait for the one before if it reads the attention of that one (Bahdanau's decoder,
Luong's input feeding), or the token that the model itself would write (no teacher forcing).

Attention: Bahdanau et al. 2014 (arXiv:1409.0473, sec. 3), Luong et al. 2015 (arXiv:1508.04025,
sec. 3). Differs from Luong: positions count from 0, and the centre of a local-m window that lies
behind the source is the source's last token, so that there is always something to see. Sequences
are a rectangle for it: what is beyond their ends has no weight.

N tokens of the targets, B sequences, n of them at a step, T targets, S source tokens of the
longest, M of all, E encoder width, C hidden_size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from nlpkit.contracts.request import Layout
from nlpkit.models.layers.recurrence import TimeFirst
from nlpkit.models.layers.recurrent import States, make_layers, one_step, run, zeros
from nlpkit.models.seq2seq import Config

FED = "fed"  # among the states: the attentional state of the step before, (B, output_size)


class Source(NamedTuple):
    """What the decoder knows of the sources, a row for each."""

    context: Tensor  # c, (B, E), the last state of the encoder
    values: Tensor  # (B, S, E); without attention, S is 0
    keys: Tensor  # (B, S, C), the states as the score compares them
    lengths: Tensor  # (B,)

    @classmethod
    def of(
        cls, context: Tensor, values: Sequence[Tensor] = (), keys: Sequence[Tensor] = ()
    ) -> "Source":
        """Return sources with these states, (S, E) and (S, C) each; none without attention."""
        none = context.new_empty(len(context), 0)
        if not values:
            return cls(context, none, none, none)
        lengths = torch.tensor([len(each) for each in values], device=context.device)
        own, compared = (pad_sequence(list(states), True) for states in (values, keys))
        return cls(context, own, compared, lengths)

    def rows(self, index: Tensor | slice) -> "Source":
        """Return what is known of some of the sources."""
        return Source(*(part[index] for part in self))


@dataclass(frozen=True)
class Tokens:
    """The tokens that the decoder reads, and how it embeds and predicts others."""

    ids: Tensor  # (N,)
    forced: Tensor | None  # (N,) bool: whether it reads this one, not its own; None: all
    embed: Callable[[Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]  # hidden states (n, C) to the most likely tokens (n,)


@dataclass(frozen=True)
class Decoded:
    """The states of the targets, those that go on, and the weights of attention (N, S)."""

    hidden: Tensor
    states: States
    weights: Tensor | None


class Alignment(nn.Module):
    """Weights of the source's tokens for each state of the decoder."""

    MATRICES = {"key.weight": 1, "query.weight": 1, "place.weight": 1}  # noqa: RUF012

    def __init__(self, config: Config):
        super().__init__()
        score, source, width = config.score, config.source_size, config.hidden_size
        self.window, self.window_size = config.window, config.window_size
        # W_a h_s of general and additive; the additive query has a layer of its own, with the bias.
        self.key = nn.Linear(source, width, bias=False) if score != "dot" else None
        self.query = nn.Linear(width, width) if score == "additive" else None
        self.weight = nn.Linear(width, 1, bias=False) if score == "additive" else None
        self.place = self.place_weight = None
        if config.window == "local_p":
            self.place = nn.Linear(width, width, bias=False)  # W_p
            self.place_weight = nn.Linear(width, 1, bias=False)  # v_p

    def keys(self, values: Tensor) -> Tensor:
        """Return states of the encoder (M, E) as the score compares them, (M, C)."""
        return values if self.key is None else self.key(values)

    def forward(self, states: Tensor, positions: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Return contexts (B, T, E) and weights (B, T, S) of states (B, T, C).

        `positions` (B, T) are those of the states in their targets, from 0.
        """
        place = torch.arange(source.keys.shape[1], device=states.device)
        seen = (place < source.lengths[:, None])[:, None]  # (B, 1, S)
        distance = None
        if self.window != "global":
            distance = place - self._centre(states, positions, source)[..., None]  # (B, T, S)
            seen = seen & (distance.abs() <= self.window_size)
        scores = self._scores(states, source).float().masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1)
        if self.window == "local_p" and distance is not None:
            # A Gaussian around the centre with sigma = D / 2 (Luong et al. 2015, eq. 10).
            weights = weights * torch.exp(-2 * (distance / self.window_size) ** 2)
        return weights.to(source.values.dtype) @ source.values, weights

    def _scores(self, states: Tensor, source: Source) -> Tensor:
        if self.query is None or self.weight is None:
            return states @ source.keys.transpose(1, 2)
        both = self.query(states)[:, :, None] + source.keys[:, None]  # (B, T, S, C)
        return self.weight(torch.tanh(both)).squeeze(-1)

    def _centre(self, states: Tensor, positions: Tensor, source: Source) -> Tensor:
        """Return p_t, (B, T): the centre of each local window."""
        last = source.lengths[:, None] - 1
        if self.place is None or self.place_weight is None:
            return torch.minimum(positions, last)
        share = torch.sigmoid(self.place_weight(torch.tanh(self.place(states)))).squeeze(-1)
        return last * share.float()


class Decoder(nn.Module):
    """A recurrent decoder, with attention if there is a score."""

    MATRICES = {"combine.weight": 1}  # noqa: RUF012

    def __init__(self, config: Config):
        super().__init__()
        self.config, width = config, config.hidden_size
        self.cells = make_layers(config.cell, config, config.step_size)
        self.alignment = self.combine = None
        if config.score is not None:
            self.alignment = Alignment(config)
            if config.joined == "tanh":
                # h~ = tanh(W_c [c; h]), Luong et al. 2015, eq. 5
                self.combine = nn.Linear(config.source_size + width, width, bias=False)
        if config.joined == "maxout":
            # s' = O_c c + O_h h + O_y y, and s_i = max(s'_2i, s'_2i+1): Cho et al. 2014, app. A.1.2
            token = config.input_size if config.previous_output else 0
            self.combine = nn.Linear(config.source_size + width + token, 2 * width)
        self.first = nn.ParameterDict()
        if config.context == "every_step" and config.first_state == "learned":
            for name in zeros(self.cells, torch.empty(0), 1):
                # A vector, with all layers: biases and the like have no weight decay.
                self.first[name] = nn.Parameter(torch.zeros(config.num_layers * width))

    def forward(self, layout: Layout, tokens: Tokens, source: Source, states: States) -> Decoded:
        """Return what predicts the next tokens, (N, output_size); sequences go on from `states`."""
        time = TimeFirst.of(layout.lengths, layout.device)
        own = tokens.forced is not None and self.config.previous_output
        if own or self.config.input_feeding or self.config.attends_before:
            return self._stepwise(layout, time, tokens, source, states)
        embedded = tokens.embed(tokens.ids) if self.config.previous_output else None
        context = source.context[layout.document_ids]
        x = self._inputs(embedded, context)
        hidden, after = run(self.cells, x, time, states)
        if self.alignment is None:
            if self.config.joins_context:
                hidden = self._join(context, hidden, embedded)
            return Decoded(hidden, after, None)
        # A rectangle of the targets, for attention alone.
        row = layout.document_ids
        column = torch.arange(layout.total, device=row.device) - layout.cu_seqlens[row]
        shape = (len(layout.lengths), layout.max_length)
        rectangle = hidden.new_zeros(*shape, hidden.shape[1]).index_put((row, column), hidden)
        positions = layout.positions.new_zeros(shape).index_put((row, column), layout.positions)
        contexts, weights = self.alignment(rectangle, positions, source)
        hidden = self._join(contexts[row, column], hidden, embedded)
        return Decoded(hidden, after, weights[row, column])

    def first_states(self, like: Tensor, count: int) -> States:
        """Return the states before the first step where the encoder gives none."""
        states = zeros(self.cells, like, count)
        for name, learned in self.first.items():
            states[name] = learned.view(1, *states[name].shape[1:]).expand_as(states[name])
        return states

    def _inputs(self, embedded: Tensor | None, context: Tensor, *fed: Tensor) -> Tensor:
        """Return what steps read, (n, step_size)."""
        parts = [] if embedded is None else [embedded]
        if self.config.context != "initial_state":
            parts.append(context)
        if self.config.input_feeding:
            parts += fed
        return torch.cat(parts, 1) if parts else context.new_ones(len(context), 1)

    def _join(self, context: Tensor, state: Tensor, embedded: Tensor | None) -> Tensor:
        """Return (n, output_size), what context and state say together; `embedded` as `_inputs`."""
        context = context.to(state.dtype)
        if self.config.joined == "sum":
            return context + state
        both = torch.cat([context, state], 1)
        if self.combine is None:
            return both
        if self.config.joined == "tanh":
            return torch.tanh(self.combine(both))
        if embedded is not None:
            both = torch.cat([both, embedded.to(both.dtype)], 1)
        pairs = self.combine(both).unflatten(1, (-1, 2))
        return torch.maximum(pairs[..., 0], pairs[..., 1])

    def _stepwise(
        self, layout: Layout, time: TimeFirst, tokens: Tokens, source: Source, states: States
    ) -> Decoded:
        source, positions = source.rows(time.rows), layout.positions[time.order]
        embedded = tokens.embed(tokens.ids[time.order]) if self.config.previous_output else None
        forced = None if tokens.forced is None else tokens.forced[time.order]
        now = {name: part[time.rows] for name, part in states.items()}
        if FED not in now:
            now[FED] = now["h"].new_zeros(len(time.rows), self.config.output_size)
        hidden: list[Tensor] = []
        weights: list[Tensor] = []
        for here, _ in time.steps():
            # Sequences that have ended stand behind the others.
            count = here.stop - here.start
            going = {name: part[:count] for name, part in now.items()}
            read = None if embedded is None else embedded[here]
            if hidden and forced is not None and read is not None and not forced[here].all():
                own = tokens.embed(tokens.predict(going[FED]))
                read = torch.where(forced[here][:, None], read, own)
            after, each = self._step(read, source.rows(slice(count)), going, positions[here])
            now = {name: torch.cat([after[name], part[count:]]) for name, part in now.items()}
            hidden.append(after[FED])
            weights += [] if each is None else [each]
        back = time.rows.argsort()
        after = {name: part[back] for name, part in now.items()}
        return Decoded(_in_pack(hidden, time), after, _in_pack(weights, time) if weights else None)

    def _step(
        self, read: Tensor | None, source: Source, states: States, positions: Tensor
    ) -> tuple[States, Tensor | None]:
        """Return the states after one step, and the weights of attention (n, S)."""
        cells = {name: part for name, part in states.items() if name != FED}
        fed, context, weights = states[FED], source.context, None
        if self.config.attends_before:
            context, weights = self._attend(states["h"][:, -1], positions, source)
        state, after = one_step(self.cells, self._inputs(read, context.to(fed.dtype), fed), cells)
        if weights is None and self.alignment is not None:
            context, weights = self._attend(state, positions, source)
        if self.config.joins_context:
            state = self._join(context, state, read)
        return after | {FED: state}, weights

    def _attend(self, state: Tensor, positions: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Return contexts (n, E) and weights (n, S) of one state each (n, C)."""
        assert self.alignment is not None
        contexts, weights = self.alignment(state[:, None], positions[:, None], source)
        return contexts.squeeze(1), weights.squeeze(1)


def _in_pack(steps: list[Tensor], time: TimeFirst) -> Tensor:
    """Return what the steps gave, (N, …), in the order of the pack."""
    packed = torch.cat(steps)
    return torch.empty_like(packed).index_copy(0, time.order, packed)
