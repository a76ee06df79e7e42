"""Proofs of checkpoints: they are opened again with the same bits, and runs go on from them.

They go through `pretrain`, `save` and `hf_layout` themselves, in a directory that is removed.
"""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from nlpkit.checkpoints import files, hf_layout
from nlpkit.checkpoints.run_directory import METRICS, RunDirectory
from nlpkit.data.pack import Batch
from nlpkit.errors import Stopped, TryAgain
from nlpkit.runs import build, pretrain
from nlpkit.runs.resume import save
from nlpkit.selftest.bench import STEPS, Bench, check
from nlpkit.selftest.of_objective import Verdict
from nlpkit.selftest.subject import Subject
from nlpkit.selftest.watching import TOKENS, look
from nlpkit.train.log import QUIET, TIME_KEYS, Log
from nlpkit.train.signals import StopFlag
from nlpkit.train.state import State


def reopened(bench: Bench) -> Verdict:
    """Save the model as a run does and open it again, here and in transformers: same bits."""
    subject, made = bench.subject, bench.run
    made.unwrapped.model.load_state_dict(subject.model.state_dict())
    save(made, State(step=1), False)
    place = files.checkpoint_path(made.directory.path, 1)
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
    sources = enumerate(subject.sources(9))
    batch = subject.pack([subject.example(s, subject.rng(10, i)) for i, s in sources])
    before, after = (_logits(subject, m, batch) for m in (subject.model, model))
    if not torch.equal(before, after):
        return False, f"logits differ by {float((before - after).abs().max()):.1g}"
    figure = f"{len(kept)} tensors, {before.numel():,} logits: same bits"
    theirs, wrong = _in_transformers(place)
    if wrong:
        return False, f"{figure}; transformers' {theirs} has other {', '.join(wrong[:3])}"
    return True, f"{figure}, also in transformers' {theirs}" if theirs else figure


def _logits(subject: Subject, model: Any, batch: Batch) -> Tensor:
    """Return the logits of every head, flat."""
    with torch.no_grad():
        heads = look(subject, model, batch).heads
        found = [
            model.logits(head.states) if name == TOKENS else head.states
            for name, head in heads.items()
        ]
    return torch.cat([logits.flatten().float() for logits in found])


def _in_transformers(place: Path) -> tuple[str, list[str]]:
    """Return transformers' class of the checkpoint, if it has one, and the tensors that differ."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    settings, tensors = hf_layout.read(place)
    name = next(iter(settings.get("architectures", [])), "")
    if not name or not hasattr(transformers, name):
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
    back = files.list_checkpoints(broken)[0].step if files.list_checkpoints(broken) else 0
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
    final = files.checkpoint_path(place, STEPS)
    return load_file(final / hf_layout.WEIGHTS) | load_file(final / files.OPTIMIZER_STATE)
