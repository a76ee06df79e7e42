"""Bases of objectives on running text: its pieces, all of one length; a loss over labels.

I pieces, D documents, N tokens of a batch, M targets, S sequences, C model width.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nlpkit.contracts.abilities import DEFAULT_NEW_TOKENS, Generative, ReadsSource
from nlpkit.contracts.batch import IGNORE, Batch, Loss, Spans, Term
from nlpkit.contracts.objective import ModelSettings, Objective, TrainedModel
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.plural import number_of

if TYPE_CHECKING:
    import torch


class TextObjective(Objective):
    """An optional base class of objectives on running text, with the usual default values.

    Each document is cut into pieces of `max_length` - `extra` tokens, where `extra` is the number
    of additional tokens of an example. A last piece shorter than `min_piece` is dropped.
    """

    extra = 0
    min_piece = 1

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        check_length(config.max_length, model_config)

    def spans(self, lengths: np.ndarray) -> Spans:
        return cut_documents(lengths, self.config.max_length - self.extra, self.min_piece)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        return pieces + self.extra


class LabelTargets(Objective):
    """A base of objectives whose targets are the tokens with a label, in one term on text."""

    term: ClassVar[str]  # the name of the term
    predicts_text = True
    label_smoothing: float | None = 0.0  # in training; None: not bound yet

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {self.term: int((batch["labels"] != IGNORE).sum())}

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: the tokens with a label; None in a batch of texts to be scored."""
        labels = batch.fields.get("labels")
        return None if labels is None else labels != IGNORE

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the targets; logits are computed for no other token."""
        labels = batch.fields["labels"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        more: Any = {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}
        loss_sum, each = model.token_loss(hidden, index, labels[index], **more)
        parts = self.loss_parts(batch, index, each)
        return Loss({self.term: Term(loss_sum, len(index), parts=parts, is_text=True)})

    def loss_parts(
        self, batch: Batch, index: torch.Tensor, each: torch.Tensor
    ) -> Mapping[str, tuple[torch.Tensor, int]] | None:
        """Return `Term.parts` from the losses `each` (M,) of the targets at rows `index` (M,)."""
        return None


def loss_parts(
    names: Sequence[str], kinds: torch.Tensor, batch: Batch, index: torch.Tensor, each: torch.Tensor
) -> dict[str, tuple[torch.Tensor, int]]:
    """Return sum and number of the targets in sequences of each kind, by name.

    `kinds` (S,) is the index in `names` of each sequence, `index` (K,) the rows of the targets in
    the pack, `each` (K,) their losses, without gradient.
    """
    import torch

    sizes = torch.tensor(batch.lengths, device=kinds.device)
    of_targets = kinds.repeat_interleave(sizes, output_size=batch.tokens)[index]
    sums = each.new_zeros(len(names)).index_add(0, of_targets, each)
    counts = torch.bincount(of_targets, minlength=len(names)).tolist()
    return {name: (total, count) for name, total, count in zip(names, sums, counts, strict=True)}


def forward(
    objective: Objective,
    model: Callable[..., torch.Tensor],
    batch: Batch,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the model's hidden states (N, C) for the inputs that the objective lists.

    The input `progress` is the completed share of the run, from 0 to 1. States are needed of the
    `rows` (M,), by default of the tokens that the loss reads. Those of other tokens are NaN where
    the model leaves them out, so that a loss that reads them does not go unnoticed.
    """
    given = {**batch.fields, "progress": batch.progress}
    inputs = {name: given[name] for name in objective.inputs}
    method = getattr(model, "forward", None)
    # Not the bound method, which would keep the model.
    takes_rows = _takes_rows(getattr(method, "__func__", method))
    rows = _find_rows(objective, batch) if takes_rows and rows is None else rows
    if not takes_rows or rows is None:
        return model(batch.lengths, **inputs)
    states = model(batch.lengths, rows=rows, **inputs)
    left_out = states.new_full((sum(batch.lengths), states.shape[1]), math.nan)
    return left_out.index_copy(0, rows, states)


@cache
def _takes_rows(function: Callable[..., torch.Tensor] | None) -> bool:
    return function is not None and "rows" in inspect.signature(function).parameters


