"""Span corruption with sentinels, T5's denoising (Raffel et al. 2020, arXiv:1910.10683).

Section 3.1.4. The encoder reads a text with each span replaced by a sentinel, the decoder writes
each sentinel with its span. How many tokens and spans are noise follows from the length of the text
alone; where they are is drawn as in the authors' code (`random_spans_noise_mask`): texts begin with
a token that stays and end with a span, so that no closing sentinel is written.

L tokens of a piece, K tokens of noise in U spans, S tokens of a source, T of a target.
"""

import bisect
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.examples.source_target import Contiguous, TextSourceTarget
from nlpkit.objectives.examples.text import check_length

COUNT = 100  # sentinels, as in T5's vocabulary
# There the first has the greatest id.
SENTINELS = tuple(f"<extra_id_{number}>" for number in reversed(range(COUNT)))
_WRITTEN = re.compile(r"<extra_id_(\d+)>")


class Config(FrozenConfig):
    """How text is cut, and how much of it is noise; the defaults are T5's."""

    max_length: int = Setting(
        512, ge=8, description="longest source, in tokens; pieces of text are longer by the noise"
    )
    rate: float = Setting(0.15, gt=0, le=0.5, description="share of the tokens that are noise")
    mean_span: float = Setting(3.0, ge=1, description="mean number of tokens of a span")
    contiguous: Contiguous = False


class Objective(TextSourceTarget):
    """Examples and loss of span corruption."""

    term = "span_corruption"
    parts = ("span_corruption",)
    label_smoothing = 0.0
    sample_input = "Two <extra_id_0> on the table."
    min_piece = 2  # one token stays, one is noise

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.bind(tokenizer, model_config, SENTINELS)
        ids = {text: tokenizer.special_id(text) for text in SENTINELS}
        self.sentinels = np.array([ids[f"<extra_id_{number}>"] for number in range(COUNT)])
        self.text_of = {token_id: text for text, token_id in ids.items()}
        self.piece = longest_piece(config, config.max_length - len(self.source_front))
        noise, spans = (int(n) for n in self.sizes(np.array(self.piece)))
        if spans > COUNT:
            raise ValueError(
                f"objective.max_length: {config.max_length} tokens have {spans} spans of noise, "
                f"and there are {COUNT} sentinels; lower max_length or rate, or raise mean_span"
            )
        self.max_new_tokens = noise + spans + 1
        check_length(self.max_new_tokens + len(self.front), model_config)

    @classmethod
    def special_tokens(cls, config: Config, model_config: ModelSettings) -> tuple[str, ...]:
        return (*super().special_tokens(config, model_config), *SENTINELS)

    def sizes(self, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of noise and the spans of pieces of these lengths."""
        return sizes(pieces, self.config.rate, self.config.mean_span)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        _, spans = self.sizes(np.asarray(pieces))
        return np.asarray(pieces) + 2 * spans + self.around  # a sentinel is on both sides

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the text with holes as source, and what was in them as target."""
        noise, spans = (int(n) for n in self.sizes(np.array(len(ids))))
        inside = segments(noise, spans, rng)
        outside = segments(len(ids) - noise, spans, rng)
        cuts = np.cumsum(np.stack([outside, inside], 1).reshape(-1))[:-1]
        pieces = np.split(ids, cuts)
        sentinels = np.split(self.sentinels[:spans], spans)
        source = [part for pair in zip(pieces[::2], sentinels, strict=True) for part in pair]
        target = [part for pair in zip(sentinels, pieces[1::2], strict=True) for part in pair]
        return self.made(np.concatenate(source), np.concatenate(target))

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the text: each sentinel of the source is what follows it in the target."""
        target = example["input_ids"][1 + len(self.front) : len(example["labels"])]
        # Ends of documents may be in the spans of a stream; the last end is no input.
        starts = np.append(np.flatnonzero(np.isin(target, self.sentinels)), len(target))
        spans = {int(target[a]): target[a + 1 : b] for a, b in pairwise(starts)}
        source = example["source_ids"][len(self.source_front) : -1].tolist()
        return [np.concatenate([spans.get(i, np.array([i])) for i in source])]

    def encode_input(self, text: str) -> list[int]:
        """Return the ids of a text in which `<extra_id_0>`, `<extra_id_1>` … are the sentinels.

        A space before a sentinel belongs to the word that is missing there.
        """
        ids: list[int] = []
        start = 0
        for found in _WRITTEN.finditer(text):
            if int(found[1]) < COUNT:
                ids += self.encode_text(text[start : found.start()].removesuffix(" "))
                ids.append(int(self.sentinels[int(found[1])]))
                start = found.end()
        return ids + self.encode_text(text[start:])

    def decode_output(self, ids: Sequence[int]) -> str:
        """Return what was written, with the sentinels."""
        texts: list[str] = []
        span: list[int] = []
        for token_id in [*ids, self.end]:
            if token_id in self.text_of or token_id == self.end:
                texts += [self.tokenizer.decode(span).strip()] if span else []
                texts += [self.text_of[token_id]] if token_id in self.text_of else []
                span = []
            else:
                span.append(token_id)
        return " ".join(texts)


def sizes(pieces: np.ndarray, rate: float, mean_span: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of noise K and the spans U of pieces of these lengths.

    A piece of one token, which only the last of a stream can be, has a span without tokens.
    """
    pieces = np.asarray(pieces, np.int64)
    noise = np.clip(np.rint(rate * pieces).astype(np.int64), 1, pieces - 1)
    spans = np.maximum(np.rint(noise / mean_span).astype(np.int64), 1)
    # Before each span is a token that stays; only rates near 1/2 with spans of 1 have too few.
    return noise, np.minimum(spans, pieces - noise)


def longest_piece(config: Config, max_length: int) -> int:
    """Return the most tokens of a text whose source has `max_length` tokens with its end.

    It is the authors' `random_spans_helper`: 568 for 512.
    """
    # A longer text never has a shorter source, of which at least half is text: `rate` is up to 0.5.
    lengths = range(3, 2 * max_length)
    return 2 + bisect.bisect_right(
        lengths, max_length, key=lambda length: _source_length(length, config)
    )


def _source_length(length: int, config: Config) -> int:
    noise, spans = (int(n) for n in sizes(np.array(length), config.rate, config.mean_span))
    return length - noise + spans + 1


def segments(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return `count` sizes of at least 1 with this `total`; all of these are equally likely."""
    cuts = 1 + np.sort(rng.permutation(total - 1)[: count - 1])
    return np.diff(np.concatenate([[0], cuts, [total]]))
