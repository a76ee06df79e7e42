"""Proofs of an objective with a model: each runs both and returns whether it holds, and a figure.

They go through the contracts alone (docs/design.md) and know no objective and no family. What an
objective hides is found by changing the source: the rows whose target changes with token k of the
source predict it, so nothing that these rows compute may change with it.
N packed tokens, M targets of a batch, C model width, K source tokens that are targets.
"""

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from nlpkit.data.pack import Batch
from nlpkit.selftest.subject import Example, Source, Subject
from nlpkit.selftest.watching import Head, Seen, look

Verdict = tuple[bool, str]

# So many steps because a leak must be learned before it shows: through one visible token it takes
# about 200 steps here, and with 64 words 400.
NOISE_STEPS, NOISE_LAST, NOISE_EXAMPLES, NOISE_PIECE = 300, 60, 12, 20
NOISE_LR = 5e-3
SHORT = 16  # tokens of a piece whose tokens are changed one by one
LEARNED = 0.3  # nats above the floor from which on a leak might just not be learned yet
# Relative; sums in another order, and in bfloat16 what is rounded between the layers.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def noise_floor(subject: Subject) -> Verdict:
    """Train on random words: the loss of a word must come down to ln V, and not below.

    No model can expect less for a word it has not seen, whatever it saw before; the losses less
    ln V are a martingale with drift upwards, so their standard error is that of independent ones.
    """
    words = subject.words
    is_word = torch.zeros(subject.tokenizer.vocab_size, dtype=torch.bool, device=subject.device)
    is_word[torch.from_numpy(words).to(subject.device)] = True
    rng, kept = subject.rng(3), []
    for made, seen in trained(subject, _noises(subject, rng)):
        shown = shown_rows(subject, made)
        for head in seen.words.values():
            kept.append(head.each[is_word[head.targets] & ~shown[head.index]].double())
    losses = torch.cat(kept)
    if not len(losses):
        return False, "no target is hidden: all show a word by design"
    mean, floor = float(losses.mean()), math.log(len(words))
    error = float(losses.std() / math.sqrt(len(losses)))
    figure = f"loss {mean:.4f} ± {error:.4f}, ln {len(words)} = {floor:.4f}"
    if mean < floor - 3 * error:
        return False, f"{figure}: below what can be known, so the targets leak{_hint(subject)}"
    if not mean <= floor + LEARNED:  # so that NaN fails
        return False, f"{figure}: learned too little for a leak to show"
    return True, f"{figure}, {len(losses):,} words"


def _noises(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[list[Example], Batch]]:
    size = subject.noise_size(NOISE_PIECE)
    while True:
        sources = [subject.noise(size, rng) for _ in range(NOISE_EXAMPLES)]
        made = [subject.example(source, rng) for source in sources]
        yield made, subject.pack(made)


