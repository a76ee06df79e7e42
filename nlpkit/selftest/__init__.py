"""Tests a recipe's objective and model on this machine, in seconds.

The proofs are in files by what they prove: the masks and losses of an objective, examples, labels
that are no tokens, a run (packs, batches, the training loop), checkpoints. Optional methods of an
objective allow more proofs (`contracts/objective.py`). The model is a smaller version of the
recipe's; text, tokenizer, objective and attention backend are the recipe's. Only the token cache
and a temporary directory are written.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import nn

from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.contracts.task import Task
from nlpkit.data.loader import Examples
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.models.config import ModelConfig
from nlpkit.objectives import mixture
from nlpkit.outside_parts import error_of_part
from nlpkit.recipe import Resolved, fit, sections
from nlpkit.runs import build, frozen, pretrain
from nlpkit.selftest import batching, leaks, resuming, texts
from nlpkit.selftest.heads import Seen, look_at
from nlpkit.selftest.leaks import Verdict
from nlpkit.selftest.subject import EVAL_EVERY, SAVE_EVERY, STEPS, Bench, Subject, check
from nlpkit.train import machine
from nlpkit.train.log import QUIET, Log
from nlpkit.train.signals import StopFlag

# Upper limits of settings of the model. If the first do not fit together (heads in groups, heads of
# keys), the next are tried, the last setting first, and in the end the recipe's own.
SMALL = {"hidden_size": (64, 96), "num_heads": (4, 3, 2, 1), "num_key_heads": (4, 3, 2, 1),
         "generator_heads": (1, 2, 3), "head_dim": (16,), "intermediate_size": (128,),
         "num_layers": (2, 3), "num_groups": (2,)}  # fmt: skip
BUDGET = 1024  # upper limit of the tokens per batch of the runs


@dataclass(frozen=True)
class Proof:
    """The result of one proof: whether it passed, the measured figure, and the time."""

    name: str
    passed: bool
    figure: str
    seconds: float


class _Once(Log):
    """Prints a warning on the `outer` log only the first time: the proofs prepare many runs."""

    def __init__(self, outer: Log, said: set[str], verbosity: int):
        super().__init__(verbosity)
        self.outer, self.said = outer, said

    def warn(self, text: str) -> None:
        """Print a warning that was not printed yet."""
        if text not in self.said:
            self.said.add(text)
            self.outer.warn(text)


@contextmanager
def bench(resolved: Resolved, *, device: str, log: Log, stop: StopFlag) -> Iterator[Bench]:
    """Yield the input of `prove`; its files are always removed. Raises what the run raises."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("selftest runs in one process; start it without a launcher")
    with tempfile.TemporaryDirectory(prefix="nlpkit-selftest-") as name:
        workdir = Path(name)
        small, shrunk = _shrink(resolved)
        directory = RunDirectory(workdir / "saved")
        directory.path.mkdir()
        said: set[str] = set()
        of_runs = _Once(log, said, QUIET)
        log = _Once(log, said, log.verbosity)
        accelerator = machine.make_accelerator(small.recipe.train, device, of_runs)
        # As in the run itself, which is larger: a pass of the small model would tell nothing.
        requested = resolved.recipe.train.precision
        precision, _ = machine.choose_precision(requested, accelerator.device)
        small = _change_train(small, {"precision": precision})
        run = pretrain.prepare(_remove_dropout(small), directory, accelerator, log, stop)
        data, backend = run.data, resolved.recipe.attention.backend
        small = _shorten(small, run.settings.warmup_steps, int(data.examples.sizes.max()))

        def build_fresh() -> nn.Module:
            torch.manual_seed(resolved.recipe.seed)
            part = replace(run.part, start=None, head_dropout=0.0)
            return build.build_model(part, data.vocab_size, backend).to(accelerator.device)

        subject = Subject(
            model=build_fresh().eval(),
            build_fresh=build_fresh,
            objective=data.objective,
            tokenizer=data.tokenizer,
            examples=data.examples,
            device=accelerator.device,
            seed=resolved.recipe.seed,
            dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            check=lambda: check(stop),
        )
        _look_first(subject)  # it chooses the attention
        attention = str(getattr(subject.model, "attention_choice", ""))
        yield Bench(
            run, subject, small, shrunk, workdir, device, precision, attention, stop, of_runs
        )


def _look_first(subject: Subject) -> Seen | None:
    """Return the loss and heads of a few examples, or None if a part from outside raises."""
    try:
        return look_at(subject, subject.make_examples(subject.draw_sources(1), 0))
    except Exception as error:
        if error_of_part(error) is None:
            raise
        return None


def prove(bench: Bench) -> Iterator[Proof]:
    """Yield the result of each proof as soon as it is done."""
    subject = bench.subject
    if isinstance(subject.objective, mixture.Objective):
        proofs = _list_member_proofs(subject, subject.objective)
    else:
        proofs = _list_proofs(subject)
    proofs["batches"] = lambda: batching.check_batches(bench)
    proofs["accumulated = one"] = lambda: batching.compare_gradients(bench)
    if not isinstance(subject.objective, Task):
        proofs["saved = reopened"] = lambda: resuming.reopen(bench)
    proofs["resumed = whole"] = lambda: resuming.resume(bench)
    for name, proof in proofs.items():
        subject.check()
        start = time.perf_counter()
        try:
            passed, figure = proof()
        # Code that is not ours can raise anything.
        except Exception as error:
            failed = error_of_part(error)
            if failed is None:
                raise
            passed, figure = False, str(failed)
        yield Proof(name, passed, figure, time.perf_counter() - start)


