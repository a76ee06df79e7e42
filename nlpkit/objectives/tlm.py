"""Translation language modelling (XLM, Lample and Conneau 2019, arXiv:1901.07291, sec. 3.4).

`[CLS] A [SEP] B [SEP]`: a sentence and its translation (`data.format: parallel`), masked as in
`mlm`, so that a token is predicted from both languages. Positions restart at the translation. Each
token has its language, `langs` of XLM or the token type of other families: 0 in the source's files,
1 in the target's.
A pair that is too long is dropped, because what is left of it would not be a translation.

The paper trains masked language modelling of each language beside it: `monolingual` is the share of
the pairs whose texts are two sequences, `[CLS] A [SEP]` and `[CLS] B [SEP]`, that do not see each
other.

T tokens of an example, D pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field as Setting

from nlpkit.contracts.batch import LENGTHS, Batch, Field, FlaggedIds, Spans
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.errors import DataError
from nlpkit.objectives.examples.masking import Masking, Rates
from nlpkit.objectives.examples.pairs import Pairing, part
from nlpkit.objectives.examples.text import loss_parts

if TYPE_CHECKING:
    import torch


KINDS = ("tlm", "mlm")  # of sequences: a pair, or a text of one language


class Config(Rates):
    """How many tokens are targets, and what becomes of them."""

    max_length: int = Setting(256, ge=5, description="longest example, in tokens")
    languages: list[int] = Setting(
        [0, 1],
        min_length=2,
        max_length=2,
        description="numbers of the languages of the first and the second files in the model",
    )
    monolingual: float = Setting(
        0.0,
        ge=0,
        le=1,
        description="share of the pairs whose texts are masked apart, as in mlm, each a sequence "
        "of its own",
    )


class Objective(Masking, Pairing):
    """Examples and loss of translation language modelling."""

    inputs: tuple[str, ...] = ("input_ids", "token_type_ids", "langs", "position_ids")
    fields: Mapping[str, Field] = {
        **Masking.fields,
        "langs": Field(np.int64),
        "position_ids": Field(np.int64),
    }
    needs = ("bidirectional", "languages", "given_positions")
    token_flags = ("second_side",)
    beside_others = "tlm masks texts of one language, too: set monolingual instead of a mixture"

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        # Families of BERT's kind have token types and no languages.
        self.language_field, other = "langs", "token_type_ids"
        setting = "num_languages"
        if model_config.can("pairs"):
            self.language_field, other = other, self.language_field
            setting = "type_vocab_size"
        self.leave_out(other)
        if config.monolingual:
            self.extra = 2 * self.frame.size()
            self.max_shrink = self.extra - self.frame.size(2)
            self.parts = KINDS
            kind = Field(np.int64, per="sequence", names=KINDS)
            self.fields = {**self.fields, "monolingual": kind}
        known = getattr(model_config, setting)
        if not 0 <= min(config.languages) <= max(config.languages) < known:
            raise ValueError(
                f"objective.languages: {config.languages}; the model has 0 to {known - 1}; raise "
                f"model.{setting} or change them"
            )

    def spans(self, lengths: np.ndarray) -> Spans:
        lengths = np.asarray(lengths, np.int64)
        long = lengths > self.config.max_length - self.extra
        (document,) = np.nonzero(~long & (lengths >= self.min_piece))
        dropped = {
            "pairs_too_long": int(long.sum()),
            "pairs_without_text": int((lengths < self.min_piece).sum()),
        }
        return Spans(document, np.zeros(len(document), np.int64), lengths[document], dropped)

    def example(self, ids: FlaggedIds, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return both texts of a pair, masked, as one sequence or as two.

        Raises:
            DataError: the document is no pair.
        """
        second = ids.has("second_side")
        cut = len(ids) - int(second.sum())
        if cut == len(ids):
            raise DataError(
                "objective: tlm reads pairs of a text and its translation, and a document has one "
                "alone; set data.format: parallel and name both files; if that is so, remove the "
                "cache (data.cache), where an older version kept pairs with an empty text"
            )
        apart = bool(self.config.monolingual) and rng.random() < self.config.monolingual
        texts = (part(ids, 0, cut), part(ids, cut, len(ids)))
        example = self._apart(texts) if apart else self.joined(texts)
        side = example.pop("token_type_ids")
        begin = int((side == 0).sum())
        position = np.arange(len(side))
        position[begin:] -= begin
        example |= {"position_ids": position}
        example[self.language_field] = np.array(self.config.languages)[side]
        if self.config.monolingual:
            sizes = [begin, len(side) - begin] if apart else [len(side)]
            example |= {LENGTHS: np.array(sizes), "monolingual": np.full(len(sizes), int(apart))}
        return self.masked(example, rng)

    def _apart(self, texts: Sequence[FlaggedIds]) -> dict[str, np.ndarray]:
        """Return the texts as two sequences, with their sides as token types."""
        framed = [self.frame.ids([text.ids], np.int64) for text in texts]
        side = np.repeat(np.arange(2), [*map(len, framed)])
        return {"input_ids": np.concatenate(framed), "token_type_ids": side}

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        ids = example["input_ids"]
        sizes = example.get(LENGTHS, np.array([len(ids)]))
        if len(sizes) == 1:
            return self.frame.texts(ids, 2)
        return [self.frame.texts(each, 1)[0] for each in np.split(ids, sizes[:1])]

    def loss_parts(
        self, batch: Batch, index: torch.Tensor, each: torch.Tensor
    ) -> dict[str, tuple[torch.Tensor, int]] | None:
        """Return the loss of each kind of sequence."""
        kinds = batch.fields.get("monolingual")
        return None if kinds is None else loss_parts(KINDS, kinds, batch, index, each)
