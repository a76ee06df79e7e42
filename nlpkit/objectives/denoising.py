"""Denoising: the whole text is written from a damaged one (BART, Lewis et al. 2020).

arXiv:1910.13461, sec. 2.2. The encoder reads the damaged text, the decoder writes the text. Each
damage has a share of its own, 0 for none; they follow each other as in fairseq's
`DenoisingDataset`: sentences and tokens change places, tokens are masked, deleted and infilled, and
the text is rotated. The defaults are the paper's for its large model (sec. 5.1). Tokens that change
places are not in the paper: they are the task of rebuilding a shuffled input.

Shares are rounded up, as in fairseq. Differs from it: sentences begin at the token flags, not at
full stops; a source is never longer than its text; no mask becomes a random token.

Damage is done to places: S tokens of a source are places in the text of L tokens, or `MASK`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import IGNORE, Batch, Field, FlaggedIds, Loss, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.examples.frame import find_id
from nlpkit.objectives.examples.pairs import sentence_starts
from nlpkit.objectives.examples.source_target import Contiguous, TextSourceTarget

if TYPE_CHECKING:
    import torch


MASK = -1  # in place of a place: the mask token
DAMAGE = ("permute_sentences", "shuffle", "mask", "delete", "infill", "rotate")


class Config(FrozenConfig):
    """How text is cut, and how it is damaged; the defaults are BART's."""

    max_length: int = Setting(
        512, ge=4, description="longest source and longest target, in tokens, with the end token"
    )
    contiguous: Contiguous = False
    permute_sentences: float = Setting(
        1.0, ge=0, le=1, description="share of the sentences that change places among themselves"
    )
    shuffle: float = Setting(
        0.0, ge=0, le=1, description="share of the tokens that change places among themselves"
    )
    mask: float = Setting(
        0.0, ge=0, le=1, description="share of the tokens that each become a mask token"
    )
    delete: float = Setting(0.0, ge=0, le=1, description="share of the tokens that are deleted")
    infill: float = Setting(
        0.3,
        ge=0,
        le=1,
        description="share of the tokens in spans that become one mask token each, whatever their "
        "length; a span of length 0 is a mask token between two others",
    )
    mean_span: float = Setting(
        3.0, ge=0.5, le=64, description="mean of the Poisson distribution of the lengths of spans"
    )
    rotate: float = Setting(
        0.0, ge=0, le=1, description="chance that a text begins at a token drawn from all"
    )

    def without_effect(self) -> dict[str, str]:
        return {} if self.infill else {"mean_span": "without infill"}

    @model_validator(mode="after")
    def _damages(self) -> Self:
        if not any(getattr(self, name) for name in DAMAGE):
            raise ValueError(f"nothing damages the text; set one of {', '.join(DAMAGE)}")
        return self


