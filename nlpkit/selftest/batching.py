"""Proofs of packs (`data.pack`), batches (`data.loader`) and the training loop (`train.loop`)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlpkit.data.loader import Position, Step, Stream, steps
from nlpkit.data.pack import collate, packing_efficiency
from nlpkit.runs.run import Training
from nlpkit.selftest.heads import Seen, look_at
from nlpkit.selftest.leaks import Verdict
from nlpkit.selftest.subject import Bench, Example, Subject
from nlpkit.train.loop import Job, train
from nlpkit.train.state import Pace, State

# Relative; from the order of sums, and in bfloat16 from rounding between layers.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def compare_packed(subject: Subject) -> Verdict:
    """Compare every loss and each term's sum in a pack with the values of single sequences."""

    def losses_apart(packed: Seen, alone: list[Seen], dtype: torch.dtype) -> list[Tensor]:
        differences = []
        for name, head in packed.heads.items():
            each = torch.cat([one.heads[name].each for one in alone if name in one.heads])
            ours = head.each
            if len(each) != len(ours):
                return [torch.tensor([math.inf])]
            if not head.per:  # the rows of another run may be in any order
                ours, each = ours.sort().values, each.sort().values
            differences.append((ours - each).abs() / ours.abs().clamp(min=1))
        return differences

    # A sample that the loss draws may differ in bfloat16.
    one = subject.make_examples(subject.draw_sources(1)[:1], 7)
    samples = look_at(subject, one).read_in_loss is not None
    dtypes = [torch.float32] if samples else [*ROUNDING]
    return _compare_packed(subject, losses_apart, "sequences, max |Δ| / loss", dtypes)


def compare_packed_sums(subject: Subject) -> Verdict:
    """Compare the loss and hidden states of a pack with those of single examples."""

    def states_apart(packed: Seen, alone: list[Seen], dtype: torch.dtype) -> list[Tensor]:
        if dtype != torch.float32:
            return []
        read = ~packed.hidden.isnan().any(1)  # others were left out
        states = packed.hidden[read]
        apart = states - torch.cat([one.hidden for one in alone])[read]
        # A sum can hide differences of single states.
        return [apart.norm(dim=1) / states.norm(dim=1).clamp(min=1e-12)]

    return _compare_packed(subject, states_apart, "examples, |Δ| of losses and states", ROUNDING)


def _compare_packed(
    subject: Subject,
    apart: Callable[[Seen, list[Seen], torch.dtype], list[Tensor]],
    what: str,
    dtypes: Iterable[torch.dtype],
) -> Verdict:
    """Return whether a pack and its examples alone are equal up to rounding.

    `apart` returns differences beside those of the terms' sums. They are computed in float32 and in
    the recipe's precision, as far as these are among `dtypes`.
    """
    made = subject.make_examples(subject.draw_sources(2000)[:40], 7)
    figures, passed = [], True
    for dtype in dtypes:
        if dtype in (torch.float32, subject.dtype):
            limit = ROUNDING[dtype]
            packed = look_at(subject, made, dtype)
            alone = [look_at(subject, [example], dtype) for example in made]
            differences = [_compare_terms(packed, alone), *apart(packed, alone, dtype)]
            relative = float(torch.cat([each.cpu() for each in differences]).max())
            figures.append(f"{relative:.1g} in {str(dtype)[6:]} (at most {limit:g})")
            passed = passed and relative <= limit
    return passed, f"{len(made)} {what} {', '.join(figures)}"


def _compare_terms(packed: Seen, alone: list[Seen]) -> Tensor:
    differences = []
    for name, term in packed.loss.terms.items():
        sums = [one.loss.terms[name].loss_sum.float() for one in alone if name in one.loss.terms]
        packed_sum = term.loss_sum.float()
        differences.append((packed_sum - sum(sums)).abs() / packed_sum.abs().clamp(min=1e-12))
    return torch.stack(differences)


def check_batches(bench: Bench) -> Verdict:
    """Compare the stream of batches with itself: with workers, and resumed in the middle."""
    examples = bench.subject.examples
    settings = bench.small.recipe.train

    def stream(start: Position = Position()) -> Stream:
        return Stream(examples, budget=settings.batch_budget, batches_per_step=2, start=start)

    torch.manual_seed(1)  # no batch may depend on global seeds
    np.random.seed(1)
    first, workers = (list(steps(stream(), 3, count)) for count in (0, 2))
    np.random.seed(2)
    second = list(steps(stream(first[0].after), 2, 0))
    if not all(map(_same_step, first[1:], second)):
        return False, "a stream resumed in the middle has other batches"
    if not all(map(_same_step, first, workers)):
        return False, "worker processes make other batches"
    for step in first:
        for batch in step.batches:
            if batch.tokens > settings.batch_budget:
                return False, f"a batch of {batch.tokens} tokens, over {settings.batch_budget}"
    bench.subject.check()
    return _check_epochs(bench, stream())


