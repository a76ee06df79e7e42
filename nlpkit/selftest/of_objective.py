"""Proofs of an objective with a model: each runs both and returns whether it holds, and a figure.

They go through the contracts alone (docs/design.md) and know no objective and no family. What an
objective hides is found by changing the source: the rows whose target changes with token k of the
source predict it, so nothing that these rows compute may change with it.
N packed tokens, M targets of a batch, C model width, K source tokens that are targets.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlpkit.data.loader import Examples
from nlpkit.data.pack import Batch, collate
from nlpkit.objectives._task import Item
from nlpkit.objectives.contract import IGNORE, Loss, forward
from nlpkit.train.loop import to_device

Verdict = tuple[bool, str]

# So few words and so many steps because a leak must be learned before it shows: through one
# visible token it takes about 200 steps here, and with 64 words 400.
ALPHABET = 16
NOISE_STEPS, NOISE_LAST, NOISE_EXAMPLES, NOISE_PIECE = 300, 60, 12, 20
NOISE_LR = 5e-3
SHORT = 16  # tokens of a piece whose tokens are changed one by one
LEARNED = 0.3  # nats above the floor from which on a leak might just not be learned yet
# Relative; sums in another order, and in bfloat16 what is rounded between the layers.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass
class Subject:
    """What is proven: a small model without dropout, the objective, real examples."""

    model: nn.Module
    fresh: Callable[[], nn.Module]  # the same model with new weights
    objective: Any
    tokenizer: Any
    examples: Examples
    device: torch.device
    seed: int
    dtype: torch.dtype  # in which the recipe computes on this machine
    check: Callable[[], None]  # raises when the proofs are to stop

    def rng(self, *key: int) -> np.random.Generator:
        """Return random numbers that depend on the seed and `key` alone."""
        return np.random.default_rng([self.seed, *key])

    def pack(self, examples: Sequence[dict[str, np.ndarray]]) -> Batch:
        """Return the pack of these examples."""
        batch = collate(examples, self.objective.fields)
        batch.num_targets = self.objective.num_targets(batch.fields)
        return batch

    def pieces(self, tokens: int, longest: int | None = None) -> list[Any]:
        """Return ids of random pieces of the real text, of about so many tokens, at least 3."""
        spans, found, total = self.examples.spans, [], 0
        for number in self.rng(1).permutation(len(spans)).tolist():
            ids: Any = self.examples.ids(number)
            if not isinstance(ids, Item):  # a row of a task is whole
                ids = np.array(ids[:longest])
            found.append(ids)
            size = ids.size if isinstance(ids, Item) else len(ids)
            total += int(self.objective.length(np.array([size]))[0])
            if len(found) >= 3 and total >= tokens:
                break
        return found

    @cached_property
    def words(self) -> np.ndarray:
        """Up to `ALPHABET` ids that stand for text, none of them special, in order."""
        tokenizer = self.tokenizer
        is_text = tokenizer.token_characters() > 0
        special = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id)
        is_text[[i for i in special if i is not None]] = False
        known = np.flatnonzero(is_text)
        return np.sort(self.rng(2).choice(known, min(ALPHABET, len(known)), replace=False))

    def changed(self, ids: np.ndarray, where: slice | int = slice(None)) -> np.ndarray:
        """Return `ids` (T,) with another word at each place of `where`."""
        other = ids.copy()
        found = np.searchsorted(self.words, ids[where])
        other[where] = self.words[(found + 1) % len(self.words)]
        return other


class Watched:
    """A model that notes what an objective's `loss` asks of it."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.index: list[Tensor] = []  # (M,) of each call of `token_loss`, as all that follow
        self.hidden: list[Tensor] = []  # (M, C)
        self.targets: list[Tensor] = []
        self.each: list[Tensor] = []

    def __call__(self, lengths: Sequence[int], **inputs: Tensor) -> Tensor:
        return self.model(lengths, **inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def token_loss(
        self, hidden: Tensor, index: Tensor, targets: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what the model does."""
        total, each = self.model.token_loss(hidden, index, targets, *weights)  # type: ignore[operator]
        self.index.append(index)
        self.hidden.append(hidden.detach()[index])
        self.targets.append(targets)
        self.each.append(each)
        return total, each


@dataclass
class Seen:
    """What was predicted from what, in the order of the pack: (M, C), (M,), (M,)."""

    loss: Loss
    hidden: Tensor
    targets: Tensor
    each: Tensor


def look(
    subject: Subject, model: nn.Module, batch: Batch, dtype: torch.dtype = torch.float32
) -> Seen:
    """Return what the objective's loss reads from the model on `batch`, computed in `dtype`."""
    watched = Watched(model)
    moved = to_device(batch, subject.device)
    with torch.autocast(subject.device.type, dtype, enabled=dtype != torch.float32):
        hidden = forward(subject.objective, model, moved)
        loss = subject.objective.loss(watched, hidden, moved)
    if not watched.index:  # a task that judges sequences
        none = torch.empty(0, device=subject.device)
        return Seen(loss, none, none, none)
    order = torch.cat(watched.index).argsort(stable=True)  # the parts of a loss may come in turn
    parts = (torch.cat(found)[order] for found in (watched.hidden, watched.targets, watched.each))
    return Seen(loss, *parts)


def noise_floor(subject: Subject) -> Verdict:
    """Train on random words: the loss of a word must come down to ln V, and not below.

    No model can expect less for a word it has not seen, whatever it saw before; the losses less
    ln V are a martingale with drift upwards, so their standard error is that of independent ones.
    """
    words, rng = subject.words, subject.rng(3)
    model = subject.fresh().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=NOISE_LR)
    spans = subject.examples.spans
    size = min(NOISE_PIECE, int((spans.stop - spans.start).max()))
    is_word = torch.zeros(subject.tokenizer.vocab_size, dtype=torch.bool, device=subject.device)
    is_word[torch.from_numpy(words).to(subject.device)] = True
    kept = []
    for step in range(NOISE_STEPS):
        subject.check()
        texts = [rng.choice(words, size) for _ in range(NOISE_EXAMPLES)]
        batch = subject.pack([subject.objective.example(ids, rng) for ids in texts])
        seen = look(subject, model, batch, subject.dtype)
        seen.loss.mean(batch.num_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= NOISE_STEPS - NOISE_LAST:
            kept.append(seen.each[is_word[seen.targets]].double())
    losses = torch.cat(kept)
    mean, floor = float(losses.mean()), math.log(len(words))
    error = float(losses.std() / math.sqrt(len(losses)))
    figure = f"loss {mean:.4f} ± {error:.4f}, ln {len(words)} = {floor:.4f}"
    if mean < floor - 3 * error:
        return False, f"{figure}: below what can be known, so the targets leak"
    if not mean <= floor + LEARNED:  # so that NaN fails
        return False, f"{figure}: learned too little for a leak to show"
    return True, f"{figure}, {len(losses):,} words"


def no_leak(subject: Subject) -> Verdict:
    """Change each source token in turn: nothing that predicts it may move, directly or in a ring.

    Predicting j may depend on k (what comes later sees what came before), but then predicting k
    not on j: else one of the two is told its answer.
    """
    targets = told = rings = 0
    largest = 0.0
    tokens = 12 * int(subject.objective.length(np.array([SHORT]))[0])
    for number, ids in enumerate(subject.pieces(tokens, longest=SHORT)):
        base = _seen_of(subject, ids, number)
        owner = torch.full((len(base.targets),), -1, device=subject.device)
        moves = torch.zeros(len(base.targets), len(ids), dtype=torch.bool, device=subject.device)
        for k in range(len(ids)):
            subject.check()
            other = _seen_of(subject, subject.changed(ids, k), number)
            if len(other.targets) != len(base.targets):
                return False, f"which tokens are targets depends on the word at place {k}"
            moves[:, k] = (other.hidden != base.hidden).any(1)
            predicts = other.targets != base.targets
            owner[predicts] = k
            change = (other.hidden - base.hidden).abs().amax(1)[predicts]
            largest = max([largest, *change.tolist()])
        own = owner >= 0
        targets += int(own.sum())
        rows = owner[own]
        depends = torch.zeros(len(ids), len(ids), dtype=torch.bool, device=subject.device)
        for row, moved in zip(rows.tolist(), moves[own], strict=True):
            depends[row] |= moved
        depends = depends[rows.unique()][:, rows.unique()]  # (K, K)
        told += int(depends.diagonal().sum())
        rings += _in_rings(depends & ~torch.eye(len(depends), dtype=torch.bool).to(depends))
    if not targets:
        return False, "no token of the text is a target"
    figure = f"{targets} targets, {told} move with their own token (max |Δ| {largest:.1g})"
    return not (told or rings), f"{figure}, {rings} with one another's"


def _seen_of(subject: Subject, ids: np.ndarray, *key: int) -> Seen:
    """Return what one example of `ids` predicts, drawn as for every call with this `key`."""
    with torch.no_grad():
        example = subject.objective.example(ids, subject.rng(4, *key))
        return look(subject, subject.model, subject.pack([example]), subject.dtype)


def _in_rings(depends: Tensor) -> int:
    """Return how many nodes of a graph (K, K) cannot be put in an order (Kahn 1962)."""
    left = depends.clone()
    while len(left):
        stays = left.any(1)
        if stays.all():
            return len(left)
        left = left[stays][:, stays]
    return 0


def no_neighbour_leak(subject: Subject) -> Verdict:
    """Change one sequence of a pack: no bit of what the others predict from may change."""
    pieces = subject.pieces(1500)[:32]

    def seen(changed: int | None) -> list[Tensor]:
        texts = [subject.changed(ids) if i == changed else ids for i, ids in enumerate(pieces)]
        made = [subject.objective.example(t, subject.rng(5, i)) for i, t in enumerate(texts)]
        counts = [subject.pack([example]).targets for example in made]
        with torch.no_grad():
            seen = look(subject, subject.model, subject.pack(made), subject.dtype)
        return list(seen.hidden.split(counts))

    base = seen(None)
    moved = told = 0
    for number in range(0, len(pieces), max(1, len(pieces) // 8)):
        subject.check()
        for i, (one, two) in enumerate(zip(base, seen(number), strict=True)):
            moved += i == number and not torch.equal(one, two)
            told += i != number and not torch.equal(one, two)
    if not moved:
        return False, "no sequence depends even on its own words"
    figure = f"{len(pieces)} sequences in a pack, {moved} of them changed in turn"
    return not told, f"{figure}, {told} times another one moved"


def unmasking(subject: Subject) -> Verdict:
    """Put the labels where they belong: the piece that the example was made of must be there.

    A label belongs to its own place (masked models) or to the next (models that predict it).
    """
    pieces = subject.pieces(4000)
    hidden = 0
    for number, ids in enumerate(pieces):
        example = subject.objective.example(ids, subject.rng(6, number))
        hidden += int((example["labels"] != IGNORE).sum())
        if not any(_contains(_filled(example, shift), ids) for shift in (0, 1)):
            return False, f"piece {number} of {len(ids)} tokens is not in its example"
    return True, f"{len(pieces)} pieces, {hidden:,} labels put back"


def _filled(example: dict[str, np.ndarray], shift: int) -> np.ndarray:
    labels = example["labels"]
    (places,) = np.nonzero(labels != IGNORE)
    # A last label may belong behind the last input.
    size = max([len(labels), *(places + shift + 1)])
    filled = np.append(example["input_ids"], np.full(size - len(labels), IGNORE))
    filled[places + shift] = labels[places]
    return filled


def _contains(whole: np.ndarray, part: np.ndarray) -> bool:
    if len(part) > len(whole):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(whole, len(part))
    return bool((windows == part).all(1).any())


def packed_is_alone(subject: Subject) -> Verdict:
    """Compare each loss in a pack with that of the same sequence alone."""
    pieces = subject.pieces(2000)[:40]
    made = [subject.objective.example(t, subject.rng(7, i)) for i, t in enumerate(pieces)]
    figures, passed = [], True
    for dtype, limit in ROUNDING.items():
        if dtype in (torch.float32, subject.dtype):
            with torch.no_grad():
                packed = look(subject, subject.model, subject.pack(made), dtype).each
                each = [look(subject, subject.model, subject.pack([e]), dtype).each for e in made]
            largest = float(((packed - torch.cat(each)).abs() / packed.abs().clamp(min=1)).max())
            figures.append(f"{largest:.1g} in {str(dtype)[6:]} (at most {limit:g})")
            passed = passed and largest <= limit
    return passed, f"{len(made)} sequences, max |Δ| / loss {', '.join(figures)}"


def rows_packed_are_alone(subject: Subject) -> Verdict:
    """Compare the loss of a task's rows in one pack with the sum of what each has alone."""
    rows = subject.pieces(2000)[:40]
    made = [subject.objective.example(row, subject.rng(7, i)) for i, row in enumerate(rows)]
    figures, passed = [], True
    for dtype, limit in ROUNDING.items():
        if dtype in (torch.float32, subject.dtype):
            with torch.no_grad():
                packed = _total(look(subject, subject.model, subject.pack(made), dtype))
                alone = [look(subject, subject.model, subject.pack([e]), dtype) for e in made]
            difference = abs(packed / sum(map(_total, alone)) - 1)
            figures.append(f"{difference:.1g} in {str(dtype)[6:]} (at most {limit:g})")
            passed = passed and difference <= limit
    return passed, f"{len(made)} rows, |Δ| / loss {', '.join(figures)}"


def _total(seen: Seen) -> float:
    """Return the sum of a task's loss over its rows."""
    return sum(float(term.loss_sum) * term.weight for term in seen.loss.terms.values())
