"""Proves on this machine, in seconds, that a recipe's objective and model do what they should.

`of_objective`, `of_examples` and `of_labels` hold the proofs of masks and losses, of examples, and
of heads that predict no tokens; `of_run` and `of_checkpoint` those of batches, loop and
checkpoints. An objective may say more about itself (`objectives/_provable.py`). The model is the
recipe's, shrunk; text, tokenizer, objective and attention backend are the recipe's. Nothing is
written but the token cache and a temporary directory.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.data.loader import Examples
from nlpkit.errors import UsageError
from nlpkit.objectives import mixture
from nlpkit.objectives._task import Task
from nlpkit.recipe import Resolved, fit, sections
from nlpkit.runs import build, pretrain
from nlpkit.runs.model_part import model_part
from nlpkit.selftest import of_checkpoint, of_examples, of_labels, of_objective, of_run
from nlpkit.selftest.bench import EVAL_EVERY, SAVE_EVERY, STEPS, Bench, check
from nlpkit.selftest.of_objective import Verdict
from nlpkit.selftest.subject import Subject
from nlpkit.selftest.watching import Seen, look
from nlpkit.train.log import QUIET, Log
from nlpkit.train.signals import StopFlag

# Settings of a model that are lowered to this where they are higher.
SMALL = {"hidden_size": 64, "num_heads": 4, "head_dim": 16, "intermediate_size": 128,
         "num_layers": 2}  # fmt: skip
BUDGET = 1024  # tokens of a batch of the runs, where the recipe's is larger


@dataclass(frozen=True)
class Proof:
    """One thing proven, or not: what was measured, and how long that took."""

    name: str
    passed: bool
    figure: str
    seconds: float


@contextmanager
def bench(resolved: Resolved, *, device: str, log: Log, stop: StopFlag) -> Iterator[Bench]:
    """Yield what `prove` works on; its files are removed at the end, whatever the end is.

    Raises:
        UsageError, DataError, FileError: as the run itself would.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("selftest runs in one process; start it without a launcher")
    with tempfile.TemporaryDirectory(prefix="nlpkit-selftest-") as name:
        room = Path(name)
        small, shrunk = _shrink(resolved)
        directory = RunDirectory(room / "saved")
        directory.path.mkdir()
        quiet = Log(QUIET if log.verbosity < 2 else log.verbosity)
        accelerator = pretrain.make_accelerator(small, directory, device, quiet)
        still = _without_dropout(small)
        made = pretrain.prepare(still, directory, accelerator, log, stop)
        data, backend = made.data, resolved.recipe.attention.backend
        precision = "bf16" if accelerator.mixed_precision == "bf16" else "fp32"
        small = _short(small, made.settings.warmup_steps, precision, int(data.examples.sizes.max()))

        def fresh() -> nn.Module:
            torch.manual_seed(resolved.recipe.seed)
            part = replace(made.part, start=None, head_dropout=0.0)
            model = build.build_model(part, data.vocab_size, backend)
            return model.to(accelerator.device)

        subject = Subject(
            model=fresh().eval(),
            fresh=fresh,
            objective=data.objective,
            tokenizer=data.tokenizer,
            examples=data.examples,
            device=accelerator.device,
            seed=resolved.recipe.seed,
            dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            check=lambda: check(stop),
        )
        yield Bench(
            made, subject, small, shrunk, room, device, precision, _attention(subject), stop
        )


def _attention(subject: Subject) -> str:
    """Return the attention backend and why, after a look at some text."""
    _first_look(subject)
    return str(getattr(subject.model, "attention_choice", ""))


def _first_look(subject: Subject) -> Seen:
    """Return what the objective's loss judges of a few examples."""
    sources = subject.sources(1)
    batch = subject.pack([subject.example(s, subject.rng(0, i)) for i, s in enumerate(sources)])
    with torch.no_grad():
        return look(subject, subject.model, batch)


def prove(bench: Bench) -> Iterator[Proof]:
    """Yield the proofs in turn, each as soon as it is done."""
    subject = bench.subject
    proofs: dict[str, Callable[[], Verdict]] = {}
    if isinstance(subject.objective, Task):  # rows, not pieces of text: what is left to prove
        proofs["packed = alone"] = lambda: of_objective.sums_packed_are_alone(subject)
    elif isinstance(subject.objective, mixture.Objective):
        proofs |= _of_members(subject, subject.objective)
    else:
        proofs |= _of_text(subject)
    proofs["batches"] = lambda: of_run.batches(bench)
    proofs["accumulated = one"] = lambda: of_run.accumulated(bench)
    if not isinstance(subject.objective, Task):
        proofs["saved = reopened"] = lambda: of_checkpoint.reopened(bench)
    proofs["resumed = whole"] = lambda: of_checkpoint.resumed(bench)
    for name, proof in proofs.items():
        subject.check()
        start = time.perf_counter()
        passed, figure = proof()
        yield Proof(name, passed, figure, time.perf_counter() - start)


