"""Causal language modelling: every token from those to its left (Radford et al. 2018, eq. 1).

`contiguous`, as in the paper: the documents, an end token after each where the tokenizer has one,
are one stream, cut every `max_length` tokens. Otherwise each document is cut apart, after its begin
and end token. The first input of a piece is the last target of the piece before it, so each token
is a target exactly once, but for the first of all (of each document), where nothing stands before.
In a mixture a piece has the weight of the document that it begins in.

I pieces, T inputs and as many targets of an example, which is made of T + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.objectives.contract import (
    Field,
    Loss,
    ModelSettings,
    Prompt,
    Spans,
    Term,
    TextObjective,
    TrainedModel,
)

if TYPE_CHECKING:
    import torch

    from nlpkit.data.pack import Batch
    from nlpkit.tokenizers.contract import Tokenizer


class Config(FrozenConfig):
    """How text is cut into examples."""

    max_length: int = Setting(512, ge=1, description="longest example, in tokens")
    contiguous: bool = Setting(
        True,
        description="cut the text of all documents as one stream, in the order of the files; "
        "false: an example has text of one document only",
    )


class Objective(TextObjective):
    """Examples and loss of next-token prediction."""

    parts = ("clm",)
    inputs = ("input_ids",)
    fields: Mapping[str, Field] = {"input_ids": Field(np.int64), "labels": Field(np.int64)}
    predicts_text = True
    needs = ("causal",)

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: ModelSettings):
        """Bind the settings; `model_config` gives `max_positions`, if the family has a longest.

        Raises:
            ValueError: `max_length` is more than that.
        """
        super().__init__(config, tokenizer, model_config)
        begin, end = tokenizer.bos_id, tokenizer.eos_id
        self.before = () if config.contiguous or begin is None else (begin,)
        self.after = () if end is None else (end,)
        self.max_length, self.eos_token_ids = config.max_length, self.after

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return spans of at most `max_length` + 1 tokens, each beginning with the one before."""
        framed = np.asarray(lengths, np.int64) + len(self.before) + len(self.after)  # (D,)
        streams = framed.sum(keepdims=True) if self.config.contiguous else framed
        step = self.config.max_length
        count = -(-(streams - 1).clip(0) // step)  # no piece without a target
        stream = np.repeat(np.arange(len(count)), count)
        first = np.cumsum(count) - count
        start = (np.arange(len(stream)) - np.repeat(first, count)) * step
        size = np.minimum(step + 1, streams[stream] - start)
        document = stream
        if self.config.contiguous:
            ends = np.cumsum(framed)
            document = np.searchsorted(ends, start, side="right")
            start = start - (ends - framed)[document]
        # A begin token is no text; without one, nothing predicts what comes first.
        untold = 0 if self.before else len(streams)
        alone = int((count == 0).sum())
        dropped = {"first_tokens_without_context": untold, "documents_without_piece": alone}
        return Spans(document, start, start + size, dropped, self.before, self.after)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the inputs of each example: its last token is a target only."""
        return pieces - 1

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs and targets, each (T,), of a piece of T + 1 tokens."""
        whole = ids.astype(np.int64)
        return {"input_ids": whole[:-1], "labels": whole[1:]}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of predicted tokens: all."""
        return {"clm": batch["labels"].size}

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over all tokens."""
        import torch

        labels = batch.fields["labels"]
        index = torch.arange(len(labels), device=labels.device)
        loss_sum, token_losses = model.token_loss(hidden, index, labels)
        parts = {"clm": (token_losses.sum(), len(labels))}
        return Loss({"clm": Term(loss_sum, len(labels), parts=parts, of_text=True)})

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens that are no target: the begin token, and the one for padding."""
        ids = (self.tokenizer.bos_id, self.tokenizer.pad_id)
        return tuple(i for i in ids if i is not None and i not in self.eos_token_ids)

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the text, as documents begin, and `new_tokens` slots behind it.

        Of a text that is too long the end is kept. In a stream of documents an empty one is what
        follows an end token.

        Raises:
            ValueError: the text is empty and the tokenizer has no token to begin with.
        """
        begin = self.before or (() if len(ids) else self.after)
        most = self.max_length - new_tokens - len(begin)
        kept = np.asarray(ids, np.int64)[max(len(ids) - most, 0) :]
        given = np.concatenate([np.asarray(begin, np.int64), kept])
        if not len(given):
            raise ValueError("the text is empty, and the vocabulary has no token to begin with")
        source = np.full(new_tokens, -1)
        source[0] = len(given) - 1
        return Prompt({"input_ids": given}, {}, source, kept, cut=len(ids) - len(kept))
