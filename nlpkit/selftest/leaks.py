"""Proofs of an objective with a model. Each returns whether it passed, and a figure.

They use only the contracts (docs/design_contracts.md), so they work for every objective and
family. They change token k of the source: rows whose target changes predict this token, so the
states of these rows must not change.
N packed tokens, M targets of a batch, C model width, K source tokens that are targets.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from nlpkit.selftest.heads import Head, Seen, look, look_at
from nlpkit.selftest.subject import Example, Source, Subject

Verdict = tuple[bool, str]

# The model must learn a leak before it shows: a leak through one visible token takes about 200
# steps here, and 400 with 64 words.
NOISE_STEPS, NOISE_LAST, NOISE_EXAMPLES, NOISE_PIECE = 300, 60, 12, 20
NOISE_LR = 5e-3
SHORT = 16  # tokens of a piece in which tokens are changed one by one
LEARNED = 0.3  # nats above the floor; above this a leak may not be learned yet


def find_noise_floor(subject: Subject) -> Verdict:
    """Train on random words: the loss of a word must decrease to ln V, and not below.

    No model has a lower expected loss for a hidden random word. A model that learns what a frozen
    one says, such as a teacher's distribution, does not learn the words, and its loss may stay
    above. The losses minus ln V are a submartingale, so their standard error is that of independent
    values.
    """
    words = subject.words
    is_word = torch.zeros(subject.tokenizer.vocab_size, dtype=torch.bool, device=subject.device)
    is_word[torch.from_numpy(words).to(subject.device)] = True
    rng, kept = subject.make_rng(3), []
    for made, seen in train_fresh(subject, draw_noise_batches(subject, rng)):
        shown = find_shown(subject, made)
        for head in seen.words.values():
            kept.append(head.each[is_word[head.targets] & _find_hidden(head, shown)].double())
    losses = torch.cat(kept)
    if not len(losses):
        return False, "no target is hidden: all show a word by design"
    mean, floor = float(losses.mean()), math.log(len(words))
    error = float(losses.std() / math.sqrt(len(losses)))
    figure = f"loss {mean:.4f} ± {error:.4f}, ln {len(words)} = {floor:.4f}"
    if mean > floor + LEARNED and any(each.frozen_models for each in subject.objectives):
        return True, f"{figure}: not below; a loss that reads a frozen model need not fall to it"
    below = f": below the minimum without a leak, so the targets leak{_hint(subject)}"
    fault = _compare_with_floor(mean, error, floor, below)
    return not fault, figure + (fault or f", {len(losses):,} words")


def _compare_with_floor(mean: float, error: float, floor: float, below: str) -> str:
    """Return `below`, or that too little was learned; nothing if the loss is at its floor."""
    if mean < floor - 3 * error:
        return below
    # So that NaN fails.
    return "" if mean <= floor + LEARNED else ": learned too little for a leak to show"


def draw_noise_batches(subject: Subject, rng: np.random.Generator) -> Iterator[list[Example]]:
    """Yield examples of random words, without end."""
    size = subject.choose_noise_size(NOISE_PIECE)
    while True:
        sources = [subject.draw_noise(size, rng) for _ in range(NOISE_EXAMPLES)]
        yield [subject.make_example(source, rng) for source in sources]


def train_fresh(
    subject: Subject, batches: Iterable[list[Example]]
) -> Iterator[tuple[list[Example], Seen]]:
    """Train a fresh model for `NOISE_STEPS` batches; yield its losses on the last ones."""
    model = subject.build_fresh().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=NOISE_LR)
    for step, made in zip(range(NOISE_STEPS), batches, strict=False):
        subject.check()
        batch = subject.pack(made)
        seen = look(subject, model, batch, subject.dtype)
        seen.loss.mean(batch.num_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= NOISE_STEPS - NOISE_LAST:
            yield made, seen


def find_shown(subject: Subject, examples: list[Example]) -> Tensor:
    """Return which rows (N,) of the pack of these examples have visible targets by design."""
    shown = []
    for example in examples:
        found = np.zeros(len(example[subject.examples.token_field]), np.bool_)
        for objective in subject.list_objectives_with("shown"):
            found |= objective.shown(example)
        shown.append(found)
    return torch.from_numpy(np.concatenate(shown)).to(subject.device)


def _find_hidden(head: Head, shown: Tensor) -> Tensor:
    """Return which rows (M,) of a head have hidden targets; `shown` (N,) is of the pack's tokens.

    Of rows that are no tokens of the pack this is known only if no target is shown.
    """
    if head.per == "token":
        return ~shown[head.index]
    return torch.full_like(head.index, not shown.any(), dtype=torch.bool)


def find_leaks(subject: Subject) -> Verdict:
    """Change each source token in turn: the states that predict it must not change.

    There must be no cycle either: if the prediction of j depends on k, that of k must not depend
    on j. Targets that are visible by design are excluded. Source tokens that decide which tokens
    are targets cannot be compared.
    """
    targets = leaks = cycles = positions = decided = 0
    largest = 0.0
    tokens = 12 * int(subject.objective.length(np.array([SHORT]))[0])
    for number, source in enumerate(subject.draw_sources(tokens, longest=SHORT)):
        base, index = _look_at_words(subject, source, number)
        ids = source.ids
        owner = torch.full((len(index),), -1, device=subject.device)
        moves = torch.zeros(len(index), len(ids), dtype=torch.bool, device=subject.device)
        for k in range(len(ids)):
            subject.check()
            other, other_index = _look_at_words(subject, subject.change_words(source, k), number)
            positions += 1
            if not torch.equal(other_index, index):
                decided += 1
                continue
            moved = [other[name].states - base[name].states for name in base]
            change = torch.cat([each.abs().amax(1) for each in moved])
            predicts = torch.cat([other[n].targets != base[n].targets for n in base])
            moves[:, k] = change != 0  # so that NaN counts as a change
            owner[predicts] = k
            largest = max([largest, *change[predicts].tolist()])
        own = owner >= 0
        targets += int(own.sum())
        rows = owner[own]
        depends = torch.zeros(len(ids), len(ids), dtype=torch.bool, device=subject.device)
        for row, moving in zip(rows.tolist(), moves[own], strict=True):
            depends[row] |= moving
        depends = depends[rows.unique()][:, rows.unique()]  # (K, K)
        leaks += int(depends.diagonal().sum())
        cycles += _count_in_cycles(depends & ~torch.eye(len(depends), dtype=torch.bool).to(depends))
    if 2 * decided > positions:
        why = f"at {decided} of {positions} positions the word decides which tokens are targets"
        return False, why
    if not targets:
        why = f"no token of the text is a hidden target: the first {SHORT} of each text of a row "
        why += "are tried, and all of a single text; give what is predicted a text of its own "
        return False, why + "(`texts`)"
    figure = f"{targets} targets, {leaks} move with their own token (max |Δ| {largest:.1g})"
    figure = f"{figure}, {cycles} with one another's"
    return not (leaks or cycles), figure + (_hint(subject) if leaks else "")


def _hint(subject: Subject) -> str:
    """Return a hint at the method `shown`, if the objective does not have it."""
    if subject.list_objectives_with("shown"):
        return ""
    return (
        "; if some targets show a word by design, as in 80/10/10 masking, give the objective "
        "a method `shown(example)` that returns (T,) bool, True for these targets"
    )


def _look_at_words(subject: Subject, source: Source, key: int) -> tuple[dict[str, Head], Tensor]:
    """Return the heads with only hidden words of one example, and the rows of all heads.

    Calls with the same `key` draw the same random numbers.
    """
    example = subject.make_example(source, subject.make_rng(4, key))
    seen = look_at(subject, [example], subject.dtype)
    shown = find_shown(subject, [example])
    found = {
        name: head.take(_find_hidden(head, shown).nonzero().squeeze(1))
        for name, head in seen.words.items()
    }
    none = torch.empty(0, dtype=torch.long, device=subject.device)
    return found, torch.cat([none, *(head.index for head in found.values())])


def _count_in_cycles(depends: Tensor) -> int:
    """Return the number of nodes of a graph (K, K) left by topological sorting (Kahn 1962)."""
    left = depends.clone()
    while len(left):
        stays = left.any(1)
        if stays.all():
            return len(left)
        left = left[stays][:, stays]
    return 0


def find_neighbour_leaks(subject: Subject) -> Verdict:
    """Change one sequence of a pack: no bit of the other sequences' states may change."""
    sources = subject.draw_sources(1500)[:32]

    def seen(changed: int | None) -> list[list[Tensor]]:
        chosen = [subject.change_words(s) if i == changed else s for i, s in enumerate(sources)]
        return _list_states(subject, subject.make_examples(chosen, 5))

    base = seen(None)
    moved = leaks = 0
    for number in range(0, len(sources), max(1, len(sources) // 8)):
        subject.check()
        for i, (one, two) in enumerate(zip(base, seen(number), strict=True)):
            same = all(map(torch.equal, one, two))
            moved += i == number and not same
            leaks += i != number and not same
    if not moved:
        return False, "no sequence depends even on its own words"
    figure = f"{len(sources)} sequences in a pack, {moved} of them changed in turn"
    return not leaks, f"{figure}, {leaks} times another one moved"


def _list_states(subject: Subject, made: list[Example]) -> list[list[Tensor]]:
    """Return the states of the heads' rows, by example; without a head, those of all tokens."""
    seen = look_at(subject, made, subject.dtype)
    sizes = [subject.pack([example]).lengths for example in made]
    number = torch.arange(len(made), device=subject.device)
    owner = {
        "token": number.repeat_interleave(number.new_tensor([sum(size) for size in sizes])),
        "sequence": number.repeat_interleave(number.new_tensor([len(size) for size in sizes])),
    }
    heads = seen.heads.values()
    known = [(owner[head.per][head.index], head.states) for head in heads if head.per]
    known = known or [(owner["token"], seen.hidden)]
    return [[states[of == i] for of, states in known] for i in range(len(made))]


def find_label_leaks(subject: Subject) -> Verdict:
    """Train with all words replaced by random ones: the labels must be unpredictable.

    The words are replaced in finished examples, so that only special tokens, token types, positions
    and lengths remain. The loss must decrease to the entropy of the labels, not below.
    """
    rng = subject.make_rng(16)
    by_head: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for made, seen in train_fresh(subject, _draw_blind(subject, rng)):
        words = subject.find_text(np.concatenate([example["input_ids"] for example in made]))
        for name, head in seen.given_labels.items():
            by_head.setdefault(name, []).append(_keep_words(head, torch.from_numpy(words)))
    figures, passed = [], True
    for name, batches in by_head.items():
        mean, error, floor = _compare_with_entropy(batches)
        figure = f"{name}: loss {mean:.4f}, {floor:.4f} ± {error:.4f} without a leak"
        below = ", so the label depends on something other than the text"
        fault = _compare_with_floor(mean, error, floor, below)
        passed = passed and not fault
        figures.append(figure + fault)
    return passed, "; ".join(figures)


def _draw_blind(subject: Subject, rng: np.random.Generator) -> Iterator[list[Example]]:
    for made in draw_noise_batches(subject, rng):
        for example in made:
            ids = example["input_ids"]
            drawn = rng.choice(subject.words, len(ids))
            example["input_ids"] = np.where(subject.find_text(ids), drawn, ids)
        yield made


def _keep_words(head: Head, is_text: Tensor) -> tuple[Tensor, Tensor]:
    """Return a head's losses and labels (M,) without special tokens, which are always original."""
    if head.per == "token":
        head = head.take(is_text.to(head.index.device)[head.index].nonzero().squeeze(1))
    return head.each.double().cpu(), head.targets.cpu().long()


def _compare_with_entropy(batches: list[tuple[Tensor, Tensor]]) -> tuple[float, float, float]:
    """Return the mean loss, the standard error of its excess over the entropy, and the entropy.

    The losses of each batch are compared with those of the labels' frequencies on the same batch.
    """
    labels = torch.cat([labels for _, labels in batches])
    frequency = torch.bincount(labels).double() / len(labels)
    surprise = -frequency.log()
    count = len(labels) / len(batches)
    excess = [float((losses - surprise[own]).sum()) / count for losses, own in batches]
    floor = float(surprise[labels].mean())
    mean = float(torch.cat([losses for losses, _ in batches]).mean())
    return mean, float(np.std(excess, ddof=1)) / math.sqrt(len(excess)), floor