def _of_members(subject: Subject, mixed: mixture.Objective) -> dict[str, Callable[[], Verdict]]:
    """Return the proofs of each member alone, and those of the mixture."""
    proofs: dict[str, Callable[[], Verdict]] = {}
    corpus = subject.examples.corpus
    for label, member in zip(mixed.labels, mixed.members, strict=True):
        examples = Examples(corpus, member, subject.seed)
        found = _of_text(replace(subject, objective=member, examples=examples))
        proofs |= {f"{label}: {name}": proof for name, proof in found.items()}
    proofs["members"] = lambda: of_examples.members(subject, mixed)
    proofs["packed = alone"] = lambda: of_objective.sums_packed_are_alone(subject)
    return proofs


def _of_text(subject: Subject) -> dict[str, Callable[[], Verdict]]:
    """Return the proofs that fit an objective on text: by the heads it has, and what it says."""
    seen = _first_look(subject)
    fitting: dict[str, tuple[bool, Callable[[Subject], Verdict]]] = {
        "noise floor": (bool(seen.words), of_objective.noise_floor),
        "no leak": (bool(seen.words), of_objective.no_leak),
        "no label leak": (bool(seen.given_labels), of_labels.label_leak),
        "no neighbour leak": (True, of_objective.no_neighbour_leak),
        "unmasking": (True, of_examples.unmasking),
        "shown targets": (bool(subject.offering("shown")), of_examples.shown_targets),
        "mates": (bool(subject.objective.mates), of_examples.mates),
        "detection": (
            any(objective.detects for objective in subject.offering("detects")),
            of_examples.detection,
        ),
        "packed = alone": (True, of_objective.packed_is_alone),
    }
    return {name: partial(proof, subject) for name, (fits, proof) in fitting.items() if fits}


def _shrink(resolved: Resolved) -> tuple[Resolved, dict[str, tuple[Any, Any]]]:
    """Return the recipe with a small model with fresh weights, and what was lowered."""
    recipe = resolved.recipe
    part = model_part(resolved)
    config = part.config
    known = {k: v for k, v in config if k in SMALL and v is not None}
    lower = {k: min(v, SMALL[k]) for k, v in known.items()}
    if {"hidden_size", "num_heads"} <= lower.keys():
        width, heads = lower["hidden_size"], lower["num_heads"]
        lower["num_heads"] = next(h for h in range(heads, 0, -1) if width % h == 0)
    small = type(config).model_validate(config.model_dump() | lower)
    tokenizer = recipe.tokenizer
    if tokenizer is None and fit.reads_text(recipe.objective):
        tokenizer = sections.Tokenizer(path=str(part.source), kind=None)
    model = sections.Model(family=part.family, config=small)
    update = {"model": model, "init_from": None, "tokenizer": tokenizer}
    lowered = {k: (known[k], v) for k, v in lower.items() if v != known[k]}
    return replace(resolved, recipe=recipe.model_copy(update=update)), lowered


def _changed(resolved: Resolved, section: str, **values: Any) -> Resolved:
    """Return the recipe with settings of `train` or `model` changed, checked like the recipe."""
    recipe = resolved.recipe
    if section == "train":
        update: Any = type(recipe.train).model_validate(recipe.train.model_dump() | values)
    else:
        assert recipe.model is not None  # `_shrink` put it there
        config = recipe.model.config
        config = type(config).model_validate(config.model_dump() | values)
        update = sections.Model(family=recipe.model.family, config=config)
    return replace(resolved, recipe=recipe.model_copy(update={section: update}))


def _without_dropout(resolved: Resolved) -> Resolved:
    assert resolved.recipe.model is not None
    names = [name for name, _ in resolved.recipe.model.config if name.endswith("dropout")]
    return _changed(resolved, "model", **dict.fromkeys(names, 0.0))


def _short(resolved: Resolved, warmup: int, precision: str, longest: int) -> Resolved:
    """Return the recipe with a training of a few small steps, in the precision chosen."""
    train = resolved.recipe.train
    budget = max(longest, min(train.batch_budget, BUDGET))
    return _changed(
        resolved,
        "train",
        steps=STEPS,
        epochs=None,
        tokens_per_batch=budget,
        tokens_per_step=2 * budget,
        warmup_steps=min(warmup, STEPS // 2),
        warmup_ratio=None,
        precision=precision,
        eval_every=EVAL_EVERY,
        save_every=SAVE_EVERY,
        keep=2,
        patience=None,
        workers=0,
        log_every=1,
        trackers=[],
    )
