"""Examples of a source and a target, for models that read the one and predict the other.

The source and an end token are read at once; the target is predicted token by token, from the
source and what stands before. So a pack has two layouts: sequence i of the targets sees sequence i
of the sources, and nothing is padded. The family's `target_tokens` begin and end a target.
Sources may have a tokenizer, and so a vocabulary, of their own. Both texts of the published BART
begin with `<s>`, as its tokenizer says; what is written begins with it, too.

S tokens of a source and T of a target, with those around a text; N targets of a pack.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import numpy as np
from pydantic import Field as Setting

from nlpkit.contracts.abilities import Prompt
from nlpkit.contracts.batch import IGNORE, SOURCE_LENGTHS, Field, Spans
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable, Template
from nlpkit.objectives.examples.frame import find_id
from nlpkit.objectives.examples.text import LabelTargets, TextObjective, cut_documents, cut_stream
from nlpkit.objectives.tasks.rows import shorten
from nlpkit.tokenizers.library.hf import find_begin
from nlpkit.tokenizers.library.source_and_target import of_sources

# A setting of objectives that cut text into sources and targets.
Contiguous = Annotated[
    bool,
    Setting(description="cut the text of all documents as one stream, with an end token after each "
            "document; false: each example has text of one document"),
]  # fmt: skip


class SourceTarget(LabelTargets):
    """The fields and the loss of a target with a source."""

    inputs: tuple[str, ...] = ("input_ids", "source_ids", SOURCE_LENGTHS)
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "labels": Field(np.int64),
        "source_ids": Field(np.int64, per="source"),
    }
    needs: tuple[str, ...] = ("encodes_source",)
    tokenizer: Any
    model_config: Any
    label_smoothing: float | None = None  # None: that of the family's paper
    max_length: int
    source_front: tuple[int, ...] = ()  # what stands before each source: BART's `<s>`
    front: tuple[int, ...] = ()  # and before each target, if it does not begin with it anyway
    around = 2  # tokens around a source and a target
    kept_part = "start"  # of a source that is too long: start or end

    @classmethod
    def special_tokens(cls, config: Any, model_config: ModelSettings) -> tuple[str, ...]:
        return tuple(dict.fromkeys(model_config.target_tokens))

    def bind(
        self, tokenizer: Extendable, model_config: ModelSettings, words: tuple[str, ...] = ()
    ) -> None:
        """Set the ids of what stands around a target and a source, and how long both may be.

        `words` are special tokens within the texts.
        """
        begin, end = (find_id(tokenizer, token) for token in model_config.target_tokens)
        self.begin, self.end = begin, end
        if self.label_smoothing is None:
            self.label_smoothing = model_config.label_smoothing
        self.source_tokenizer = cast("Extendable", of_sources(tokenizer))
        self.source_end = find_id(self.source_tokenizer, model_config.target_tokens[1])
        self.eos_token_ids = (end,)
        first, after = "$A:0", f"{tokenizer.token(end)}:0"
        front = find_begin(tokenizer)
        if front is not None and (begin == end or getattr(tokenizer, "aliases", None)):
            self.source_front = (front,)
            self.front = () if front == begin else (front,)
            self.around = 3 + len(self.front)
            first = f"{tokenizer.token(front)}:0 $A:0"
        self.max_length = self.config.max_length
        self.max_new_tokens = self.max_length - len(self.front)
        self.template = Template(f"{first} {after}", f"{first} {after} $B:0 {after}", words)

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens that are no target; an end token may also be what targets begin with."""
        ids = (self.begin, self.tokenizer.pad_id, self.tokenizer.unk_id)
        return tuple(dict.fromkeys(each for each in ids if each not in (None, self.end)))

    def made(self, source: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
        """Return the example of a source and a target, without the tokens around them.

        Unknown tokens are read, but never predicted.
        """
        labels = np.concatenate([self.front, target, [self.end]]).astype(np.int64)
        input_ids = np.concatenate([[self.begin], labels[:-1]])
        if self.tokenizer.unk_id is not None:
            labels[labels == self.tokenizer.unk_id] = IGNORE
        return {"input_ids": input_ids, "labels": labels, "source_ids": self._with_frame(source)}

    def _with_frame(self, source: Sequence[int] | np.ndarray) -> np.ndarray:
        return np.concatenate([self.source_front, source, [self.source_end]]).astype(np.int64)

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the source, which loses what is too long, and slots for its target."""
        source, cut = shorten(ids, self.max_length - 1 - len(self.source_front), self.kept_part)
        if not len(source):
            raise ValueError("the source is empty")
        predicted_from = np.full(new_tokens, -1)
        predicted_from[0] = len(self.front)
        return Prompt(
            {"input_ids": np.array([self.begin, *self.front], np.int64)},
            {},
            predicted_from,
            np.empty(0, np.int64),
            cut=cut,
            source={"source_ids": self._with_frame(source)},
        )


class TextSourceTarget(SourceTarget, TextObjective):
    """Source and target are made of a piece of running text, of at most `piece` tokens."""

    piece: int

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the pieces of each document, or with `contiguous` those of all as one stream."""
        if self.config.contiguous:
            return cut_stream(lengths, self.piece, self.end)
        return cut_documents(lengths, self.piece, self.min_piece)

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of a part of a text, which may be empty."""
        return self.tokenizer.encode(text) if text else []