def _find_rows(objective: Objective, batch: Batch) -> torch.Tensor | None:
    """Return the tokens (M,) whose states the loss reads; None: all."""
    read = objective.tokens_read(batch)
    # On a GPU the numbers of rows would have to be waited for.
    if read is None or read.device.type != "cpu":
        return None
    read[np.cumsum((0, *batch.lengths[:-1]))] = True
    rows = read.nonzero().squeeze(1)
    return rows if len(rows) < len(read) else None


def cut_documents(lengths: np.ndarray, size: int, min_size: int) -> Spans:
    """Return pieces of `size` tokens; a document's last one is dropped if below `min_size`."""
    lengths = np.asarray(lengths, np.int64)
    full, remainder = np.divmod(lengths, size)
    kept = full + (remainder >= min_size)
    document = np.repeat(np.arange(len(kept)), kept)
    first = np.cumsum(kept) - kept
    start = (np.arange(len(document)) - np.repeat(first, kept)) * size
    stop = np.minimum(start + size, lengths[document])
    short = (remainder > 0) & (remainder < min_size)
    dropped = {
        "short_pieces": int(short.sum()),
        "short_piece_tokens": int(remainder[short].sum()),
        "documents_without_piece": int((kept == 0).sum()),
    }
    return Spans(document, start, stop, dropped)


def cut_stream(lengths: np.ndarray, size: int, end: int) -> Spans:
    """Return pieces of `size` tokens of all documents as one stream, each with `end` behind it.

    Only the last piece is shorter, and nothing is dropped.
    """
    framed = np.asarray(lengths, np.int64) + 1  # (D,)
    ends = np.cumsum(framed)
    total = int(ends[-1]) if len(ends) else 0
    start = np.arange(0, total, size)
    sizes = np.minimum(size, total - start)
    document = np.searchsorted(ends, start, side="right")
    start = start - (ends - framed)[document]
    return Spans(document, start, start + sizes, {}, (), (end,))


def lay_out(
    parts: Sequence[Sequence[int]], blanks: Sequence[int], max_tokens: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the text (T,), where blanks are among text and blanks (T + M,), and what is cut.

    `parts` are the texts before, between and after the blanks, `blanks` their numbers of tokens. If
    both have more than `max_tokens`, the text loses its start, up to the first blank, then its end.

    Raises:
        ValueError: the text from the first blank to the last is too long.
    """
    first, *between, last = (list(part) for part in parts)
    size = sum(map(len, parts)) + sum(blanks)
    before = min(max(size - max_tokens, 0), len(first))
    after = max(size - before - max_tokens, 0)
    if after > len(last):
        inside = number_of(size - len(first) - len(last), "tokens")
        raise ValueError(f"{inside} from the first blank to the last; at most {max_tokens} fit")
    pieces = [first[before:], *between, last[: len(last) - after]]
    is_blank = [np.zeros(len(pieces[0]), np.bool_)]
    for blank, piece in zip(blanks, pieces[1:], strict=True):
        is_blank += [np.ones(blank, np.bool_), np.zeros(len(piece), np.bool_)]
    text = np.concatenate([np.asarray(piece, np.int64) for piece in pieces])
    return text, np.concatenate(is_blank), before + after


def longest_sequence(model_config: object) -> float:
    """Return the most tokens of a sequence that a model takes; infinite if any number."""
    return min((limit for _, limit in _limits(model_config)), default=math.inf)


def check_length(max_length: int, model_config: object) -> None:
    """Raise `ValueError` if examples of `max_length` are longer than the model's sequences.

    A family without such a setting accepts sequences of any length.
    """
    for setting, limit in _limits(model_config):
        if max_length > limit:
            raise ValueError(
                f"objective.max_length: {max_length} is more than {setting} {limit}; "
                "lower the one or raise the other"
            )


def _limits(model_config: object) -> Iterator[tuple[str, int]]:
    """Yield the settings that limit a model's sequences, and the limits."""
    names = {"max_positions": "model.max_positions", "attention_length": "attention.max_length"}
    for name, setting in names.items():
        if (limit := getattr(model_config, name, None)) is not None:
            yield setting, limit


def default_new_tokens(objective: Generative) -> int:
    """Return the most tokens to add if no setting says it."""
    if isinstance(objective, ReadsSource):
        return min(DEFAULT_NEW_TOKENS, objective.max_new_tokens)
    return max(min(DEFAULT_NEW_TOKENS, objective.max_length // 2), 1)
