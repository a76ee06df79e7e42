"""Proofs of what joins objective and model: the stream of batches, the loop, the checkpoints.

They go through `loader`, `loop`, `run` and `saving` themselves, in a directory that is removed.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from nlpkit.checkpoints import files, hf_layout
from nlpkit.checkpoints.run_directory import METRICS, RunDirectory
from nlpkit.data.loader import Position, Step, Stream, packing_efficiency, steps
from nlpkit.errors import Stopped, TryAgain
from nlpkit.recipe import Resolved
from nlpkit.runs import build, pretrain
from nlpkit.runs.resume import Run, Training, save
from nlpkit.selftest.of_objective import ROUNDING, Subject, Verdict, look
from nlpkit.train.log import QUIET, TIME_KEYS, Log
from nlpkit.train.loop import Job, State, train
from nlpkit.train.signals import StopFlag

STEPS, SAVE_EVERY, EVAL_EVERY = 6, 2, 3  # of the run that is interrupted


@dataclass
class Bench:
    """Everything the proofs need: the run that would be, in a directory that will be removed."""

    run: Run
    subject: Subject
    small: Resolved  # the recipe with the shrunk model
    shrunk: dict[str, tuple[Any, Any]]  # setting -> (the recipe's, the one used)
    room: Path
    device: str
    precision: str
    attention: str
    stop: StopFlag


def check(stop: StopFlag) -> None:
    """Raise what ends the program if it is to stop."""
    if stop.raised:
        raise stop.ending("the proofs are not finished")


def batches(bench: Bench) -> Verdict:
    """Compare the stream of batches with itself: with workers, from the middle, as promised."""
    examples = bench.subject.examples
    settings = bench.small.recipe.train

    def stream(start: Position | None = None) -> Stream:
        return Stream(examples, budget=settings.batch_budget, batches_per_step=2, start=start)

    torch.manual_seed(1)  # nothing here may depend on it, nor on numpy's
    np.random.seed(1)
    first, workers = (list(steps(stream(), 3, count)) for count in (0, 2))
    np.random.seed(2)
    second = list(steps(stream(first[0].after), 2, 0))
    if not all(map(_same_step, first[1:], second)):
        return False, "going on from the middle gives other batches"
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
    """Check that every item of an epoch is in one batch of its round, as long as promised."""
    examples, used, room = bench.subject.examples, 0.0, 0
    # A large corpus has one epoch a round; a small one is planned in no time.
    rest = np.empty(0, np.int64)
    for epoch in range(stream.round):
        bins = stream.plan(epoch)
        due = np.sort(np.concatenate([examples.postponed(rest), examples.epoch(epoch)]))
        if not np.array_equal(np.sort(np.concatenate([bins.items, bins.leftover])), due):
            return False, f"epoch {epoch} does not have every piece exactly once"
        rest = bins.leftover
        share = packing_efficiency(bins, examples.sizes, stream.budget)
        used, room = used + share * len(bins), room + len(bins)
    if len(rest):
        return False, f"{len(rest)} examples are left over at the end of a round"
    for number in bench.subject.rng(8).integers(0, len(examples), 50).tolist():
        made = len(examples.make(number, 0)[examples.token_field])
        if made != examples.sizes[number]:
            return False, f"an example of {made} tokens was planned as {examples.sizes[number]}"
    figure = f"{len(examples):,} examples once in each of {stream.round} epochs"
    return True, f"{figure}, {used / room:.2%} full, same with 2 workers"


class _Gradients(torch.optim.SGD):
    """Keeps the gradients that the loop hands it and changes nothing."""

    def step(self, closure: Any = None) -> Any:
        self.found = [p.grad.clone() for p in self.param_groups[0]["params"] if p.grad is not None]


def accumulated(bench: Bench) -> Verdict:
    """Give the loop a step as one batch, then as several: the gradient must be the same."""
    subject = bench.subject
    pieces = subject.pieces(2000)[:24]
    made = [subject.objective.example(t, subject.rng(9, i)) for i, t in enumerate(pieces)]
    cuts = [0, 1, len(made) // 2, len(made)]  # as unequal as can be
    parts = [made[a:b] for a, b in pairwise(cuts) if b > a]

    def gradient(groups: list[list[Any]]) -> tuple[Tensor, int]:
        step = Step([subject.pack(group) for group in groups], Position())
        return _gradient(bench, step), sum(batch.targets for batch in step.batches)

    (one, count), (several, total) = gradient([made]), gradient(parts)
    with torch.no_grad():
        counted = look(subject, subject.model, subject.pack(made)).loss
    by_loss = next(iter(counted.num_targets.values()))
    if not count == total == by_loss:
        return False, f"targets are counted as {count}, in parts as {total}, by loss as {by_loss}"
    difference = float((one - several).norm() / one.norm())
    limit = ROUNDING[torch.float32]
    figure = f"{len(parts)} batches, {count:,} targets, gradients differ by {difference:.1g}"
    return difference <= limit, f"{figure} in float32 (at most {limit:g})"


def _gradient(bench: Bench, step: Step) -> Tensor:
    """Return the gradient that `train.loop` computes of one step, flat."""
    training = Training(bench.subject.model, bench.subject.objective)
    optimizer = _Gradients(training.parameters(), lr=1.0)
    job = Job(
        accelerator=bench.run.accelerator,
        training=training,
        optimizer=optimizer,
        settings=bench.small.recipe.train.model_copy(update={"clip": None}),
        seed=bench.subject.seed,
        steps=lambda state: iter([step]),
        evaluate=None,
        save=lambda state, best: None,
        log=Log(QUIET),
        metrics=None,
        stop=bench.stop,
    )
    try:
        train(job, State())
    finally:
        bench.subject.model.eval()
    return torch.cat([found.flatten() for found in optimizer.found])


def reopened(bench: Bench) -> Verdict:
    """Save the model as a run does and open it again, here and in transformers: same bits."""
    subject, made = bench.subject, bench.run
    made.bare.model.load_state_dict(subject.model.state_dict())
    save(made, State(step=1), False)
    place = files.place(made.directory.path, 1)
    loaded = hf_layout.converted(made.part.family, place, *hf_layout.read(place))
    weights = loaded.state
    kept = subject.model.state_dict()
    wrong = [name for name in kept if not _same(kept[name], weights.get(name))]
    if wrong or kept.keys() != weights.keys():
        return False, f"{len(wrong)} of {len(kept)} tensors differ: {', '.join(wrong[:3])}"
    part = replace(made.part, config=loaded.config, start=weights)
    backend = made.resolved.recipe.attention.backend
    model = build.build_model(part, made.data.vocab_size, backend)
    model = model.to(subject.device).eval()
    texts = enumerate(subject.pieces(9))
    batch = subject.pack([subject.objective.example(t, subject.rng(10, i)) for i, t in texts])
    with torch.no_grad():
        before, after = (
            subject.model.logits(look(subject, m, batch).hidden)  # type: ignore[operator]
            for m in (subject.model, model)
        )
    if not torch.equal(before, after):
        return False, f"logits differ by {float((before - after).abs().max()):.1g}"
    figure = f"{len(kept)} tensors, {before.numel():,} logits: same bits"
    theirs, wrong = _in_transformers(place)
    if wrong:
        return False, f"{figure}; transformers' {theirs} has other {', '.join(wrong[:3])}"
    return True, f"{figure}, also in transformers' {theirs}" if theirs else figure


def _in_transformers(place: Path) -> tuple[str, list[str]]:
    """Return transformers' class of the checkpoint, if it has one, and the tensors that differ."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    settings, tensors = hf_layout.read(place)
    name = next(iter(settings.get("architectures", [])), "")
    if not hasattr(transformers, name):
        return "", []
    opened: Any = getattr(transformers, name).from_pretrained(place, dtype=torch.float32)
    found = opened.state_dict()
    names = sorted(found.keys() | tensors.keys())
    return name, [n for n in names if not _same(tensors.get(n), found.get(n))]


