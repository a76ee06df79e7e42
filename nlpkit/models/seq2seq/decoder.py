"""The recurrent decoder: all targets at once where its inputs are known, else step by step.

A step has to wait for the one before if it reads the attention of that one (Bahdanau's decoder,
Luong's input feeding), or the token that the model itself would write (no teacher forcing).

N tokens of the targets, B sequences, n of them at a step, E encoder width, C hidden_size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nlpkit.contracts.request import Layout
from nlpkit.models.layers.recurrence import TimeFirst
from nlpkit.models.layers.recurrent_layers import States, make_layers, one_step, run
from nlpkit.models.seq2seq import Config
from nlpkit.models.seq2seq.alignment import Alignment, Memory

FED = "fed"  # among the states: the attentional state of the step before, (B, C)


@dataclass(frozen=True)
class Source:
    """What the decoder knows of the sources."""

    context: Tensor  # c, (B, E), the last state of the encoder
    memory: Memory | None  # None: no attention

    def rows(self, index: Tensor | slice) -> "Source":
        """Return what is known of some of the sources."""
        memory = None if self.memory is None else self.memory.rows(index)
        return Source(self.context[index], memory)


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


class Decoder(nn.Module):
    """A recurrent decoder, with attention if there is a score."""

    MATRICES = {"combine.weight": 1}  # noqa: RUF012

    def __init__(self, config: Config):
        super().__init__()
        self.config, width = config, config.hidden_size
        self.cells = make_layers(
            config.cell,
            config.step_size,
            width,
            num_layers=config.num_layers,
            dropout=config.dropout,
        )
        self.alignment = self.combine = None
        if config.score is not None:
            self.alignment = Alignment(
                config.score, config.window, config.window_size, config.source_size, width
            )
            # h~ = tanh(W_c [c; h]), Luong et al. 2015, eq. 5
            self.combine = nn.Linear(config.source_size + width, width, bias=False)

    def forward(self, layout: Layout, tokens: Tokens, source: Source, states: States) -> Decoded:
        """Return the states (N, C) of the targets; sequences go on from `states`."""
        time = TimeFirst.of(layout.lengths, layout.device)
        own = tokens.forced is not None and self.config.previous_output
        if own or self.config.input_feeding or self.config.attends_before:
            return self._stepwise(layout, time, tokens, source, states)
        return self._at_once(layout, time, tokens, source, states)

    def _at_once(
        self, layout: Layout, time: TimeFirst, tokens: Tokens, source: Source, states: States
    ) -> Decoded:
        parts = [tokens.embed(tokens.ids)] if self.config.previous_output else []
        if self.config.context != "initial_state":
            parts.append(source.context[layout.document_ids])
        x = torch.cat(parts, 1) if parts else source.context.new_ones(layout.total, 1)
        hidden, after = run(self.cells, x, time, states)
        if self.alignment is None or source.memory is None:
            return Decoded(hidden, after, None)
        # A rectangle of the targets, for attention alone.
        row = layout.document_ids
        column = torch.arange(layout.total, device=row.device) - layout.cu_seqlens[row]
        shape = (len(layout.lengths), layout.max_length)
        rectangle = hidden.new_zeros(*shape, hidden.shape[1]).index_put((row, column), hidden)
        positions = layout.positions.new_zeros(shape).index_put((row, column), layout.positions)
        contexts, weights = self.alignment(rectangle, positions, source.memory)
        return Decoded(
            self._attentional(contexts[row, column], hidden), after, weights[row, column]
        )

    def _attentional(self, context: Tensor, state: Tensor) -> Tensor:
        """Return (n, C), what attention and state together say."""
        assert self.combine is not None
        return torch.tanh(self.combine(torch.cat([context.to(state.dtype), state], 1)))

    def _stepwise(
        self, layout: Layout, time: TimeFirst, tokens: Tokens, source: Source, states: States
    ) -> Decoded:
        source, positions = source.rows(time.rows), layout.positions[time.order]
        embedded = tokens.embed(tokens.ids[time.order]) if self.config.previous_output else None
        forced = None if tokens.forced is None else tokens.forced[time.order]
        if FED not in states:
            width = self.config.hidden_size
            states = states | {FED: source.context.new_zeros(len(source.context), width)}
        now = {name: part[time.rows] for name, part in states.items()}
        hidden: list[Tensor] = []
        weights: list[Tensor] = []
        ended: list[States] = []  # of sequences that have no further token, the shortest first
        for here, _ in time.steps():
            count = here.stop - here.start
            ended.append({name: part[count:] for name, part in now.items()})
            now, source = (
                {name: part[:count] for name, part in now.items()},
                source.rows(slice(count)),
            )
            read = None if embedded is None else embedded[here]
            if hidden and forced is not None and read is not None and not forced[here].all():
                own = tokens.embed(tokens.predict(hidden[-1][:count]))
                read = torch.where(forced[here][:, None], read, own)
            now, each = self._step(read, source, now, positions[here])
            hidden.append(now[FED])
            weights += [] if each is None else [each]
        back = time.rows.argsort()
        parts = [now, *reversed(ended)]
        after = {name: torch.cat([part[name] for part in parts])[back] for name in now}
        return Decoded(_in_pack(hidden, time), after, _in_pack(weights, time) if weights else None)

    def _step(
        self, read: Tensor | None, source: Source, states: States, positions: Tensor
    ) -> tuple[States, Tensor | None]:
        """Return the states after one step, and the weights of attention (n, S)."""
        config, context, weights = self.config, source.context, None
        if config.attends_before:
            context, weights = self._attend(states["h"][:, -1], positions, source.memory)
        fed = states[FED]
        parts = [] if read is None else [read]
        parts += [context.to(fed.dtype)] if config.context != "initial_state" else []
        parts += [fed] if config.input_feeding else []
        cells = {name: part for name, part in states.items() if name != FED}
        state, after = one_step(self.cells, torch.cat(parts, 1), cells)
        if self.alignment is not None:
            if not config.attends_before:
                context, weights = self._attend(state, positions, source.memory)
            state = self._attentional(context, state)
        return after | {FED: state}, weights

    def _attend(
        self, state: Tensor, positions: Tensor, memory: Memory | None
    ) -> tuple[Tensor, Tensor]:
        """Return contexts (n, E) and weights (n, S) of one state each (n, C)."""
        assert self.alignment is not None
        assert memory is not None
        contexts, weights = self.alignment(state[:, None], positions[:, None], memory)
        return contexts.squeeze(1), weights.squeeze(1)


def _in_pack(steps: list[Tensor], time: TimeFirst) -> Tensor:
    """Return what the steps gave, (N, …), in the order of the pack."""
    packed = torch.cat(steps)
    return torch.empty_like(packed).index_copy(0, time.order, packed)
