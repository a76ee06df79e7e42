"""Masked tokens and their loss: the common part of `mlm`, `wwm` and `span`.

A token's *threshold* is the lowest rate at which it is a target. It is drawn for every token of the
text, so the targets of a rate are among those of every higher rate. `draw` of a subclass says which
tokens become targets together.

T tokens of an example, M tokens of text in it, K targets, U units drawn together, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import ScoringInput
from nlpkit.contracts.batch import IGNORE, TOKEN_FLAGS, Field, FlaggedIds, Spans, bit
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.errors import UsageError
from nlpkit.objectives.examples.frame import FramedText, find_id, frame_tokens
from nlpkit.objectives.examples.text import LabelTargets, cut_stream

NEVER = 2.0  # the threshold of a token that is a target at no rate


class Rates(FrozenConfig):
    """How many tokens are targets, and what becomes of them."""

    rate: float = Setting(0.15, gt=0, le=1, description="share of the tokens that are targets")
    final_rate: float | None = Setting(
        None,
        gt=0,
        le=1,
        description="masking rate at the end of the run (linear from `rate`); evaluation always "
        "uses it; default: `rate`",
    )
    random: float = Setting(
        0.1, ge=0, le=1, description="share of the targets replaced by a random token"
    )
    unmask: float = Setting(
        0.1,
        ge=0,
        le=1,
        description="share of the targets that stay as they are; all others become the mask token",
    )
    # Liu et al. 2019 (arXiv:1907.11692), sec. 4.1
    masks: int | None = Setting(
        None,
        ge=1,
        description="how many different masks an example has, which the epochs take in turn: 1 is "
        "static masking, BERT's data had 10; default: a new one in each epoch (dynamic masking)",
    )

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.random + self.unmask > 1:
            raise ValueError(
                f"random {self.random:g} and unmask {self.unmask:g} are shares of the targets; "
                "their sum must be at most 1"
            )
        return self


class MaskConfig(Rates):
    """How text is cut, how many tokens are targets, and what becomes of them."""

    max_length: int = Setting(512, ge=3, description="longest example, in tokens")
    contiguous: bool = Setting(
        False,
        description="concatenate all documents, with an end token after each, and cut the stream "
        "into examples; false: each example has text of one document",
    )


@dataclass(frozen=True)
class Drawn:
    """Tokens of text with the units in which they become targets."""

    thresholds: np.ndarray  # (M,) float64
    units: np.ndarray | None = None  # (M,) int64; None: each token has its own fate


class Masking(LabelTargets, FramedText):
    """The masking of examples, and the loss of masked tokens."""

    parts: tuple[str, ...] = ("mlm",)
    fields: Mapping[str, Field] = {
        **FramedText.fields,
        "labels": Field(np.int64),
        "threshold": Field(np.float32),
    }
    needs: tuple[str, ...] = ("bidirectional",)
    term = "mlm"

    def __init__(self, config: Rates, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.mask = find_id(tokenizer, model_config.mask_token)
        self.is_text = np.ones(tokenizer.vocab_size, np.bool_)
        self.is_text[[*tokenizer.special_ids]] = False
        self.text_ids = np.flatnonzero(self.is_text)
        self.shown_rate = config.random + config.unmask
        self.highest = max(config.rate, config.final_rate or 0.0)
        self.repeats_after = config.masks or self.repeats_after
        if config.final_rate is None:
            self.leave_out("threshold")

    @classmethod
    def special_tokens(cls, config: Rates, model_config: ModelSettings) -> tuple[str, ...]:
        return (*frame_tokens(model_config), model_config.mask_token)

    def draw(
        self, example: Mapping[str, np.ndarray], where: np.ndarray, rng: np.random.Generator
    ) -> Drawn:
        """Return the thresholds of the tokens of text, which are `where` (M,) in the example.

        By default tokens are targets independently of their neighbours.
        """
        size = len(where)
        return Drawn((rng.permutation(size) + rng.random()) / max(size, 1))

    def masked(
        self, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the example with `labels` (T,), and with other `input_ids` at its targets.

        The rate is that of the start of the run, or that of its end if it is higher:
        `at_progress` takes back the targets that are too many.
        """
        ids = example["input_ids"]
        (where,) = np.nonzero(self.is_text[ids])
        drawn = self.draw(example, where, rng)
        (index,) = np.nonzero(drawn.thresholds < self.highest)
        chosen = where[index]  # (K,)
        fates = self._fates(drawn, index, rng)
        new = np.where(fates < self.shown_rate, ids[chosen], self.mask)
        replaced = fates < self.config.random
        new[replaced] = self.text_ids[rng.integers(len(self.text_ids), size=len(chosen))[replaced]]
        inputs, labels = ids.copy(), np.full(len(ids), IGNORE)
        inputs[chosen], labels[chosen] = new, ids[chosen]
        made = example | {"input_ids": inputs, "labels": labels}
        if self.config.final_rate is not None:
            made["threshold"] = np.full(len(ids), NEVER, np.float32)
            made["threshold"][chosen] = drawn.thresholds[index]
        return made

    def _fates(self, drawn: Drawn, index: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a number (K,) from 0 to 1 for each target, the same for all of a unit."""
        if drawn.units is None:
            return rng.random(len(index))
        units = drawn.units[index]
        return rng.random(int(units.max(initial=-1)) + 1)[units]

    def at_progress(self, example: dict[str, np.ndarray], progress: float) -> dict[str, np.ndarray]:
        """Return the example with the targets of the rate at this share of the run."""
        first, last = self.config.rate, self.config.final_rate
        if last is None:
            return example
        labels, thresholds = example["labels"], example["threshold"]
        rate = first + progress * (last - first)
        no_more = (labels != IGNORE) & (thresholds >= rate)
        return example | {
            "input_ids": np.where(no_more, labels, example["input_ids"]),
            "labels": np.where(no_more, IGNORE, labels),
        }

    def shown(self, example: dict[str, np.ndarray]) -> np.ndarray:
        """Return (T,) bool: targets that show a token by design, their own or a random one."""
        return (example["labels"] != IGNORE) & (example["input_ids"] != self.mask)

    def unmask(self, example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        labels = example["labels"]
        return example | {"input_ids": np.where(labels == IGNORE, example["input_ids"], labels)}


class TextMasking(Masking):
    """Examples `[CLS] piece [SEP]`, or those of the objective before in a list, masked."""

    composable = True
    # Salazar et al. 2020 (arXiv:1910.14659); Kauf & Ivanova 2023 (arXiv:2305.10588)
    scoring_methods: tuple[str, ...] = ("pll", "pll-word-l2r")
    answer_method = "pll"

    def spans(self, lengths: np.ndarray) -> Spans:
        if not self.config.contiguous:
            return super().spans(lengths)
        return cut_stream(lengths, self.config.max_length - self.extra, self.frame.delimiter)

    def example(
        self, ids: np.ndarray | FlaggedIds, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return `[CLS] piece [SEP]`, masked."""
        return self.masked(self.framed(ids), rng)

    def framed(self, ids: np.ndarray | FlaggedIds) -> dict[str, np.ndarray]:
        """Return `[CLS] piece [SEP]`, with the flags of its tokens if the piece has any."""
        example = self.enclose(ids.ids if isinstance(ids, FlaggedIds) else ids)
        if isinstance(ids, FlaggedIds):
            example[TOKEN_FLAGS] = np.zeros(len(ids) + self.extra, np.uint8)
            example[TOKEN_FLAGS][self.frame.places([len(ids)])[0]] = ids.token_flags
        return example

    def transform(
        self, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        return self.masked(example, rng)

    @property
    def max_text(self) -> int:
        """The largest number of tokens of a text that is scored."""
        return int(self.config.max_length) - self.extra

    def score_text(
        self, ids: np.ndarray, words: np.ndarray, given: int, method: str
    ) -> list[ScoringInput]:
        """Return the text once for each token to be scored, with this token masked.

        `pll-word-l2r` also masks the tokens after it in its word.
        """
        example = self.framed(ids)
        targets = np.arange(given, len(ids))
        place = np.arange(len(ids))
        masked = targets[:, None] == place
        if method == "pll-word-l2r":
            masked |= (targets[:, None] < place) & (words[targets][:, None] == words)
        copies = np.tile(example["input_ids"], (len(targets), 1))
        (text,) = self.frame.places([len(ids)])
        copies[:, text][masked] = self.mask
        return [
            ScoringInput({**example, "input_ids": copy}, target + text.start, target)
            for copy, target in zip(copies, targets[:, None], strict=True)
        ]


def number_words(example: Mapping[str, np.ndarray], where: np.ndarray) -> np.ndarray:
    """Return the number of the word, from 0, of each token of text at `where` (M,).

    Raises:
        UsageError: the objective that made the example does not keep the flags of its tokens.
    """
    if TOKEN_FLAGS not in example:
        raise UsageError(
            "objective: masking whole words needs the flags of words, which the first objective of "
            "the list does not keep; begin with mlm, wwm, span, nsp or sop"
        )
    begins = (example[TOKEN_FLAGS][where] & bit("word_start")) != 0
    # Text after a special token is another word.
    begins[1:] |= np.diff(where) > 1
    begins[:1] = True
    return np.cumsum(begins) - 1


def draw_words(
    example: Mapping[str, np.ndarray], where: np.ndarray, rng: np.random.Generator
) -> Drawn:
    """Return thresholds (M,) that are the same for all tokens of a word."""
    words = number_words(example, where)
    count = int(words.max(initial=-1)) + 1
    order = rng.permutation(count)[words]
    return Drawn(rank_units(order, count, rng)[order])


def rank_units(units: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the thresholds (U,) of the units 0, 1, … `count` - 1, which are taken in this order.

    `units` (M,) has the unit of each token; a greater number is no unit. At rate r units are
    targets until they have r times all tokens. Whether the unit in which this number is reached is
    a target is drawn, so that the expected number is exact. (BERT rounds it, so that its rate for
    short texts is another one; fairseq draws, as here.)
    """
    sizes = np.bincount(units, minlength=count)[:count]
    return (np.cumsum(sizes) - (1.0 - rng.random()) * sizes) / max(len(units), 1)
