"""Proofs of checkpoints: they are loaded with the same bits, and runs resume from them.

The proofs call `pretrain`, `save` and `hf_layout`, in a temporary directory.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nlpkit.checkpoints import files, hf_layout, hf_model, objective_heads
from nlpkit.checkpoints.run_directory import METRICS, RunDirectory
from nlpkit.contracts.batch import Batch
from nlpkit.contracts.format import FOLDERS, HfFormat
from nlpkit.errors import Stopped, TryAgain
from nlpkit.models.formats.hf_format import matches
from nlpkit.models.lora import in_memory
from nlpkit.report import same_run
from nlpkit.runs import build, pretrain
from nlpkit.runs.save import save
from nlpkit.selftest.heads import OTHER_TOKENS, TOKENS, look
from nlpkit.selftest.leaks import Verdict
from nlpkit.selftest.subject import STEPS, Bench, Subject, check
from nlpkit.train.signals import StopFlag
from nlpkit.train.state import State


def reopen(bench: Bench) -> Verdict:
    """Save a checkpoint and load it here and in transformers: all bits must be equal."""
    subject, run = bench.subject, bench.run
    run.unwrapped.model.load_state_dict(subject.model.state_dict())
    save(run, State(step=1), False)
    path = files.checkpoint_path(run.directory.path, 1)
    loaded = hf_model.from_hf(run.part.family, path, *hf_layout.read(path))
    weights = {**loaded.state, **objective_heads.read(path)}
    original = subject.model.state_dict()
    wrong = [name for name in original if not _same(original[name], weights.get(name))]
    if wrong or original.keys() != weights.keys():
        return False, f"{len(wrong)} of {len(original)} tensors differ: {', '.join(wrong[:3])}"
    part = replace(run.part, config=loaded.config, start=weights)
    backend = run.resolved.recipe.attention.backend
    model = build.build_model(part, run.data.vocab_size, backend)
    model = model.to(subject.device).eval()
    batch = subject.pack(subject.make_examples(subject.draw_sources(9), 10))
    before, after = (_compute_logits(subject, m, batch) for m in (subject.model, model))
    if not torch.equal(before, after):
        return False, f"logits differ by {float((before - after).abs().max()):.1g}"
    figure = f"{len(original)} tensors, {before.numel():,} logits: same bits"
    theirs, wrong = _open_in_transformers(path, part.module().FORMAT)
    if wrong:
        return False, f"{figure}; transformers' {theirs} has other {', '.join(wrong[:3])}"
    return True, f"{figure}, also in transformers' {theirs}" if theirs else figure


def _compute_logits(subject: Subject, model: Any, batch: Batch) -> Tensor:
    with torch.no_grad():
        seen = look(subject, model, batch)
        logits = [
            model.logits(head.states) if name in (TOKENS, OTHER_TOKENS) else head.states
            for name, head in seen.heads.items()
        ]
    logits = logits or [seen.hidden]  # of a loss that scores some tokens alone
    return torch.cat([values.flatten().float() for values in logits])


def _open_in_transformers(path: Path, whole: HfFormat) -> tuple[str, list[str]]:
    """Return transformers' classes for the checkpoint (or ""), and the tensors that differ.

    A folder of the checkpoint is a model of its own.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    settings, tensors = hf_layout.read(path)
    opened, wrong = [], []
    for folder, own in {"": settings, **settings.get(FOLDERS, {})}.items():
        name = next(iter(own.get("architectures", [])), "")
        if not name or not hasattr(transformers, name):
            continue
        made: Any = getattr(transformers, name)
        theirs = made.from_pretrained(path / folder, dtype=torch.float32)
        state, form = theirs.state_dict(), whole.folders.get(folder, whole)
        parts = {key.rpartition("/"): tensor for key, tensor in tensors.items()}
        ours = {
            _find_key(form, key, state): tensor
            for (of, _, key), tensor in parts.items()
            if of == folder and not matches(form.beside, key)
        }
        names = sorted(state.keys() | ours.keys())
        wrong += [key for key in names if not _same(ours.get(key), state.get(key))]
        opened.append(name)
    return " and ".join(opened), wrong


def _find_key(form: HfFormat, key: str, state: Mapping[str, Tensor]) -> str:
    """Return what a model in memory calls a tensor; a body alone has no prefix."""
    names = (key, in_memory(form, key), key.removeprefix(form.body))
    return next((name for name in names if name in state), key)


def _same(one: Tensor | None, two: Tensor | None) -> bool:
    return one is not None and two is not None and torch.equal(one.cpu(), two.cpu())


class _Killed(Exception):
    """Simulates SIGKILL: nothing is saved."""


class _Interruption(StopFlag):
    """Stops or kills a run after the flag was read `reads` times."""

    def __init__(self, outer: StopFlag, reads: int, kill: bool):
        super().__init__()
        self.outer, self.reads, self.kill = outer, reads, kill
        self.happened = False

    @property
    def raised(self) -> bool:
        """Return whether the run is to save and stop."""
        check(self.outer)
        self.reads -= 1
        self.happened = self.happened or self.reads < 0
        if self.happened and self.kill:
            raise _Killed
        return self.happened

    def check(self) -> None:
        """Do not interrupt the phases before the training."""
        check(self.outer)


def resume(bench: Bench) -> Verdict:
    """Compare an uninterrupted run with one that is killed and stopped: same metrics and bits."""
    complete, interrupted = bench.workdir / "whole", bench.workdir / "interrupted"
    _run(bench, complete, bench.stop)
    killed = _Interruption(bench.stop, 2 * STEPS - 3, kill=True)
    with suppress(_Killed):
        _run(bench, interrupted, killed)
    with open(interrupted / METRICS, "a", encoding="utf-8") as file:  # as after a kill
        file.write('{"step": 5, "tok')
    back = files.list_checkpoints(interrupted)[0].step if files.list_checkpoints(interrupted) else 0
    stopped = _Interruption(bench.stop, 3, kill=False)
    with suppress(TryAgain):
        _run(bench, interrupted, stopped)
    if not (killed.happened and stopped.happened):
        return False, "the run finished before it was interrupted"
    _run(bench, interrupted, bench.stop)
    found = same_run.compare(complete, interrupted)
    figure = f"{STEPS} steps in {bench.precision}, killed (back to step {back}) and stopped"
    if found.differences:
        return False, f"{figure}: {found.differences[0]} (there: never interrupted)"
    saved = ", ".join(map(str, found.checkpoints))
    return True, f"{figure}: {found.records} records, checkpoints of steps {saved}: same bits"


def _run(bench: Bench, path: Path, stop: StopFlag) -> None:
    path.mkdir(exist_ok=True)
    resolved, directory = bench.small.with_sections(out=str(path)), RunDirectory(path)
    try:
        pretrain.pretrain(
            resolved, directory, device=bench.device, resume="auto", log=bench.log, stop=stop
        )
    except Stopped:
        check(bench.stop)  # a user's stop must not report the temporary checkpoint
        raise
