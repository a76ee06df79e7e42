"""GLM's blanks: spans of a text are written one after the other (Du et al. 2022, sec. 2.1).

ACL 2022, arXiv:2103.10360. An example is part A, the text with a mask token for each span, which
sees all of A, and part B, the spans in random order, which see A and what is to their left
(attention `prefix`). In B a span follows a start token; its targets are its tokens and an end
token. A token has two positions (sec. 2.2): that in A, for a span that of its mask token, and that
in its span from the start token, 1, or 0 in A.

As in the authors' code (`blocklm_utils.py`), lengths are Poisson numbers above 0, and a token stays
between two spans; half of the long spans of `document` are the end of the text. Differs from it:
the last span is cut where the rate is reached; no token stands before a text; no spans are chosen
as whole sentences.

T tokens of a piece, U spans, N tokens of an example.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt
from nlpkit.contracts.batch import IGNORE, Field, Spans
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.denoising import count
from nlpkit.objectives.examples.frame import find_id
from nlpkit.objectives.examples.text import LabelTargets, TextObjective, cut_documents, lay_out
from nlpkit.objectives.span import place_spans

START, END = "<|startofpiece|>", "<|endofpiece|>"  # as in the released vocabularies


class Config(FrozenConfig):
    """How long examples are, and which spans of them are written; the defaults are the paper's."""

    max_length: int = Setting(
        512, ge=8, description="longest example, in tokens: the text, and two for each span"
    )
    rate: float = Setting(0.15, gt=0, le=0.5, description="share of the tokens that are in spans")
    mean_span: float = Setting(
        3.0, ge=0.5, le=64, description="of the Poisson distribution of the lengths of spans"
    )
    document: float = Setting(
        0.0, ge=0, le=1, description="share of the examples with one span, half of the text or more"
    )


class Objective(LabelTargets, TextObjective):
    """Examples and loss of blank infilling."""

    term = "blank_infilling"
    parts = (term,)
    inputs = ("input_ids", "position_ids", "span_position_ids", "context")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "position_ids": Field(np.int64),
        "span_position_ids": Field(np.int64),
        "context": Field(np.bool_),
        "labels": Field(np.int64),
    }
    needs = ("prefix", "given_positions")

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        names = self.special_tokens(config, model_config)
        self.mask, self.start, self.end = (find_id(tokenizer, name) for name in names)
        self.unlearned = -1 if tokenizer.unk_id is None else tokenizer.unk_id
        self.eos_token_ids = (self.end,)
        self.suppress_tokens = tuple(each for each in tokenizer.special_ids if each != self.end)
        self.max_length = config.max_length - 2
        self.piece = int((self.length(np.arange(1, config.max_length)) <= config.max_length).sum())
        self.max_shrink = 2 * int(self.most_spans(self.piece)) - 2

    @classmethod
    def special_tokens(cls, config: Config, model_config: ModelSettings) -> tuple[str, ...]:
        return (model_config.mask_token, START, END)

    def spans(self, lengths: np.ndarray) -> Spans:
        return cut_documents(lengths, self.piece, self.min_piece)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the most tokens of an example; see `max_shrink`."""
        return np.asarray(pieces) + 2 * self.most_spans(pieces)

    def noise(self, sizes: int | np.ndarray) -> np.ndarray:
        """Return how many tokens of texts of these sizes are in spans: the share, rounded up."""
        return count(sizes, self.config.rate)

    def most_spans(self, sizes: int | np.ndarray) -> np.ndarray:
        """Return how many spans texts of these sizes may have: rarely fewer than are drawn.

        With one for each token of `noise`, batches would be planned for spans that are not there.
        """
        noise = self.noise(sizes)
        usual = np.ceil(noise / self.config.mean_span + np.sqrt(noise))
        return np.minimum(noise, usual.astype(np.int64))

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs and labels (N,); all draws are from `rng`."""
        if rng.random() >= self.config.document:
            starts, stops = self.draw_spans(len(ids), rng)
            return self.build(ids, starts, stops, rng.permutation(len(starts)))
        rest = int(rng.integers(len(ids) // 2 + 1))
        start = rest if rng.random() < 0.5 else int(rng.integers(rest + 1))
        stop = start + len(ids) - rest
        return self.build(ids, np.array([start]), np.array([stop]), np.array([0]))

    def draw_spans(self, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return starts and stops (U,); all places with a token between spans are as likely."""
        noise, lengths = int(self.noise(size)), np.empty(0, np.int64)
        while lengths.sum() < noise:
            drawn = rng.poisson(self.config.mean_span, noise)
            lengths = np.append(lengths, drawn[drawn > 0])
        ends = np.minimum(lengths[: int(self.most_spans(size))].cumsum(), noise)
        lengths = np.diff(ends, prepend=0)
        lengths = rng.permutation(lengths[lengths > 0])
        starts = place_spans(size, lengths, rng)
        return starts, starts + lengths

    def build(
        self, text: np.ndarray, starts: np.ndarray, stops: np.ndarray, order: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return inputs and labels (N,) of a text (T,) whose spans (U,) are written in `order`."""
        is_mask, inside = np.zeros(len(text), np.bool_), np.zeros(len(text), np.bool_)
        is_mask[starts] = True
        for start, stop in zip(starts, stops, strict=True):
            inside[start:stop] = True
        kept = is_mask | ~inside
        place = kept.cumsum() - 1  # in A
        size = int(kept.sum())
        tokens, labels = [np.where(is_mask, self.mask, text)[kept]], [np.full(size, IGNORE)]
        positions, inner = [np.arange(size)], [np.zeros(size, np.int64)]
        for start, stop in zip(starts[order], stops[order], strict=True):
            tokens.append(np.append(self.start, text[start:stop]))
            labels.append(np.append(text[start:stop], self.end))
            positions.append(np.full(stop - start + 1, place[start]))
            inner.append(np.arange(1, stop - start + 2))
        targets, span_position_ids = np.concatenate(labels), np.concatenate(inner)
        return {
            "input_ids": np.concatenate(tokens),
            "position_ids": np.concatenate(positions),
            "span_position_ids": span_position_ids,
            "context": span_position_ids == 0,
            "labels": np.where(targets == self.unlearned, IGNORE, targets),
        }

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        order = np.lexsort((example["span_position_ids"], example["position_ids"]))
        ids = example["input_ids"][order]
        return [ids[~np.isin(ids, (self.mask, self.start, self.end))]]

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the text and a blank behind it; a text that is too long loses its start."""
        return self.fill_blanks((ids, ()), (new_tokens,))

    def fill_blanks(self, parts: Sequence[Sequence[int]], blanks: Sequence[int]) -> Prompt:
        """Return part A and the start tokens, and slots for the spans, in the order of the text.

        All start tokens are given, so the first token of a blank is written without seeing the
        tokens of the blanks before it. A single blank may end before its last token.
        """
        text, is_blank, cut = lay_out(parts, blanks, self.config.max_length - 2 * len(blanks))
        whole = np.zeros(len(is_blank), np.int64)
        whole[~is_blank] = text
        edges = np.flatnonzero(np.diff(is_blank, prepend=False, append=False))
        made = self.build(whole, edges[::2], edges[1::2], np.arange(len(edges) // 2))
        given = made["span_position_ids"] <= 1
        before = np.flatnonzero(~given) - 1
        return Prompt(
            {name: made[name][given] for name in self.inputs},
            {name: made[name][~given] for name in self.inputs if name != "input_ids"},
            np.where(given[before], given.cumsum()[before] - 1, -1),
            text,
            open=len(blanks) == 1,
            cut=cut,
        )
