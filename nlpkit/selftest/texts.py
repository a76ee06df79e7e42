"""Proofs of examples: they contain their text, and use negatives and visible targets correctly.

T tokens of an example.
"""

import numpy as np
import torch

from nlpkit.contracts.batch import IGNORE
from nlpkit.objectives import mixture
from nlpkit.selftest.heads import Head, look_at
from nlpkit.selftest.leaks import Verdict, find_shown
from nlpkit.selftest.subject import Example, Source, Subject

SIZE, COUNT = 48, 200  # tokens and number of made-up examples


def check_unmasking(subject: Subject) -> Verdict:
    """Undo the changes of the objective: the example must contain its piece.

    A label is put back at its own position (masked models) or at the next one (causal models).
    """
    sources = subject.draw_sources(4000)
    hidden = 0
    for number, source in enumerate(sources):
        example = subject.make_example(source, subject.make_rng(6, number))
        hidden += int((example.get("labels", np.empty(0)) != IGNORE).sum())
        if not any(_holds(subject, original, source) for original in unmask(subject, example)):
            negatives = " or a negative" if source.negatives else ""
            figure = f"piece {number} of {source.size} tokens{negatives} is not in its example"
            return False, figure + _hint(subject)
    return True, f"{len(sources)} pieces, {hidden:,} labels put back"


def _hint(subject: Subject) -> str:
    """Return a hint at missing optional methods of the objective."""
    returned = {
        "unmask": "the example with the hidden tokens in `input_ids`",
        "restore": "the texts of the unmasked example",
    }
    lacking = [name for name in returned if not subject.list_objectives_with(name)]
    methods = " or ".join(f"`{n}(example)`, which returns {returned[n]}" for n in lacking)
    other = "; if the example contains it in another form, give the objective "
    return f"{other}{methods}" if lacking else ""


def unmask(subject: Subject, example: Example) -> list[Example]:
    """Return the example with its hidden tokens in `input_ids`; by default one for each shift."""
    capable = subject.list_objectives_with("unmask")
    for objective in reversed(capable):  # the last change is undone first
        example = objective.unmask(example)
    if capable:
        return [example]
    filled = [_fill(example, shift) for shift in (0, 1)]
    unlearned = subject.objective.unlearned_id
    if unlearned is not None:  # the last target may be this token, which has no label
        filled.append(np.append(filled[1], unlearned))
    return [{**example, "input_ids": ids} for ids in filled]


def _fill(example: Example, shift: int) -> np.ndarray:
    inputs = example["input_ids"]
    labels = example.get("labels", np.empty(0, np.int64))
    (positions,) = np.nonzero(labels != IGNORE)
    # The last label may follow the last input.
    size = max([len(inputs), *(positions + shift + 1)])
    filled = np.append(inputs, np.full(size - len(inputs), IGNORE))
    filled[positions + shift] = labels[positions]
    return filled


def _holds(subject: Subject, example: Example, source: Source) -> bool:
    """Return whether an unmasked example contains its piece, or parts of it and its negatives."""
    piece, *negatives = source.texts
    capable = subject.list_objectives_with("restore")
    if not capable and _contains(example["input_ids"], piece):
        return True
    texts = capable[0].restore(example) if capable else _split_texts(subject, example)
    if np.array_equal(np.concatenate([*texts, piece[:0]]), piece):
        return True
    if not negatives or not len(texts):
        return False
    known = all(any(_contains(whole, text) for whole in source.texts) for text in texts)
    return known and any(_contains(piece, text) for text in texts)


def _split_texts(subject: Subject, example: Example) -> list[np.ndarray]:
    ids = example["input_ids"]
    inside = subject.find_text(ids)
    if subject.tokenizer.unk_id is not None:  # unknown tokens count as text here
        inside |= ids == subject.tokenizer.unk_id
    bounds = np.flatnonzero(np.diff(np.concatenate([[0], inside, [0]])))
    return [ids[start:stop] for start, stop in bounds.reshape(-1, 2)]


def _contains(whole: np.ndarray, part: np.ndarray) -> bool:
    if len(part) > len(whole):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(whole, len(part))
    return bool((windows == part).all(1).any())


