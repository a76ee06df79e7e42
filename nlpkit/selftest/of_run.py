"""Proofs of the stream of batches (`data.loader`) and of the training loop (`train.loop`)."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlpkit.data.loader import Position, Step, Stream, steps
from nlpkit.data.pack import collate, packing_efficiency
from nlpkit.runs.run import Training
from nlpkit.selftest.bench import Bench
from nlpkit.selftest.of_objective import ROUNDING, Verdict
from nlpkit.selftest.watching import look
from nlpkit.train.loop import Job, train
from nlpkit.train.state import Pace, State


def batches(bench: Bench) -> Verdict:
    """Compare the stream of batches with itself: with workers, and resumed in the middle."""
    examples = bench.subject.examples
    settings = bench.small.recipe.train

    def stream(start: Position | None = None) -> Stream:
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
    return _epochs(bench, stream())


def _same_step(one: Step, two: Step) -> bool:
    if one.after != two.after or len(one.batches) != len(two.batches):
        return False
    return all(
        a.lengths == b.lengths
        and a.num_targets == b.num_targets
        and all(np.array_equal(a.fields[n], b.fields[n]) for n in a.fields)
        for a, b in zip(one.batches, two.batches, strict=True)
    )


def _epochs(bench: Bench, stream: Stream) -> Verdict:
    """Check that every item is in exactly one batch per epoch, with the planned length."""
    examples, used, bin_count = bench.subject.examples, 0.0, 0
    # A round of a large corpus is one epoch; planning a small corpus takes little time.
    leftover = np.empty(0, np.int64)
    for epoch in range(stream.round):
        bins = stream.plan(epoch)
        due = np.sort(np.concatenate([examples.postponed(leftover), examples.epoch(epoch)]))
        if not np.array_equal(np.sort(np.concatenate([bins.items, bins.leftover])), due):
            return False, f"epoch {epoch} does not have every piece exactly once"
        leftover = bins.leftover
        share = packing_efficiency(bins, examples.sizes, stream.budget)
        used, bin_count = used + share * len(bins), bin_count + len(bins)
    if len(leftover):
        return False, f"{len(leftover)} examples are left over at the end of a round"
    for number in bench.subject.rng(8).integers(0, len(examples), 50).tolist():
        made = collate([examples.make(number, 0)], examples.objective.fields).tokens
        lacking = int(examples.sizes[number]) - made
        if not 0 <= lacking <= bench.subject.objective.slack:
            return False, f"an example of {made} tokens was planned as {examples.sizes[number]}"
    figure = f"{len(examples):,} examples once in each of {stream.round} epochs"
    return True, f"{figure}, {used / bin_count:.2%} full, same with 2 workers"


class _Gradients(torch.optim.SGD):
    """An optimizer that keeps the gradients and changes no weight."""

    def step(self, closure: Any = None) -> Any:
        self.gradients = [
            p.grad.clone() for p in self.param_groups[0]["params"] if p.grad is not None
        ]


def accumulated(bench: Bench) -> Verdict:
    """Compare the gradients of a step of one batch and of several: they must be equal."""
    subject = bench.subject
    sources = subject.sources(2000)[:24]
    made = [subject.example(s, subject.rng(9, i)) for i, s in enumerate(sources)]
    cuts = sorted({0, 1, len(made) // 2, len(made)})  # very unequal parts
    parts = [made[a:b] for a, b in pairwise(cuts)]

    def gradient(groups: list[list[Any]]) -> tuple[Tensor, Counter[str]]:
        step = Step([subject.pack(group) for group in groups], Position())
        counts: Counter[str] = Counter()
        for batch in step.batches:
            counts.update(batch.num_targets)
        return _gradient(bench, step), counts

    (one, counted), (several, in_parts) = gradient([made]), gradient(parts)
    with torch.no_grad():
        by_loss = look(subject, subject.model, subject.pack(made)).loss.num_targets
    if wrong := _miscounted(counted, in_parts, by_loss):
        return False, wrong
    count = sum(counted.values())
    difference = float((one - several).norm() / one.norm())
    limit = ROUNDING[torch.float32]
    figure = f"{len(parts)} batches, {count:,} targets, gradients differ by {difference:.1g}"
    return difference <= limit, f"{figure} in float32 (at most {limit:g})"


def _miscounted(
    counted: Mapping[str, int], in_parts: Mapping[str, int], by_loss: Mapping[str, int]
) -> str:
    """Return a message if the numbers of targets of a term differ, or an empty string."""
    if {*counted} != {*by_loss}:
        return f"targets are counted of {', '.join(counted)}, the loss has {', '.join(by_loss)}"
    for name, count in counted.items():
        if not count == in_parts[name] == by_loss[name]:
            return (
                f"targets of {name} are counted as {count}, in parts as {in_parts[name]}, by loss "
                f"as {by_loss[name]}"
            )
    return ""


def _gradient(bench: Bench, step: Step) -> Tensor:
    """Return the gradient of one step of `train.loop`, flattened."""
    training = Training(bench.subject.model, bench.subject.objective)
    given = {"params": training.parameters(), "initial_lr": 1.0}
    optimizer = _Gradients([given], lr=1.0)
    settings = bench.run.settings.model_copy(update={"clip": None})
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