def _same(one: Tensor | None, two: Tensor | None) -> bool:
    """Return whether both are there, with the same bits."""
    return one is not None and two is not None and torch.equal(one.cpu(), two.cpu())


class _Killed(Exception):
    """Stands for SIGKILL: nothing is saved."""


class _Interruption(StopFlag):
    """Ends a run once the flag was read so many times: asked to stop, or killed."""

    def __init__(self, outer: StopFlag, reads: int, kill: bool):
        super().__init__()
        self.outer, self.reads, self.kill = outer, reads, kill
        self.happened = False

    @property
    def raised(self) -> bool:
        """Return whether to save and leave."""
        check(self.outer)
        self.reads -= 1
        self.happened = self.happened or self.reads < 0
        if self.happened and self.kill:
            raise _Killed
        return self.happened

    def check(self) -> None:
        """Let the phases before the training pass."""
        check(self.outer)


def resumed(bench: Bench) -> Verdict:
    """Run the recipe a few steps, uninterrupted and killed and stopped: same metrics and bits."""
    whole, broken = bench.room / "whole", bench.room / "interrupted"
    _run(bench, whole, bench.stop)
    killed = _Interruption(bench.stop, 2 * STEPS - 3, kill=True)
    with suppress(_Killed):
        _run(bench, broken, killed)
    with open(broken / METRICS, "a", encoding="utf-8") as file:  # as a kill leaves it
        file.write('{"step": 5, "tok')
    back = files.found(broken)[0].step if files.found(broken) else 0
    stopped = _Interruption(bench.stop, 3, kill=False)
    with suppress(TryAgain):
        _run(bench, broken, stopped)
    if not (killed.happened and stopped.happened):
        return False, "the run was over before it was interrupted"
    _run(bench, broken, bench.stop)
    ours, theirs = _metrics(whole), _metrics(broken)
    if ours != theirs:
        first = next((a for a, b in zip(ours, theirs, strict=False) if a != b), ours[-1])
        return False, f"metrics differ from step {first['step']} on"
    one, two = _tensors(whole), _tensors(broken)
    wrong = [name for name in one.keys() | two.keys() if not _same(one.get(name), two.get(name))]
    figure = f"{STEPS} steps in {bench.precision}, killed (back to step {back}) and stopped"
    if wrong:
        return False, f"{figure}: {len(wrong)} of {len(one)} tensors differ"
    return True, f"{figure}: metrics and {len(one)} tensors same bits"


def _run(bench: Bench, place: Path, stop: StopFlag) -> None:
    place.mkdir(exist_ok=True)
    recipe = bench.small.recipe.model_copy(update={"out": str(place)})
    resolved = replace(bench.small, recipe=recipe)
    try:
        pretrain.pretrain(
            resolved,
            RunDirectory(place),
            device=bench.device,
            resume="auto",
            log=Log(QUIET),
            stop=stop,
        )
    except Stopped:
        check(bench.stop)  # what was saved is of no use to whoever stopped it
        raise


def _metrics(place: Path) -> list[dict[str, Any]]:
    lines = (place / METRICS).read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [{k: v for k, v in record.items() if k not in TIME_KEYS} for record in records]


def _tensors(place: Path) -> dict[str, Tensor]:
    final = files.place(place, STEPS)
    return load_file(final / hf_layout.WEIGHTS) | load_file(final / files.OPTIMIZER_STATE)
