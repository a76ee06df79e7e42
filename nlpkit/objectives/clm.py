"""Causal language modelling: the loss of each token given its left context.

Radford et al. 2018, eq. 1.

`contiguous` (as in the paper): the documents, each followed by the end token if the tokenizer has
one, are one stream, which is cut every `max_length` tokens. Otherwise each document, with its begin
and end token, is cut separately. The first input of a piece is the last target of the piece before
it, so each token is a target exactly once, except the first of the stream (or of each document).
In a mixture of corpora a piece has the weight of the document in which it begins.
`<unk>` is an input and no target, because it is never generated.

I pieces; an example has T + 1 tokens, which give T inputs and T targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt, ScoringInput
from nlpkit.contracts.batch import IGNORE, Batch, Field, Loss, Spans, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.tokenizer import Template, Tokenizer
from nlpkit.json_types import JsonMapping
from nlpkit.objectives.examples.text import TextObjective

if TYPE_CHECKING:
    import torch


class Config(FrozenConfig):
    """Settings for cutting text into examples."""

    max_length: int = Setting(512, ge=1, description="longest example, in tokens")
    contiguous: bool = Setting(
        True,
        description="concatenate all documents, in the order of the files, and cut the stream into "
        "examples; attention, or the state of a recurrent model, may cross document boundaries; "
        "false: each example has text of one document",
    )
    learn_unknown: bool = Setting(
        False, description="whether <unk> is learned as a target; it can then be generated"
    )

    EARLIER: ClassVar[JsonMapping] = {"learn_unknown": True}


class Objective(TextObjective):
    """Examples and loss of next-token prediction."""

    parts: tuple[str, ...] = ("clm",)
    inputs: tuple[str, ...] = ("input_ids",)
    fields: Mapping[str, Field] = {"input_ids": Field(np.int64), "labels": Field(np.int64)}
    predicts_text = True
    needs: tuple[str, ...] = ("causal",)
    scoring_methods: tuple[str, ...] = ("log-probability",)
    answer_method = "log-probability"

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        begin, end = tokenizer.bos_id, tokenizer.eos_id
        self.before = () if config.contiguous or begin is None else (begin,)
        self.after = () if end is None else (end,)
        self.max_length, self.eos_token_ids = config.max_length, self.after
        self.unlearned_id = None if config.learn_unknown else tokenizer.unk_id
        # What stands before a document: in a stream, the end of the document before it.
        self.context = self.after if config.contiguous else self.before
        self.max_text = config.max_length + 1 - len(self.context)

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return spans of at most `max_length` + 1 tokens; neighbours share one token."""
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
        # Without a begin token, the first token of a stream has no context.
        no_context = 0 if self.before else len(streams)
        skipped = int((count == 0).sum())
        dropped = {"first_tokens_without_context": no_context, "documents_without_piece": skipped}
        return Spans(document, start, start + size, dropped, self.before, self.after)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        return pieces - 1  # the last token is only a target

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs and targets, each (T,), of a piece of T + 1 tokens."""
        tokens = ids.astype(np.int64)
        labels = tokens[1:]
        if self.unlearned_id is not None:
            labels = np.where(labels == self.unlearned_id, IGNORE, labels)
        return {"input_ids": tokens[:-1], "labels": labels}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {"clm": int((batch["labels"] != IGNORE).sum())}

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over all targets."""
        import torch

        labels = batch.fields["labels"]
        if self.unlearned_id is None:
            index = torch.arange(len(labels), device=labels.device)
        else:
            index = (labels != IGNORE).nonzero().squeeze(1)
        loss_sum, token_losses = model.token_loss(hidden, index, labels[index])
        parts = {"clm": (token_losses.sum(), len(index))}
        return Loss({"clm": Term(loss_sum, len(index), parts=parts, is_text=True)})

    @cached_property
    def template(self) -> Template:  # type: ignore[override]
        """A text that is continued, behind its begin token."""
        start = "".join(f"{self.tokenizer.token(token_id)}:0 " for token_id in self.before)
        return Template(f"{start}$A:0", f"{start}$A:0 $B:0")

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens that are never targets: begin, padding, and `<unk>` if it is not learned."""
        ids = (self.tokenizer.bos_id, self.tokenizer.pad_id, self.unlearned_id)
        return tuple(i for i in ids if i is not None and i not in self.eos_token_ids)

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the begin token, if there is one, the text and `new_tokens` slots.

        A text that is too long loses its start. An empty text begins with the end token if there
        is no begin token.
        """
        begin = self.before or (() if len(ids) else self.after)
        limit = self.max_length - new_tokens - len(begin)
        kept = np.asarray(ids, np.int64)[max(len(ids) - limit, 0) :]
        given = np.concatenate([np.asarray(begin, np.int64), kept])
        if not len(given):
            raise ValueError("the text is empty, and the vocabulary has no token to begin with")
        source = np.full(new_tokens, -1)
        source[0] = len(given) - 1
        return Prompt({"input_ids": given}, {}, source, kept, cut=len(ids) - len(kept))

    def score_text(
        self, ids: np.ndarray, words: np.ndarray, given: int, method: str
    ) -> list[ScoringInput]:
        """Return the text behind what stands before a document; one pass scores all tokens.

        Without such a token, the first token of the text has no context and is no target.
        """
        before = len(self.context)
        targets = np.arange(max(given, 1 - before), len(ids))
        if not len(targets):
            return []
        tokens = np.concatenate([np.asarray(self.context, np.int64), ids])
        return [ScoringInput({"input_ids": tokens[:-1]}, targets + before - 1, targets)]