def _list_member_proofs(
    subject: Subject, mixed: mixture.Objective
) -> dict[str, Callable[[], Verdict]]:
    proofs: dict[str, Callable[[], Verdict]] = {}
    corpus = subject.examples.corpus
    for label, member in zip(mixed.labels, mixed.members, strict=True):
        examples = Examples(corpus, member, subject.seed)
        of_member = _list_proofs(replace(subject, objective=member, examples=examples))
        proofs |= {f"{label}: {name}": proof for name, proof in of_member.items()}
    proofs["members"] = lambda: texts.count_members(subject, mixed)
    proofs["packed = alone"] = lambda: batching.compare_packed_sums(subject)
    return proofs


def _list_proofs(subject: Subject) -> dict[str, Callable[[], Verdict]]:
    """Return the proofs that apply to the heads and optional methods of an objective.

    Of a task, whose examples are rows, they are those of targets that are text.
    """
    seen, is_task = _look_first(subject), isinstance(subject.objective, Task)
    predicts = subject.objective.predicts_text or not is_task
    # A shuffled text, for example, hides no word.
    hides = any(objective.shown_rate != 1.0 for objective in subject.objectives)
    has_words = predicts and hides and (is_task or seen is None or bool(seen.words))
    has_labels = not is_task and seen is not None and bool(seen.given_labels)
    has_shown = not is_task and bool(subject.list_objectives_with("shown"))
    detects = any(objective.detects for objective in subject.objectives)
    compare = batching.compare_packed_sums if is_task else batching.compare_packed
    candidates: dict[str, tuple[bool, Callable[[Subject], Verdict]]] = {
        "noise floor": (has_words, leaks.find_noise_floor),
        "no leak": (has_words, leaks.find_leaks),
        "no label leak": (has_labels, leaks.find_label_leaks),
        "no neighbour leak": (predicts, leaks.find_neighbour_leaks),
        "unmasking": (not is_task, texts.check_unmasking),
        "shown targets": (has_shown, texts.count_shown),
        "negatives": (bool(subject.objective.negatives), texts.check_negatives),
        "detection": (detects, texts.check_detection),
        "packed = alone": (True, compare),
    }
    return {
        name: partial(proof, subject) for name, (applies, proof) in candidates.items() if applies
    }


def _shrink(resolved: Resolved) -> tuple[Resolved, dict[str, tuple[int, int]]]:
    """Return the recipe with a small, randomly initialized model, and the lowered settings."""
    resolved = frozen.named(resolved, frozen.find(resolved))  # one may be the model of init_from
    recipe = resolved.recipe
    part = build.model_part(resolved)
    config = part.config
    small = next(_list_smaller(config), config)
    tokenizer = recipe.tokenizer
    if tokenizer is None and fit.reads_text(recipe.objective):
        tokenizer = sections.Tokenizer(path=str(part.source), kind=None)
    model = sections.Model(family=part.family, config=small)
    lowered = {k: (v, new) for k, v in config if k in SMALL and v != (new := getattr(small, k))}
    # Adapters and soft prompts need a model that is there.
    alone = resolved.with_sections(
        model=model, tokenizer=tokenizer, init_from=None, init_missing=[], lora=None, prompt=None
    )
    return _change_train(alone, {"tune": "all"}), lowered


def _list_smaller(config: ModelConfig) -> Iterator[ModelConfig]:
    """Yield the settings with lowered sizes that fit together and fit the attention."""
    known = {k: v for k in SMALL if (v := config.setting(k)) is not None}
    limits = [dict.fromkeys([*(min(v, most) for most in SMALL[k]), v]) for k, v in known.items()]
    for values in itertools.product(*limits):
        lower = dict(zip(known, values, strict=True))
        if lower.get("hidden_size", 0) % lower.get("num_heads", 1):
            continue
        with suppress(ValidationError):
            small = type(config).model_validate(config.model_dump() | lower)
            layers = small.setting("num_layers", 1) * small.setting("inner_layers", 1)
            refused = any(map(small.refuses_attention, config.attention))
            if not refused and len(config.attention) <= layers:
                yield small


def _remove_dropout(resolved: Resolved) -> Resolved:
    model = resolved.recipe.model
    assert model is not None  # set by `_shrink`
    rates = {name: 0.0 for name, _ in model.config if name.endswith("dropout")}
    config = type(model.config).model_validate(model.config.model_dump() | rates)
    return resolved.with_sections(model=sections.Model(family=model.family, config=config))


def _change_train(resolved: Resolved, values: JsonObject) -> Resolved:
    train = resolved.recipe.train
    # The proofs have small batches, whatever memory the recipe allows.
    changed = type(train).model_validate(train.model_dump() | {"memory": None} | values)
    return resolved.with_sections(train=changed)


def _shorten(resolved: Resolved, warmup: int, longest: int) -> Resolved:
    budget = max(longest, min(resolved.recipe.train.batch_budget, BUDGET))
    values: JsonObject = dict.fromkeys(("epochs", "budget", "words", "warmup_ratio", "patience"))
    values |= {"steps": STEPS, "warmup_steps": min(warmup, STEPS // 2), "log_every": 1}
    values |= {"tokens_per_batch": budget, "tokens_per_step": 2 * budget, "workers": 0}
    values["rows_per_step"] = None
    values |= {"eval_every": EVAL_EVERY, "save_every": SAVE_EVERY, "keep": 2, "trackers": []}
    return _change_train(resolved, values)
