"""Records the states, targets and losses of each head while an objective computes its loss.

Heads of tokens are recorded in `model.token_loss`, other heads in torch's cross entropies.
N tokens of a pack, S sequences, M rows of a head, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nlpkit.contracts.batch import IGNORE, Batch, Loss
from nlpkit.objectives.examples.text import forward
from nlpkit.selftest.subject import Example, Subject
from nlpkit.train.machine import to_device

# The names of the heads of `token_loss`: the second one has rows of other tokens than the pack's,
# where a loss runs the model once more.
TOKENS, OTHER_TOKENS = "tokens", "tokens of another run"


@dataclass
class Head:
    """The rows of one head, in the order of the pack."""

    states: Tensor  # (M, …) hidden states of `token_loss`, logits of other heads
    targets: Tensor  # (M,)
    each: Tensor  # (M,) losses, without gradient
    index: Tensor  # (M,) the row of the pack, or the index of the sequence
    per: str  # one row per "token" or "sequence", or "" if unknown
    of_words: bool  # whether the targets are tokens of the vocabulary

    def take(self, rows: Tensor) -> "Head":
        """Return these rows."""
        parts = (self.states[rows], self.targets[rows], self.each[rows], self.index[rows])
        return Head(*parts, self.per, self.of_words)

    def join(self, other: "Head") -> "Head":
        """Return the rows of both."""
        return Head(
            torch.cat([self.states, other.states]),
            torch.cat([self.targets, other.targets]),
            torch.cat([self.each, other.each]),
            torch.cat([self.index, other.index]),
            self.per if self.per == other.per else "",
            self.of_words,
        )


@dataclass
class Seen:
    """The loss of a batch and its heads, by name."""

    loss: Loss
    heads: dict[str, Head]
    hidden: Tensor  # (N, C), without gradient; NaN where the model left a state out
    # (N,) ids that the model read in the loss, such as samples of a generator, or None.
    read_in_loss: Tensor | None

    @property
    def words(self) -> dict[str, Head]:
        """The heads that predict tokens."""
        return {name: head for name, head in self.heads.items() if head.of_words}

    @property
    def labels(self) -> dict[str, Head]:
        """The heads that predict something else."""
        return {name: head for name, head in self.heads.items() if not head.of_words}

    @property
    def given_labels(self) -> dict[str, Head]:
        """The heads whose labels come from the example, not from samples in the loss."""
        labels = self.labels.items()
        return {n: h for n, h in labels if h.per != "token" or self.read_in_loss is None}


class Watched:
    """A model that passes the arguments and losses of `token_loss` on a pack of N `tokens` on."""

    def __init__(self, model: nn.Module, tokens: int, note: Callable[[str, Head], None]):
        self.model, self.tokens, self.note, self.inside = model, tokens, note, False

    def __call__(self, lengths: Sequence[int], **inputs: Tensor) -> Tensor:
        return self.model(lengths, **inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def token_loss(
        self,
        hidden: Tensor,
        index: Tensor,
        targets: Tensor,
        loss_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the model's `token_loss`, never smoothed: losses are -log p of their targets."""
        self.inside = True
        total, each = self.model.token_loss(hidden, index, targets, loss_weights)  # type: ignore[operator]
        self.inside = False
        of_pack = len(hidden) == self.tokens
        per = "token" if of_pack else ""
        head = Head(hidden.detach()[index], targets, each, index, per, True)
        self.note(TOKENS if of_pack else OTHER_TOKENS, head)
        return total, each


class _LossCalls(TorchFunctionMode):
    """Records the cross entropies outside `token_loss`, and the ids that the model reads."""

    def __init__(self, batch: Batch, vocab_size: int, watched: Watched):
        super().__init__()
        self.batch, self.vocab_size, self.watched = batch, vocab_size, watched
        self.read: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = {**dict(zip(("input", "target"), args, strict=False)), **kwargs}
        if not self.watched.inside:
            if func is F.cross_entropy and given["target"].ndim == 1:
                self._note_classes(given["input"].detach(), given["target"], given)
            elif func is F.binary_cross_entropy_with_logits:
                self._note_binary(given["input"].detach().flatten(), given["target"].flatten())
            elif func is F.embedding:
                ids, table = args[0], given.get("weight", args[-1])
                if ids.shape == (sum(self.batch.lengths),) and len(table) >= self.vocab_size:
                    self.read = ids
        return func(*args, **kwargs)

    def _note_classes(self, logits: Tensor, targets: Tensor, given: dict[str, Any]) -> None:
        per, index = self._rows(len(targets))
        kept = targets != given.get("ignore_index", IGNORE)
        each = F.cross_entropy(logits.float(), targets, reduction="none")
        of_words = logits.shape[1] == self.vocab_size
        head = Head(logits, targets, each, index, per, of_words).take(kept.nonzero().squeeze(1))
        self.watched.note(f"{logits.shape[1]} classes", head)

    def _note_binary(self, logits: Tensor, targets: Tensor) -> None:
        per, index = self._rows(len(targets))
        each = F.binary_cross_entropy_with_logits(logits.float(), targets.float(), reduction="none")
        self.watched.note("yes or no", Head(logits, targets, each, index, per, False))

    def _rows(self, count: int) -> tuple[str, Tensor]:
        """Return the kind of `count` rows (see `Head.per`), and their indices."""
        labels = self.batch.fields.get("labels")
        device = next(iter(self.batch.fields.values())).device
        if count == sum(self.batch.lengths):
            return "token", torch.arange(count, device=device)
        if count == len(self.batch.lengths):
            return "sequence", torch.arange(count, device=device)
        if labels is not None and int((labels != IGNORE).sum()) == count:
            return "token", (labels != IGNORE).nonzero().squeeze(1)
        return "", torch.arange(count, device=device)


def look_at(
    subject: Subject, examples: Sequence[Example], dtype: torch.dtype = torch.float32
) -> Seen:
    """Return the loss and the heads of a pack of these examples, without gradients."""
    with torch.no_grad():
        return look(subject, subject.model, subject.pack(examples), dtype)


def look(
    subject: Subject, model: nn.Module, batch: Batch, dtype: torch.dtype = torch.float32
) -> Seen:
    """Return the loss and the heads of the objective on `batch`, computed in `dtype`."""
    heads: dict[str, Head] = {}

    def note(name: str, head: Head) -> None:
        heads[name] = heads[name].join(head) if name in heads else head

    watched = Watched(model, sum(batch.lengths), note)
    moved = to_device(batch, subject.device)
    vocab_size = 0 if subject.tokenizer is None else subject.tokenizer.vocab_size
    with torch.autocast(subject.device.type, dtype, enabled=dtype != torch.float32):
        hidden = forward(subject.objective, model, moved)
        with _LossCalls(moved, vocab_size, watched) as calls:
            loss = subject.objective.loss(watched, hidden, moved)
    # A loss may compute them in another order than that of the pack.
    ordered = {name: head.take(head.index.argsort(stable=True)) for name, head in heads.items()}
    return Seen(loss, ordered, hidden.detach(), calls.read)
