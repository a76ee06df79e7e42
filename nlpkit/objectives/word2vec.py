"""Skip-gram and CBOW with negative sampling (Mikolov et al. 2013, arXiv:1310.4546, sec. 2.2, 2.3).

Skip-gram: the input vector of each token predicts each token of its window, one pair at a time.
CBOW (arXiv:1301.3781, sec. 3.1): the mean of the input vectors of the window predicts the token.
A prediction is a logistic regression that tells the token, +, from K negatives:
-log s(v . u+) - the sum over negatives of log s(-v . u). Negatives are drawn by the frequency of
tokens to the power 3/4. Each token's window is drawn from 1 to `window`; before that, frequent
tokens are left out at random. As in word2vec.c a negative that is the token itself does not count,
and a window never crosses the end of its text, here of its example.

Differs from word2vec.c: frequent tokens are left out by the formula of the paper, in skip-gram the
token in the middle gives the input vector, as in the paper, and in CBOW each token of the window
gets its share of the gradient of the mean, not all of it.

T tokens of an example, N of a batch, P predictions, W = 2 `window`, K negatives, C width of the
vectors, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field as Setting
from pydantic import SerializerFunctionWrapHandler, model_serializer
from pydantic.json_schema import SkipJsonSchema

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Batch, Field, Loss, Term
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.json_types import JsonObject
from nlpkit.objectives.examples.text import TextObjective

if TYPE_CHECKING:
    import torch

POWER = 0.75  # of the frequencies, Mikolov et al. 2013, sec. 2.2


class Config(FrozenConfig):
    """How windows, negatives and the tokens that are left out are drawn."""

    max_length: int = Setting(1000, ge=2, description="longest example, in tokens")
    method: Literal["skip_gram", "cbow"] = Setting(
        "skip_gram",
        description="skip_gram: a token predicts those around it; cbow: they predict the token",
    )
    window: int = Setting(5, ge=1, le=1000, description="most tokens to each side of a token")
    negatives: int = Setting(5, ge=1, le=1000, description="negatives of each prediction")
    sample: float = Setting(
        1e-5,
        ge=0,
        le=1,
        description="a token of frequency f is left out with probability 1 - √(sample / f); 0: no "
        "token is left out",
    )
    # A text, so that it is one line of a checkpoint's notes.
    counts: SkipJsonSchema[str | None] = Setting(
        None, description="how often each token occurs in the training text; set by the run"
    )

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> JsonObject:
        """Leave out the counts where a recipe is written, which does not have them."""
        return {k: v for k, v in dump(self).items() if k != "counts" or v is not None}


class Objective(TextObjective):
    """Examples and loss of word vectors."""

    parts = ("word2vec",)
    inputs = ("input_ids",)
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "contexts": Field(np.int64),  # (T, W) where a token of the window is, from here; 0: none
        "negatives": Field(np.int64),  # (T, W, K), with CBOW (T, K)
    }
    needs = ("context_free",)
    min_piece = 2
    shown_rate = 1.0  # tokens are not hidden: no state depends on another one

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        window = (2 * config.window,)
        drawn = (config.negatives,) if config.method == "cbow" else (*window, config.negatives)
        shapes = {"contexts": window, "negatives": drawn}
        self.fields = {**self.fields, **{n: Field(np.int64, shape=s) for n, s in shapes.items()}}
        # Without a training text, as in a plan, all tokens are alike.
        known = config.counts.split() if config.counts else [1] * tokenizer.vocab_size
        self._set_counts(np.array(known, np.float64))

    def read_counts(self, count: Callable[[], np.ndarray]) -> None:
        """Keep the counts in the settings, which a checkpoint has, too."""
        found = count()
        counts = np.pad(found, (0, self.tokenizer.vocab_size - len(found)))
        self.config = self.config.model_copy(update={"counts": " ".join(map(str, counts))})
        self._set_counts(counts)

    def _set_counts(self, counts: np.ndarray) -> None:
        share = counts / counts.sum()  # (V,)
        sample = self.config.sample or np.inf
        with np.errstate(divide="ignore"):
            self.kept = np.sqrt(sample / share)  # the probability to stay, sec. 2.3, eq. 5
        total = np.cumsum(share**POWER)
        self.total = total / total[-1]

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the tokens, what is in the window of each, and the negatives."""
        tokens = ids.astype(np.int64)
        contexts = self._draw_windows(tokens, rng)
        predicts = contexts != 0
        if self.config.method == "cbow":
            predicts = predicts.any(1)
        negatives = np.zeros((*predicts.shape, self.config.negatives), np.int64)
        drawn = rng.random((int(predicts.sum()), self.config.negatives))
        negatives[predicts] = np.searchsorted(self.total, drawn, side="right")
        return {"input_ids": tokens, "contexts": contexts, "negatives": negatives}

    def _draw_windows(self, tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return how far the tokens in each one's window are from it, (T, W)."""
        size = self.config.window
        left = np.flatnonzero(rng.random(len(tokens)) < self.kept[tokens])  # those that are left
        drawn = rng.integers(1, size + 1, len(left))
        steps = np.concatenate([np.arange(-size, 0), np.arange(1, size + 1)])  # (W,)
        at = np.arange(len(left))[:, None] + steps
        inside = (at >= 0) & (at < len(left)) & (np.abs(steps) <= drawn[:, None])
        contexts = np.zeros((len(tokens), len(steps)), np.int64)
        if len(left):
            other = left[at.clip(0, len(left) - 1)]
            contexts[left] = np.where(inside, other - left[:, None], 0)
        return contexts

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        used = batch["contexts"] != 0
        return {"word2vec": int((used if self.config.method == "skip_gram" else used.any(1)).sum())}

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the loss of telling each predicted token from its negatives."""
        import torch
        import torch.nn.functional as F

        ids, contexts = batch.fields["input_ids"], batch.fields["contexts"]
        negatives = batch.fields["negatives"]
        center, column = contexts.nonzero(as_tuple=True)
        context = center + contexts[center, column]
        if self.config.method == "skip_gram":
            states, positive, negatives = hidden[center], ids[context], negatives[center, column]
        else:
            used = (contexts != 0).sum(1)  # (N,)
            sums = torch.zeros_like(hidden).index_add(0, center, hidden[context])
            rows = used.nonzero().squeeze(1)
            states = sums[rows] / used[rows, None]
            positive, negatives = ids[rows], negatives[rows]
        tokens = torch.cat([positive[:, None], negatives], 1)  # (P, 1 + K)
        scores = model.token_scores(states, tokens).float()  # (P, 1 + K)
        signs = scores.new_tensor([1.0] + [-1.0] * self.config.negatives)
        losses = -F.logsigmoid(scores * signs)
        counts = torch.cat([torch.ones_like(positive[:, None]), negatives != positive[:, None]], 1)
        return Loss({"word2vec": Term((losses * counts).sum(), len(positive))})