class Objective(TextSourceTarget):
    """Examples and loss of denoising."""

    term = "denoising"
    parts: tuple[str, ...] = ("denoising", "hidden")
    fields: Mapping[str, Field] = {
        **TextSourceTarget.fields,
        "hidden": Field(np.int64),  # (T,) 1 where the source lacks the token of the target
    }
    label_smoothing = 0.0
    min_piece = 2  # tokens that can change places

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.mask = find_id(tokenizer, model_config.mask_token)
        self.mask_text = tokenizer.token(self.mask)
        self.bind(tokenizer, model_config, (self.mask_text,))
        self.piece = config.max_length - 1 - len(self.source_front)
        self.token_flags = ("sentence_start",) if config.permute_sentences else ()
        # A source of spans has from one mask for all of them to the length of the text.
        self.max_shrink = max(int(count(self.piece, config.infill)) - 1, 0)
        if not (config.mask or config.delete or config.infill):
            self.shown_rate, self.parts = 1.0, ("denoising",)

    @classmethod
    def special_tokens(cls, config: Config, model_config: ModelSettings) -> tuple[str, ...]:
        return (*super().special_tokens(config, model_config), model_config.mask_token)

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens that are no target."""
        return tuple(dict.fromkeys((*super().suppress_tokens, self.mask)))

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the most tokens of source and target, each with its end; see `max_shrink`."""
        pieces = np.asarray(pieces)
        return 2 * pieces + self.around - count(pieces, self.config.delete)

    def example(
        self, ids: np.ndarray | FlaggedIds, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the damaged text as source, and the text as target."""
        starts = sentence_starts(ids) if isinstance(ids, FlaggedIds) else np.empty(0, np.int64)
        text = np.asarray(ids.ids if isinstance(ids, FlaggedIds) else ids)
        places = self.damage(len(text), starts, rng)
        example = self.made(np.where(places == MASK, self.mask, text[places]), text)
        first = len(self.front)
        hidden = np.ones(first + len(text) + 1, np.int64)
        hidden[first + places[places != MASK]] = 0
        hidden[:first] = hidden[-1] = 0  # around the text
        return example | {"hidden": hidden}

    def damage(self, size: int, starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the places (S,) of what is left of a text whose sentences begin at `starts`."""
        config = self.config
        places = np.arange(size)
        if config.permute_sentences:
            places = permute_sentences(places, starts, config.permute_sentences, rng)
        if config.shuffle:
            places = places[shuffled(size, config.shuffle, rng)]
        if config.mask:
            places[draw(size, config.mask, rng)] = MASK
        if config.delete:
            places = np.delete(places, draw(size, config.delete, rng))
        if config.infill and len(places):
            places = infill(places, config.infill, config.mean_span, rng)
        if config.rotate and rng.random() < config.rotate and len(places):
            places = np.roll(places, -int(rng.integers(len(places))))
        return places

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the text; its part `hidden` is of what the source lacks."""
        labels = batch.fields["labels"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        loss_sum, each = model.token_loss(hidden, index, labels[index])
        parts = {"denoising": (loss_sum.detach(), len(index))}
        if "hidden" in self.parts:
            lacking = batch.fields["hidden"][index] != 0
            parts["hidden"] = (each[lacking].sum(), int(lacking.sum()))
        return Loss({"denoising": Term(loss_sum, len(index), parts=parts, is_text=True)})

    def shown(self, example: dict[str, np.ndarray]) -> np.ndarray:
        """Return (T,) bool: the targets whose token the source has."""
        is_shown = example["hidden"] == 0
        is_shown[: len(self.front)] = is_shown[-1] = False  # no text
        return is_shown

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [example["input_ids"][1 + len(self.front) : len(example["labels"])]]

    def encode_input(self, text: str) -> list[int]:
        """Return the ids of a text in which the mask token, such as `[MASK]`, may be written.

        A space before it belongs to the word that is missing there.
        """
        ids: list[int] = []
        *before, last = text.split(self.mask_text)
        for part in before:
            ids += [*self.encode_text(part.removesuffix(" ")), self.mask]
        return ids + self.encode_text(last)


def count(sizes: int | np.ndarray, share: float) -> np.ndarray:
    """Return a share of these numbers of things, rounded up."""
    # Not one more where a product such as 0.3 · 30 is above its integer by rounding.
    return np.ceil(np.round(share * np.asarray(sizes), 6)).astype(np.int64)


def draw(size: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return a share of the numbers below `size`, in random order."""
    return rng.permutation(size)[: int(count(size, share))]


def shuffled(size: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers below `size`, of which a share change places among themselves."""
    order, moved = np.arange(size), draw(size, share, rng)
    order[moved] = rng.permutation(moved)
    return order


def permute_sentences(
    places: np.ndarray, starts: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the places with a share of the sentences, which begin at `starts`, moved."""
    sentences = np.split(places, starts[starts > 0])
    order = shuffled(len(sentences), share, rng)
    return np.concatenate([sentences[number] for number in order])


def infill(
    places: np.ndarray, share: float, mean_span: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the places with a mask for each span of a share of them (`add_whole_word_mask`).

    Lengths are drawn until they have the share, and the last is cut to it. Starts are drawn without
    repetition; where spans overlap there is less noise, and a span that begins inside another has
    no mask of its own. Empty spans are masks between the others, where the text is not longer by
    them, which only short texts could be.
    """
    size = len(places)
    noise = int(count(size, share))
    lengths = rng.poisson(mean_span, noise)
    while lengths.sum() < noise:
        lengths = np.append(lengths, rng.poisson(mean_span, noise))
    totals = lengths.cumsum()
    last = int(np.searchsorted(totals, noise))
    lengths = lengths[: last + 1]
    lengths[last] -= totals[last] - noise
    spans = lengths[lengths > 0]
    starts = rng.permutation(size)[: len(spans)]
    # Tokens inside a span, behind its first one, are removed.
    edges = np.zeros(size + 1, np.int64)
    np.add.at(edges, starts + 1, 1)
    np.add.at(edges, np.minimum(starts + spans, size), -1)
    kept = edges.cumsum()[:-1] <= 0
    masked = places.copy()
    masked[starts] = MASK
    masked = masked[kept]
    empty = min(len(lengths) - len(spans), size - len(masked))
    filled = np.full(len(masked) + empty, MASK)
    filled[np.sort(rng.permutation(len(filled))[empty:])] = masked
    return filled