def trained(
    subject: Subject, batches: Iterable[tuple[list[Example], Batch]]
) -> Iterator[tuple[list[Example], Seen]]:
    """Train a fresh model for `NOISE_STEPS` batches; yield what it judged in the last ones."""
    model = subject.fresh().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=NOISE_LR)
    for step, (made, batch) in zip(range(NOISE_STEPS), batches, strict=False):
        subject.check()
        seen = look(subject, model, batch, subject.dtype)
        seen.loss.mean(batch.num_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= NOISE_STEPS - NOISE_LAST:
            yield made, seen


def shown_rows(subject: Subject, examples: list[Example]) -> Tensor:
    """Return which rows (N,) of the pack of these examples show a word by design."""
    shown = []
    for example in examples:
        found = np.zeros(len(example[subject.examples.token_field]), np.bool_)
        for objective in subject.offering("shown"):
            found |= objective.shown(example)
        shown.append(found)
    return torch.from_numpy(np.concatenate(shown)).to(subject.device)


def no_leak(subject: Subject) -> Verdict:
    """Change each source token in turn: nothing that predicts it may move, directly or in a ring.

    Predicting j may depend on k (what comes later sees what came before), but then predicting k
    not on j: else one of the two is told its answer. Targets that show a word by design are left
    out; where a word decides which tokens are targets, nothing can be compared.
    """
    targets = told = rings = places = decided = 0
    largest = 0.0
    tokens = 12 * int(subject.objective.length(np.array([SHORT]))[0])
    for number, source in enumerate(subject.sources(tokens, longest=SHORT)):
        base, index = _words_of(subject, source, number)
        ids = source.ids
        owner = torch.full((len(index),), -1, device=subject.device)
        moves = torch.zeros(len(index), len(ids), dtype=torch.bool, device=subject.device)
        for k in range(len(ids)):
            subject.check()
            other, place = _words_of(subject, subject.changed(source, k), number)
            places += 1
            if not torch.equal(place, index):
                decided += 1
                continue
            change = torch.cat([_change(other[name], base[name]) for name in base])
            predicts = torch.cat([other[n].targets != base[n].targets for n in base])
            moves[:, k] = change != 0  # so that NaN moves
            owner[predicts] = k
            largest = max([largest, *change[predicts].tolist()])
        own = owner >= 0
        targets += int(own.sum())
        rows = owner[own]
        depends = torch.zeros(len(ids), len(ids), dtype=torch.bool, device=subject.device)
        for row, moved in zip(rows.tolist(), moves[own], strict=True):
            depends[row] |= moved
        depends = depends[rows.unique()][:, rows.unique()]  # (K, K)
        told += int(depends.diagonal().sum())
        rings += _in_rings(depends & ~torch.eye(len(depends), dtype=torch.bool).to(depends))
    if 2 * decided > places:
        return False, f"at {decided} of {places} places the word decides which tokens are targets"
    if not targets:
        return False, "no token of the text is a hidden target"
    figure = f"{targets} targets, {told} move with their own token (max |Δ| {largest:.1g})"
    figure = f"{figure}, {rings} with one another's"
    return not (told or rings), figure + (_hint(subject) if told else "")


def _hint(subject: Subject) -> str:
    """Return what an objective lacks whose targets show a word by design, if it lacks it."""
    if subject.offering("shown"):
        return ""
    return (
        "; if some targets show a word by design, as 80/10/10 masking has them, give the objective "
        "a method `shown(example)` that returns (T,) bool, True for these targets"
    )


def _words_of(subject: Subject, source: Source, key: int) -> tuple[dict[str, Head], Tensor]:
    """Return what predicts the hidden words of one example, drawn alike for each call with `key`.

    Also the rows of all, to be compared.
    """
    with torch.no_grad():
        example = subject.example(source, subject.rng(4, key))
        seen = look(subject, subject.model, subject.pack([example]), subject.dtype)
    hidden = ~shown_rows(subject, [example])
    found = {
        name: head.taken(hidden[head.index].nonzero().squeeze(1))
        for name, head in seen.words.items()
    }
    none = torch.empty(0, dtype=torch.long, device=subject.device)
    return found, torch.cat([none, *(head.index for head in found.values())])


def _change(one: Head, two: Head) -> Tensor:
    """Return (M,), how much what each row predicts from differs."""
    return (one.states - two.states).abs().amax(1)


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
    sources = subject.sources(1500)[:32]

    def seen(changed: int | None) -> list[list[Tensor]]:
        chosen = [subject.changed(s) if i == changed else s for i, s in enumerate(sources)]
        made = [subject.example(s, subject.rng(5, i)) for i, s in enumerate(chosen)]
        return _of_each(subject, made)

    base = seen(None)
    moved = told = 0
    for number in range(0, len(sources), max(1, len(sources) // 8)):
        subject.check()
        for i, (one, two) in enumerate(zip(base, seen(number), strict=True)):
            same = all(map(torch.equal, one, two))
            moved += i == number and not same
            told += i != number and not same
    if not moved:
        return False, "no sequence depends even on its own words"
    figure = f"{len(sources)} sequences in a pack, {moved} of them changed in turn"
    return not told, f"{figure}, {told} times another one moved"


def _of_each(subject: Subject, made: list[Example]) -> list[list[Tensor]]:
    """Return what each example of a pack is judged from, by every head."""
    batch = subject.pack(made)
    with torch.no_grad():
        heads = look(subject, subject.model, batch, subject.dtype).heads
    sizes = [subject.pack([example]).lengths for example in made]
    number = torch.arange(len(made), device=subject.device)
    owner = {
        "token": number.repeat_interleave(number.new_tensor([sum(size) for size in sizes])),
        "sequence": number.repeat_interleave(number.new_tensor([len(size) for size in sizes])),
    }
    known = [(owner[head.per][head.index], head.states) for head in heads.values() if head.per]
    return [[states[of == i] for of, states in known] for i in range(len(made))]


def packed_is_alone(subject: Subject) -> Verdict:
    """Compare every loss in a pack, and each term's sum, with those of the same sequence alone."""
    sources = subject.sources(2000)[:40]
    made = [subject.example(s, subject.rng(7, i)) for i, s in enumerate(sources)]

    def difference(dtype: torch.dtype) -> float:
        packed = look(subject, subject.model, subject.pack(made), dtype)
        alone = [look(subject, subject.model, subject.pack([e]), dtype) for e in made]
        found = [_terms_apart(packed, alone)]
        for name, head in packed.heads.items():
            each = torch.cat([one.heads[name].each for one in alone if name in one.heads])
            if len(each) != len(head.each):
                return math.inf
            found.append(((head.each - each).abs() / head.each.abs().clamp(min=1)).cpu())
        return float(torch.cat(found).max())

    # A sample that the loss draws may be another one in bfloat16, rightly.
    samples = look(subject, subject.model, subject.pack(made[:1])).read_in_loss is not None
    dtypes = [torch.float32] if samples else [*ROUNDING]
    return _small(subject, difference, f"{len(made)} sequences, max |Δ| / loss", dtypes)


def sums_packed_are_alone(subject: Subject) -> Verdict:
    """Compare the loss of examples in one pack with the sum of what each has alone.

    Also their hidden states.
    """
    rows = subject.sources(2000)[:40]
    made = [subject.example(row, subject.rng(7, i)) for i, row in enumerate(rows)]

    def difference(dtype: torch.dtype) -> float:
        packed = look(subject, subject.model, subject.pack(made), dtype)
        alone = [look(subject, subject.model, subject.pack([e]), dtype) for e in made]
        found = [_terms_apart(packed, alone)]
        if dtype == torch.float32:  # a sum can hide what a single state shows
            apart = packed.hidden - torch.cat([one.hidden for one in alone])
            found.append((apart.norm(dim=1) / packed.hidden.norm(dim=1).clamp(min=1e-12)).cpu())
        return float(torch.cat(found).max())

    return _small(subject, difference, f"{len(made)} examples, |Δ| of losses and states")


def _terms_apart(packed: Seen, alone: list[Seen]) -> Tensor:
    """Return how much each term's sum differs from the sum over sequences alone, relative."""
    found = []
    for name, term in packed.loss.terms.items():
        sums = [one.loss.terms[name].loss_sum.float() for one in alone if name in one.loss.terms]
        whole = term.loss_sum.float()
        found.append((whole - sum(sums)).abs() / whole.abs().clamp(min=1e-12))
    return torch.stack(found).cpu()


def _small(
    subject: Subject,
    difference: Callable[[torch.dtype], float],
    what: str,
    dtypes: Iterable[torch.dtype] = tuple(ROUNDING),
) -> Verdict:
    """Return whether a difference is rounding in float32 and in the recipe's precision."""
    figures, passed = [], True
    for dtype in dtypes:
        if dtype in (torch.float32, subject.dtype):
            limit = ROUNDING[dtype]
            with torch.no_grad():
                found = difference(dtype)
            figures.append(f"{found:.1g} in {str(dtype)[6:]} (at most {limit:g})")
            passed = passed and found <= limit
    return passed, f"{what} {', '.join(figures)}"
