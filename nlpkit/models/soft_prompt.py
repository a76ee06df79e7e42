"""Virtual tokens before every sequence of any family that reads tokens (Lester et al. 2021).

Their embeddings are trained, the model is frozen (arXiv:2104.08691, sec. 2: [P; X]). With an
encoder and a decoder they stand before the source (`peft`'s `num_transformer_submodules` of 1).
They are part of the sequence for positions and attention, and of its summary, as in peft.
`checkpoints/prompt_layout.py`: on disk.

P virtual tokens; N tokens, S sequences of a pack; V vocabulary, E width of its table, C of states.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nlpkit.models.config import ModelConfig
from nlpkit.models.layers.head import PREFIX

NAME = "soft_prompt"  # of the parameter in a state dict
_PER_TOKEN = frozenset({"input_ids", "token_type_ids", "langs", "position_ids"})
# The inputs of models that read a soft prompt. Others, such as the order of XLNet's two streams,
# would have to say what they are for a virtual token.
INPUTS = _PER_TOKEN | {"source_ids", "source_lengths", "progress"}


class SoftPrompt(nn.Module):
    """What a family's `Model` is, besides, with a soft prompt: a base class of its new class."""

    config: ModelConfig
    soft_prompt: nn.Parameter  # (P, E)
    _states: Tensor  # (S, P, C) of the virtual tokens in the last forward pass

    def forward(self, lengths: Sequence[int], *inputs: Any, **named: Any) -> Tensor:
        """Return the hidden states (N, C) of the tokens that are not virtual."""
        names = [*inspect.signature(super().forward).parameters][1:]
        given = {**dict(zip(names, inputs, strict=False)), **named}
        if self.config.can("encodes_source"):
            sizes = given.get("source_lengths")
            if sizes is None:  # in generation the source was read before
                return super().forward(lengths, **given)
            pack = _Pack(sizes, self.soft_prompt)
            given["source_ids"] = pack.lengthen("source_ids", given["source_ids"], self._table)
            with self._longer_table():
                return super().forward(lengths, **{**given, "source_lengths": pack.lengths})
        cache = given.get("cache")
        if cache is not None and cache.lengths:  # the prompt has been read before
            return super().forward(lengths, **given)
        pack = _Pack(lengths, self.soft_prompt)
        for name in given.keys() & _PER_TOKEN:
            given[name] = pack.lengthen(name, given[name], self._table)
        with self._longer_table():
            hidden = super().forward(pack.lengths, **given)
        self._states = hidden[pack.virtual]
        return hidden[pack.own]

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence with its virtual tokens."""
        summarize: Callable[..., Tensor] = super().summary  # type: ignore[misc]
        if self.config.can("encodes_source"):
            return summarize(hidden, lengths)
        pack = _Pack(lengths, self.soft_prompt)
        return summarize(pack.merge(self._states.to(hidden.dtype), hidden), pack.lengths)

    def alignments(self, *arguments: Any, **named: Any) -> list[Tensor]:
        """Return the weights (T, S) of each source's tokens, without the virtual ones."""
        whole: list[Tensor] = super().alignments(*arguments, **named)  # type: ignore[misc]
        return [weights[:, len(self.soft_prompt) :] for weights in whole]

    @property
    def _table(self) -> Tensor:
        """The input table (V, E)."""
        table = self._parameters[find_table(self)]
        assert table is not None
        return table

    @contextmanager
    def _longer_table(self) -> Iterator[None]:
        """Let the input table have the rows of the virtual tokens behind the others."""
        name, table = find_table(self), self._table
        longer: Any = torch.cat([table, self.soft_prompt.to(table.dtype)])
        self._parameters[name] = longer
        try:
            yield
        finally:
            self._parameters[name] = table  # type: ignore[assignment]


class _Pack:
    """A pack with virtual tokens in front of each sequence: its lengths, and where what stands."""

    def __init__(self, lengths: Sequence[int], prompt: Tensor):
        self.size = size = len(prompt)
        self.lengths = tuple(int(each) + size for each in lengths)
        sizes = torch.tensor(self.lengths, device=prompt.device)
        starts = (sizes.cumsum(0) - sizes)[:, None]
        self.virtual = starts + torch.arange(size, device=prompt.device)  # (S, P)
        is_own = torch.ones(sum(self.lengths), dtype=torch.bool, device=prompt.device)
        is_own[self.virtual] = False
        self.own = is_own.nonzero().squeeze(1)  # (N,)

    def merge(self, virtual: Tensor, own: Tensor) -> Tensor:
        """Return (N + S P, …) of values of the virtual tokens (S, P, …) and of the others."""
        merged = own.new_empty((sum(self.lengths), *own.shape[1:]))
        return merged.index_copy(0, self.own, own).index_copy(
            0, self.virtual.flatten(), virtual.flatten(0, 1)
        )

    def lengthen(self, name: str, values: Tensor, table: Tensor) -> Tensor:
        """Return an input (N + S P,) with the values of the virtual tokens.

        Their ids follow those of the `table`; what is neither id nor position is that of the first
        token of their sequence.
        """
        numbers = torch.arange(self.size, device=values.device).expand(len(self.lengths), -1)
        if name in ("input_ids", "source_ids"):
            return self.merge(numbers + len(table), values)
        if name == "position_ids":
            return self.merge(numbers, values + self.size)
        before = torch.arange(len(self.lengths), device=values.device)  # sequences
        firsts = self.virtual[:, 0] - before * self.size
        return self.merge(values[firsts, None].expand(-1, self.size), values)


def find_table(model: nn.Module) -> str:
    """Return the name of the table that the sequences with virtual tokens are read by."""
    own = getattr(model, "source_embedding", None)  # of a source with its own vocabulary
    return "token_embedding" if own is None else "source_embedding"


def attach(model: Any, rows: Tensor) -> None:
    """Put virtual tokens with embeddings `rows` (P, E) before every sequence that a model reads.

    All else is frozen, but for the head of a task.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(PREFIX))
    model.soft_prompt = nn.Parameter(rows)
    own = type(model)
    model.__class__ = type(own.__name__, (SoftPrompt, own), {"__module__": own.__module__})


def remove(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the model without its soft prompt."""
    return {name: tensor for name, tensor in state.items() if name != NAME}