def count_shown(subject: Subject) -> Verdict:
    """Count the visible targets: their share must be `shown_rate`, and each must be a word.

    The standard error of the share is that of a ratio over examples, because the targets of one
    example may be drawn together, for example as a span.
    """
    shown, targets, special, visible = [], [], 0, 0
    for example in subject.draw_noise_examples(COUNT, SIZE, 12):
        seen = look_at(subject, [example])
        is_shown = find_shown(subject, [example])
        heads = [head for head in seen.words.values() if head.per == "token"]
        rows = torch.cat([head.index[_find_words(subject, head)] for head in heads])
        # The target of a source is shown in the source, not at its place.
        where = "labels" if "source_ids" in example else "input_ids"
        inputs = example[where][is_shown.cpu().numpy()]
        special += int((~subject.find_text(inputs)).sum())
        visible += len(inputs)
        shown.append(int(is_shown[rows].sum()))
        targets.append(len(rows))
    of_all = np.array(targets, np.float64)
    rate = sum(shown) / max(sum(targets), 1)
    figure = f"{rate:.2%} of {sum(targets):,} targets show a word by design"
    expected = visible * float((~subject.is_text).mean())
    if special > expected + 3 * expected**0.5:
        return False, f"{figure}: {special} of {visible} such places have a special token instead"
    rates = [o.shown_rate for o in subject.objectives if o.shown_rate is not None]
    if not rates:
        return True, f"{figure}; the objective has no `shown_rate`"
    error = float(np.sqrt(((shown - rates[0] * of_all) ** 2).sum()) / max(of_all.sum(), 1))
    figure = f"{figure}, expected {rates[0]:.2%} ± {error:.2%}"
    return abs(rate - rates[0]) <= 4 * error + 1e-9, figure


def _find_words(subject: Subject, head: Head) -> torch.Tensor:
    """Return which targets (M,) are text; the end of a text is not."""
    return torch.from_numpy(subject.find_text(head.targets.cpu().numpy())).to(head.targets.device)


def check_negatives(subject: Subject) -> Verdict:
    """Give pieces and negatives different words: some examples have both, a label tells which."""
    words = subject.make_rng(13).permutation(np.flatnonzero(subject.is_text))
    ours, theirs = np.array_split(words, 2)
    rng = subject.make_rng(14)
    size = subject.choose_noise_size(SIZE)
    by_label: dict[str, dict[bool, set[float]]] = {}
    mixed = 0
    for _ in range(COUNT):
        example = subject.make_example(subject.draw_noise(size, rng, ours, theirs), rng)
        # `unmask` or the labels undo random replacements, which may be any words.
        mixes = all(np.isin(m["input_ids"], theirs).any() for m in unmask(subject, example))
        mixed += mixes
        seen = look_at(subject, [example])
        for name, head in seen.labels.items():
            if head.per == "sequence" and len(head.targets) == 1:
                values = by_label.setdefault(name, {True: set(), False: set()})
                values[mixes].add(float(head.targets[0]))
    figure = f"{mixed} of {COUNT} examples have text of another document"
    if not mixed:
        asked = f"although the objective has `negatives` {subject.objective.negatives}"
        return False, f"{figure}, {asked}"
    if mixed == COUNT or not by_label:
        return True, figure
    if not any(values[True].isdisjoint(values[False]) for values in by_label.values()):
        return False, f"{figure}, and no label tells them from the others"
    return True, f"{figure}, and a label tells which"


def count_members(subject: Subject, mixed: mixture.Objective) -> Verdict:
    """Count the examples of each member: the shares must match the weights."""
    examples = subject.draw_noise_examples(COUNT, SIZE, 17)
    made = [int(example[mixture.MEMBER][0]) for example in examples]
    shares = np.bincount(made, minlength=len(mixed.labels)) / COUNT
    errors = np.sqrt(mixed.shares * (1 - mixed.shares) / COUNT)
    columns = zip(mixed.labels, shares, mixed.shares, errors, strict=True)
    figures = [
        f"{label} {share:.0%}, expected {expected:.0%} ± {error:.0%}"
        for label, share, expected, error in columns
    ]
    passed = bool((abs(shares - mixed.shares) <= 4 * errors).all())
    return passed, f"{COUNT} examples: {'; '.join(figures)}"


def check_detection(subject: Subject) -> Verdict:
    """Compare labels with original tokens: a token is replaced if it differs from the original."""
    lacks = "the objective detects replaced tokens, but"
    if not subject.list_objectives_with("unmask"):
        return False, f"{lacks} has no `unmask` for the original ones"
    tokens = replaced = wrong = 0
    for example in subject.draw_noise_examples(COUNT, SIZE, 15):
        (original,) = (made["input_ids"] for made in unmask(subject, example))
        seen = look_at(subject, [example])
        read = seen.read_in_loss
        if read is None:
            read = torch.from_numpy(example["input_ids"]).to(subject.device)
        differs = read != torch.from_numpy(original).to(subject.device)
        heads = [head for head in seen.labels.values() if head.per == "token"]
        if not heads:
            return False, f"{lacks} no head has a label for each token"
        for head in heads:
            labels = head.targets.bool()
            tokens += len(labels)
            replaced += int(differs[head.index].sum())
            wrong += int((labels != differs[head.index]).sum())
    figure = f"{tokens:,} tokens, {replaced:,} replaced, {wrong} with the wrong label"
    return bool(replaced) and not wrong, figure