def _same_step(one: Step, two: Step) -> bool:
    if one.after != two.after or len(one.batches) != len(two.batches):
        return False
    return all(
        a.lengths == b.lengths
        and a.num_targets == b.num_targets
        and all(np.array_equal(a.fields[n], b.fields[n]) for n in a.fields)
        for a, b in zip(one.batches, two.batches, strict=True)
    )


def _check_epochs(bench: Bench, stream: Stream) -> Verdict:
    """Check that every item is in exactly one batch per epoch, with the planned length."""
    examples, used, bin_count = bench.subject.examples, 0.0, 0
    # A round of a large corpus is one epoch; planning a small corpus takes little time.
    leftover = np.empty(0, np.int64)
    for epoch in range(stream.round):
        bins = stream.plan(epoch)
        due = np.sort(np.concatenate([examples.carry_over(leftover), examples.epoch(epoch)]))
        if not np.array_equal(np.sort(np.concatenate([bins.items, bins.leftover])), due):
            return False, f"epoch {epoch} does not have every piece exactly once"
        leftover = bins.leftover
        share = packing_efficiency(bins, examples.sizes, stream.budget)
        used, bin_count = used + share * len(bins), bin_count + len(bins)
    if len(leftover):
        return False, f"{len(leftover)} examples are left over at the end of a round"
    for number in bench.subject.make_rng(8).integers(0, len(examples), 50).tolist():
        made = collate([examples.make(number, 0)], examples.objective.fields).tokens
        lacking = int(examples.sizes[number]) - made
        if not 0 <= lacking <= bench.subject.objective.max_shrink:
            return False, f"an example of {made} tokens was planned as {examples.sizes[number]}"
    figure = f"{len(examples):,} examples once in each of {stream.round} epochs"
    return True, f"{figure}, {used / bin_count:.2%} full, same with 2 workers"


class _Gradients(torch.optim.SGD):
    """An optimizer that keeps the gradients and changes no weight."""

    def step(self, closure: Any = None) -> Any:
        self.gradients = [
            p.grad.clone() for p in self.param_groups[0]["params"] if p.grad is not None
        ]


def compare_gradients(bench: Bench) -> Verdict:
    """Compare the gradients of a step of one batch and of several: they must be equal."""
    subject = bench.subject
    made = subject.make_examples(subject.draw_sources(2000)[:24], 9)
    cuts = sorted({0, 1, len(made) // 2, len(made)})  # very unequal parts
    parts = [made[a:b] for a, b in pairwise(cuts)]

    def gradient(groups: list[list[Example]]) -> tuple[Tensor, Counter[str]]:
        step = Step([subject.pack(group) for group in groups], Position())
        counts: Counter[str] = Counter()
        for batch in step.batches:
            counts.update(batch.num_targets)
        return _compute_gradient(bench, step), counts

    (one, counted), (several, in_parts) = gradient([made]), gradient(parts)
    by_loss = look_at(subject, made).loss.num_targets
    if wrong := _find_miscount(counted, in_parts, by_loss):
        return False, wrong
    count = sum(counted.values())
    difference = float((one - several).norm() / one.norm())
    limit = ROUNDING[torch.float32]
    figure = f"{len(parts)} batches, {count:,} targets, gradients differ by {difference:.1g}"
    return difference <= limit, f"{figure} in float32 (at most {limit:g})"


def _find_miscount(
    counted: Mapping[str, int], in_parts: Mapping[str, int], by_loss: Mapping[str, int]
) -> str:
    if {*counted} != {*by_loss}:
        return f"targets are counted of {', '.join(counted)}, the loss has {', '.join(by_loss)}"
    for name, count in counted.items():
        if not count == in_parts[name] == by_loss[name]:
            return (
                f"targets of {name} are counted as {count}, in parts as {in_parts[name]}, by loss "
                f"as {by_loss[name]}"
            )
    return ""


def _compute_gradient(bench: Bench, step: Step) -> Tensor:
    training = Training(bench.subject.model, bench.subject.objective)
    given = {"params": training.parameters(), "initial_lr": 1.0}
    optimizer = _Gradients([given], lr=1.0)
    settings = bench.run.settings.model_copy(update={"clip": None, "steps": 1})
    job = Job(
        accelerator=bench.run.accelerator,
        training=training,
        optimizers=[optimizer],
        settings=settings,
        seed=bench.subject.seed,
        steps=lambda state: iter([step]),
        evaluate=None,
        save=lambda state, best: None,
        log=bench.log,
        metrics=None,
        stop=bench.stop,
        pace=Pace(settings),
    )
    try:
        train(job, State())
    finally:
        bench.subject.model.eval()
    return torch.cat([gradient.flatten() for gradient in optimizer.gradients])
